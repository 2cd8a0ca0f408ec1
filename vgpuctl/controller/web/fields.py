# SPDX-License-Identifier: Apache-2.0
"""Fields of forms: what people type as a call's arguments, a value that is stored as typed text, an error at its field.

What is typed stays text until it is read here, so that a form can come back with it when something is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from vgpuctl.controller.web.parts import FieldGroup, FieldView
from vgpuctl.errors import NotFound, VgpuctlError
from vgpuctl.model.numbers import parse_memory_size
from vgpuctl.value import Value

Typed = Mapping[str, str]
YES = "yes"
_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)
_NAMED = re.compile(r"([a-z_0-9]+): (.+)", re.DOTALL)


class FieldKind(StrEnum):
    """`hidden`: which thing a form is about. `lines`: a list, one a line. `labels`: KEY=VALUE, one a line."""

    HIDDEN = "hidden"
    TEXT = "text"
    NUMBER = "number"
    MEMORY = "memory"
    FLAG = "flag"
    CHOICE = "choice"
    LINES = "lines"
    LABELS = "labels"
    YAML = "yaml"


class ChangeField(Value):
    """A field. `options`: of a choice: its values, or `pools` or `images`: the names of those of the fleet."""

    name: str
    label: str
    kind: FieldKind = FieldKind.TEXT
    help: str = ""
    options: tuple[str, ...] | str = ()
    required: bool = False


class RowsField(Value):
    """A list of entries, each with these fields: `NAME.0.FIELD`, `NAME.1.FIELD` and so on."""

    name: str
    label: str
    help: str
    fields: tuple[ChangeField, ...]


def read_fields(fields: Sequence[ChangeField], typed: Typed) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments that fields say, and what is wrong with some of them."""
    arguments: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for field in fields:
        text = typed.get(field.name, "")
        try:
            value = _read(field.kind, text)
        except ValueError as error:
            problems[field.name] = str(error)
            continue
        if value is not None:
            arguments[field.name] = value
        elif field.required:
            problems[field.name] = "fill this in"
    return arguments, problems


def _read(kind: FieldKind, text: str) -> object:
    """Return what a field says; None: nothing."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    match kind:
        case FieldKind.FLAG:
            return True if text == YES else None
        case FieldKind.LINES:
            return lines
        case FieldKind.LABELS:
            pairs = [line.partition("=") for line in lines]
            if wrong := [line for line, (_, mark, _) in zip(lines, pairs, strict=True) if not mark]:
                raise ValueError(f"{wrong[0]} is no label: write KEY=VALUE")
            return {key.strip(): value.strip() for key, _, value in pairs}
        case FieldKind.NUMBER if text.strip():
            if not _NUMBER.fullmatch(text.strip()):
                raise ValueError(f"{text.strip()[:60]} is not a number")
            return int(text)
        case FieldKind.MEMORY if text.strip():
            return int(text) if _NUMBER.fullmatch(text.strip()) else parse_memory_size(text.strip())
        case _:
            return text.strip() or None


def typed_text(value: object) -> str:
    """Return a stored value as somebody would type it."""
    if isinstance(value, bool):
        return YES if value else ""
    if isinstance(value, Mapping):
        return "\n".join(f"{key}={text}" for key, text in sorted(value.items()))
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    return "" if value is None else str(value)


def problems_of(error: VgpuctlError, names: Sequence[str]) -> dict[str, str]:
    """Return what an error says of the fields with these names; under the empty name what is about none of them."""
    problems: dict[str, str] = {}
    for name, text in _parts(error, names):
        key = name if name in names else ""
        text = f"{name}: {text}" if name != key else text
        problems[key] = f"{problems[key]}\n{text}" if key in problems else text
    return problems


def _parts(error: VgpuctlError, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    listed, missing = error.facts.get("problems"), error.facts.get("fields")
    if isinstance(listed, Sequence) and listed:
        for one in listed:
            yield str(one["path"]), str(one["problem"])
        return
    if isinstance(missing, Sequence) and missing and set(missing) <= set(names):
        yield from ((str(name), "fill this in") for name in missing)
        return
    match = _NAMED.fullmatch(error.message)
    if match is not None and match[1] in names:
        yield match[1], match[2]
        return
    about = next((name for name in error.facts if name in names), "") if isinstance(error, NotFound) else ""
    yield about, error.message


def field_view(field: ChangeField, typed: Typed, problems: Typed, options: Sequence[str]) -> FieldView:
    """Return a field as a form shows it. `options`: what can be chosen."""
    value = typed.get(field.name, "")
    choices = tuple(dict.fromkeys((*options, *((value,) if value else ()))))
    return FieldView(
        field.name, field.label, str(field.kind), value, field.help, choices, problems.get(field.name, ""),
        field.required,
    )  # fmt: skip


def group_view(rows: RowsField, typed: Typed, problems: Typed, empty_rows: int) -> FieldGroup:
    """Return a list of entries as a form shows it, with so many empty ones after those that are typed."""
    count = row_count(rows, typed) + empty_rows
    return FieldGroup(
        rows.name, rows.label, rows.help, problems.get(rows.name, ""),
        tuple(
            tuple(
                field_view(field_of_row(rows, number, field), typed, problems, tuple(field.options))
                for field in rows.fields
            )
            for number in range(count)
        ),
    )  # fmt: skip


def field_of_row(rows: RowsField, number: int, field: ChangeField) -> ChangeField:
    """Return a field of an entry."""
    return ChangeField(f"{rows.name}.{number}.{field.name}", field.label, field.kind, field.help, field.options)


def row_count(rows: RowsField, typed: Typed) -> int:
    """Return how many entries are typed, empty ones between them included."""
    numbers = [name.split(".")[1] for name, text in typed.items() if name.startswith(f"{rows.name}.") and text.strip()]
    return max((int(number) + 1 for number in numbers), default=0)
