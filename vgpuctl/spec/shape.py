# SPDX-License-Identifier: Apache-2.0
"""What a mapping that people write may hold: its keys, the rule of each, and what JSON Schema says of it.

One description serves the check, the published schema and "did you mean". A check finds every problem at once.
Only this and `rules` decide; no validation library, because importing one costs more than all of create-vm's own
work (tests/bench).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vgpuctl.spec.rules import Problem, Refused, suggest
from vgpuctl.value import NOTHING, Value

Rule = Callable[[object], object]
"""Takes a value as it was written and returns it in its one spelling; raises ValueError, or Refused."""

Together = Callable[[Mapping[str, object]], tuple[Problem, ...]]


class Key(Value):
    """One key: its rule, its help, and the JSON Schema of its value.

    `shape`: of the mapping that it holds; `entries`: of each entry of the mapping from names that it holds.
    """

    name: str
    rule: Rule
    help: str
    schema: Mapping[str, Any] = NOTHING
    shape: Shape | None = None
    entries: Shape | None = None
    required: bool = False


class Shape(Value):
    """A mapping with these keys and no others. A key that is null counts as left out, unless it is required."""

    name: str
    help: str
    keys: tuple[Key, ...]
    together: Together | None = None

    def check(self, value: object) -> dict[str, object]:
        """Return the keys that were given, checked, in the order of the shape.

        Raises:
            Refused: with every problem.
        """
        if not isinstance(value, Mapping):
            raise Refused((Problem((), "a mapping of fields (key: value) is due here"),))
        found = [self._unknown(str(name)) for name in value if name not in self.names]
        given: dict[str, object] = {}
        for key in self.keys:
            if key.required and key.name not in value:
                found.append(Problem((key.name,), _missing(key)))
            elif key.required or value.get(key.name) is not None:
                try:
                    given[key.name] = key.rule(value[key.name])
                except ValueError as exc:
                    found += problems_below(key.name, exc)
        if self.together is not None:
            found += self.together({**{name: v for name, v in value.items() if v is not None}, **given})
        if found:
            raise Refused(tuple(dict.fromkeys(found)))
        return given

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the keys."""
        return tuple(key.name for key in self.keys)

    def _unknown(self, name: str) -> Problem:
        return Problem((name,), f"there is no such field{suggest(name, self.names)}", at_key=True)


def _missing(key: Key) -> str:
    """Say that a key is missing, and the only way to write it when there is only one."""
    only = key.schema.get("const")
    return "it is missing" if only is None else f"it is missing: write '{key.name}: {only}'"


def problems_below(part: str | int, error: ValueError) -> list[Problem]:
    """Return what a rule found wrong with the value at `part`, with paths that begin there."""
    if isinstance(error, Refused):
        return [Problem((part, *problem.path), problem.text, problem.at_key) for problem in error.problems]
    return [Problem((part,), str(error))]


def by_name(name_rule: Rule, shape: Shape) -> Rule:
    """Return the rule of a mapping from names to mappings of one shape; null stands for an empty one."""

    def named(value: object) -> dict[str, dict[str, object]]:
        if not isinstance(value, Mapping):
            raise Refused((Problem((), "a mapping of names (name: {...}) is due here"),))
        found: list[Problem] = []
        checked: dict[str, dict[str, object]] = {}
        for name, entry in value.items():
            try:
                key = str(name_rule(name))
                if key in checked:
                    raise ValueError(f"'{key}' is there twice")
                checked[key] = shape.check({} if entry is None else entry)
            except Refused as exc:
                found += problems_below(str(name), exc)
            except ValueError as exc:
                found.append(Problem((str(name),), str(exc), at_key=True))
        if found:
            raise Refused(tuple(found))
        return checked

    return named


def one_or_more(rule: Rule) -> Rule:
    """Return the rule of a field that takes one value or a list of them; what comes out is a tuple."""

    def listed(value: object) -> tuple[object, ...]:
        items = list(value) if isinstance(value, list | tuple) else [value]
        found: list[Problem] = []
        checked: list[object] = []
        for number, item in enumerate(items):
            try:
                checked.append(rule(item))
            except ValueError as exc:
                found += problems_below(number, exc)
        if found:
            raise Refused(tuple(found))
        return tuple(checked)

    return listed


def at_least_one(rule: Rule) -> Rule:
    """Return the rule of a field that takes one value or a list of them, but no empty list; a tuple comes out."""
    listed = one_or_more(rule)

    def some(value: object) -> object:
        found = listed(value)
        if not found:
            raise ValueError("the list is empty: name at least one, or leave the key out")
        return found

    return some
