# SPDX-License-Identifier: Apache-2.0
"""The form of a pool's spec: fields for what people set, and YAML for the rest. All of it follows from `POOL_SHAPE`.

A key of the spec that is not in `LABELS` is one of the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vgpuctl.config import yaml_reader
from vgpuctl.config.shape import Key
from vgpuctl.controller.model import FleetCaller, Role
from vgpuctl.controller.planning.pool_spec import POOL_SHAPE, SCHEDULE_SHAPE, dump_pool, parse_pool
from vgpuctl.controller.policy import MANAGED_FIELDS, has_role
from vgpuctl.controller.web.cells import as_list, spec_text
from vgpuctl.controller.web.fields import ChangeField, FieldKind, RowsField, Typed, field_of_row, row_count
from vgpuctl.errors import InvalidInput, VgpuctlError

LABELS = {
    "kind": "Kind", "image": "Image", "profile": "Profile", "names": "Names", "maximum": "Maximum", "spare": "Spare",
    "per_user": "Desktops per user", "on_logoff": "At log-off", "lease_days": "Lease in days",
    "ready_when": "Ready when", "time_zone": "Time zone", "schedules": "Schedules",
}  # fmt: skip
"""Keys of a spec with a field of their own, in the order of the form."""
SCHEDULE_LABELS = {"days": "Days", "from": "From", "until": "Until", "spare": "Ready", "lead": "Begin before"}
REST = "more"
_LISTS = ("profile", "days")
"""Of these there may be several, with commas between them."""
_NUMBER = re.compile(r"-?[0-9]{1,9}", re.ASCII)
_PART = re.compile(r"([a-z_]+)(?:\[([0-9]+)\])?(?:\.([a-z_]+))?.*", re.DOTALL)


def _field(key: Key, label: str) -> ChangeField:
    options = tuple(map(str, key.json_schema.get("enum", ())))
    kind = FieldKind.CHOICE if options else FieldKind.TEXT
    if key.name == "image":
        return ChangeField(key.name, label, FieldKind.CHOICE, key.help, "images", key.required)
    return ChangeField(key.name, label, kind, key.help, options, key.required)


_KEYS = {key.name: key for key in POOL_SHAPE.keys}
SCHEDULES = RowsField(
    "schedules", LABELS["schedules"], f"{SCHEDULE_SHAPE.help} Days: mon to sun, weekdays, weekend or daily.",
    tuple(_field(key, SCHEDULE_LABELS[key.name]) for key in SCHEDULE_SHAPE.keys),
)  # fmt: skip
POOL_FIELDS: tuple[ChangeField | RowsField, ...] = (
    *(SCHEDULES if name == "schedules" else _field(_KEYS[name], label) for name, label in LABELS.items()),
    ChangeField(
        REST, "The rest, as YAML", FieldKind.YAML,
        f"as in a spec file, such as vm: {{memory: 8G}}; keys: {', '.join(n for n in _KEYS if n not in LABELS)}",
    ),
)  # fmt: skip


def typed_of_spec(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return a stored spec as the form has it."""
    typed = {name: _text(spec[name]) for name in LABELS if name in spec and name != "schedules"}
    for number, entry in enumerate(as_list(spec.get("schedules"))):
        for key, value in entry.items() if isinstance(entry, Mapping) else ():
            typed[f"schedules.{number}.{key}"] = _text(value)
    rest = {name: value for name, value in spec.items() if name not in LABELS}
    return {**typed, REST: spec_text(rest) if rest else ""}


def spec_of_typed(typed: Typed) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the spec that the form says, unchecked, and what is wrong with the YAML in it."""
    spec: dict[str, Any] = {}
    for name in LABELS:
        if name != "schedules" and (text := typed.get(name, "").strip()):
            spec[name] = _value(name, text)
    if schedules := [entry for _, entry in _schedules(typed)]:
        spec["schedules"] = schedules
    try:
        rest = yaml_reader.load_document(typed.get(REST, ""), "YAML").value
    except VgpuctlError as error:
        return spec, {REST: error.message}
    if rest is None:
        return spec, {}
    if not isinstance(rest, Mapping):
        return spec, {REST: "expected a mapping (key: value)"}
    if doubled := [str(name) for name in rest if name in LABELS]:
        return spec, {REST: f"{', '.join(doubled)}: a field above, or a list there: omit it here"}
    return {**spec, **rest}, {}


def as_stored(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec as it would be stored.

    Raises:
        InvalidInput: something in it is wrong.
    """
    return dump_pool(parse_pool(spec, "spec"))


def fields_for(caller: FleetCaller, fields: Sequence[ChangeField | RowsField]) -> tuple[ChangeField | RowsField, ...]:
    """Return the fields that a caller may change: a pool's manager not those that are an operator's."""
    if has_role(caller, Role.OPERATOR):
        return tuple(fields)
    return tuple(one for one in fields if one.name in MANAGED_FIELDS or one.name == REST)


def place_problems(error: VgpuctlError, typed: Typed) -> VgpuctlError:
    """Return an error of a spec with the names of the form's fields instead of its keys."""
    listed = error.facts.get("problems")
    if not isinstance(listed, Sequence):
        return error
    rows = [number for number, _ in _schedules(typed)]
    placed = [_place(str(one["path"]), str(one["problem"]), rows) for one in listed]
    return InvalidInput(error.message, hint=error.hint, problems=[{"path": p, "problem": t} for p, t in placed])


def _place(path: str, text: str, rows: Sequence[int]) -> tuple[str, str]:
    match = _PART.fullmatch(path)
    if match is None:
        return "", f"{path}: {text}" if path else text
    name, number, key = match[1], match[2], match[3]
    if name == "schedules" and number is not None:
        row = rows[int(number)]
        return f"schedules.{row}.{key or 'days'}", text
    return (name, text) if name in LABELS else (REST, f"{path}: {text}")


def _schedules(typed: Typed) -> list[tuple[int, dict[str, Any]]]:
    """Return the entries that are typed, each with its number in the form."""
    entries = []
    for number in range(row_count(SCHEDULES, typed)):
        texts = {one.name: typed.get(field_of_row(SCHEDULES, number, one).name, "").strip() for one in SCHEDULES.fields}
        if any(texts.values()):
            entries.append((number, {name: _value(name, text) for name, text in texts.items() if text}))
    return entries


def _value(name: str, text: str) -> object:
    if name in _LISTS and "," in text:
        return [part.strip() for part in text.split(",") if part.strip()]
    return int(text) if _NUMBER.fullmatch(text) and name != "names" else text


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
