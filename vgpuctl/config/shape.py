# SPDX-License-Identifier: Apache-2.0
"""The allowed content of a mapping that people write: its keys, the rule of each, and its JSON Schema.

One description serves the check, the published schema and "did you mean". A check finds every problem at once. Only
this module and `rules` decide; there is no validation library, because importing one takes longer than all of
create-vm's own work (tests/bench).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vgpuctl.config.rules import Problem, ValidationError, suggest_word
from vgpuctl.value import EMPTY_MAPPING, Value

Rule = Callable[[object], object]
"""Takes a raw value and returns it in its canonical spelling.

Raises ValueError, or ValidationError with several problems.
"""

MAX_UNKNOWN_FIELDS = 20
"""At most this many unknown fields of one mapping are listed: a suggestion for each takes time."""

CrossCheck = Callable[[Mapping[str, object]], tuple[Problem, ...]]


class Key(Value):
    """One key: its rule, its help, and the JSON Schema of its value.

    `nested_shape`: of the mapping in its value; `entry_shape`: of each entry when the value maps names to entries.
    """

    name: str
    rule: Rule
    help: str
    json_schema: Mapping[str, Any] = EMPTY_MAPPING
    nested_shape: Shape | None = None
    map_value_shape: Shape | None = None
    required: bool = False


class Shape(Value):
    """A mapping with these keys and no others. A key that is null counts as omitted, unless it is required."""

    name: str
    help: str
    keys: tuple[Key, ...]
    cross_check: CrossCheck | None = None

    def check(self, value: object) -> dict[str, object]:
        """Return the given keys, checked, in the order of the shape.

        Raises:
            ValidationError: with every problem.
        """
        if not isinstance(value, Mapping):
            raise ValidationError((Problem((), "expected a mapping (key: value)"),))
        unknown = [str(name) for name in value if name not in self.names]
        problems = [self._unknown(name) for name in unknown[:MAX_UNKNOWN_FIELDS]]
        if len(unknown) > MAX_UNKNOWN_FIELDS:
            text = f"{len(unknown)} unknown fields; the first {MAX_UNKNOWN_FIELDS} are listed"
            problems.append(Problem((unknown[0],), text, at_key=True))
        given: dict[str, object] = {}
        for key in self.keys:
            if key.required and key.name not in value:
                problems.append(Problem((key.name,), _missing_key_text(key)))
            elif key.required or value.get(key.name) is not None:
                try:
                    given[key.name] = key.rule(value[key.name])
                except ValueError as exc:
                    problems += nest_problems(key.name, exc)
        if self.cross_check is not None:
            problems += self.cross_check({**{name: v for name, v in value.items() if v is not None}, **given})
        if problems:
            raise ValidationError(tuple(dict.fromkeys(problems)))
        return given

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the keys."""
        return tuple(key.name for key in self.keys)

    def _unknown(self, name: str) -> Problem:
        return Problem((name,), f"unknown field{suggest_word(name, self.names)}", at_key=True)


def _missing_key_text(key: Key) -> str:
    """Return the message for a missing key, with the only valid value if there is only one."""
    only = key.json_schema.get("const")
    return "missing" if only is None else f"missing: write '{key.name}: {only}'"


def nest_problems(part: str | int, error: ValueError) -> list[Problem]:
    """Return the problems that a rule found in the value at `part`, with paths that begin there."""
    if isinstance(error, ValidationError):
        return [Problem((part, *problem.path), problem.text, problem.at_key) for problem in error.problems]
    return [Problem((part,), str(error))]


def mapping_of(name_rule: Rule, shape: Shape) -> Rule:
    """Return the rule of a mapping from names to mappings of one shape; null means an empty one."""

    def named(value: object) -> dict[str, dict[str, object]]:
        if not isinstance(value, Mapping):
            raise ValidationError((Problem((), "expected a mapping of names (name: {...})"),))
        problems: list[Problem] = []
        checked: dict[str, dict[str, object]] = {}
        for name, entry in value.items():
            try:
                key = str(name_rule(name))
                if key in checked:
                    raise ValueError(f"'{key}' appears twice")
                checked[key] = shape.check({} if entry is None else entry)
            except ValidationError as exc:
                problems += nest_problems(str(name), exc)
            except ValueError as exc:
                problems.append(Problem((str(name),), str(exc), at_key=True))
        if problems:
            raise ValidationError(tuple(problems))
        return checked

    return named


def single_or_list(rule: Rule) -> Rule:
    """Return the rule of a field that takes one value or a list of them; the result is a tuple."""

    def listed(value: object) -> tuple[object, ...]:
        items = list(value) if isinstance(value, list | tuple) else [value]
        problems: list[Problem] = []
        checked: list[object] = []
        for number, item in enumerate(items):
            try:
                checked.append(rule(item))
            except ValueError as exc:
                problems += nest_problems(number, exc)
        if problems:
            raise ValidationError(tuple(problems))
        return tuple(checked)

    return listed


def nonempty_list(rule: Rule) -> Rule:
    """Return the rule of a field that takes one value or a list of them, but no empty list; the result is a tuple."""
    listed = single_or_list(rule)

    def nonempty(value: object) -> object:
        items = listed(value)
        if not items:
            raise ValueError("the list is empty: specify at least one, or omit the key")
        return items

    return nonempty
