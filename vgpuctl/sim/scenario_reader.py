# SPDX-License-Identifier: Apache-2.0
"""Strict reading of a scenario's YAML: every error names its file and line.

It reads ruamel.yaml's nodes, which know their lines, and converts the values itself, so that an address that
looks like a number stays text.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NoReturn

from vgpuctl.errors import InvalidInput
from vgpuctl.model.json_yaml import YamlError, compose_yaml
from vgpuctl.model.numbers import parse_integer

_TAG = "tag:yaml.org,2002:"
SCENARIO_HINT = "'vgpuctl sim list-scenarios --help' shows a scenario file"


class YamlValue:
    """A node of the file. `name` is its path, as in gpus[2].vfs."""

    def __init__(self, node: Any, file: str, name: str) -> None:
        self._node = node
        self._file = file
        self._name = name

    def reject(self, problem: str) -> NoReturn:
        """Refuse this value."""
        raise self.error(problem)

    def error(self, problem: str) -> InvalidInput:
        """Return the error that refuses this value."""
        place = f"{self._file}:{self._node.start_mark.line + 1}"
        subject = f"{self._name}: " if self._name else ""
        return InvalidInput(f"{place}: {subject}{problem}", hint=SCENARIO_HINT, file=self._file)

    def mapping(self, keys: Iterable[str]) -> YamlMapping:
        """Return this value as a mapping. Refuse keys other than these."""
        if self._node.tag != f"{_TAG}map":
            self.reject("must be a mapping (key: value)")
        values: dict[str, YamlValue] = {}
        known_keys = tuple(keys)
        for key, value in self._node.value:
            name = str(key.value)
            child = YamlValue(value, self._file, f"{self._name}.{name}" if self._name else name)
            if name not in known_keys:
                matches = difflib.get_close_matches(name, known_keys, 1)
                hint = f"; did you mean '{matches[0]}'?" if matches else f"; known: {', '.join(known_keys)}"
                YamlValue(key, self._file, self._name).reject(f"unknown key '{name}'{hint}")
            if name in values:
                YamlValue(key, self._file, self._name).reject(f"'{name}' appears twice")
            values[name] = child
        return YamlMapping(self, values)

    def items(self) -> list[YamlValue]:
        """Return the members of a list."""
        if self._node.tag != f"{_TAG}seq":
            self.reject("must be a list")
        return [YamlValue(node, self._file, f"{self._name}[{number}]") for number, node in enumerate(self._node.value)]

    def is_text(self) -> bool:
        """Say whether this is a single word or line, not a mapping or list."""
        return isinstance(self._node.value, str)

    def text(self) -> str:
        """Return a string. A number stays as it is written."""
        if not self.is_text() or self._node.tag == f"{_TAG}null":
            self.reject("must be a text")
        return str(self._node.value)

    def number(self, minimum: int = 0, maximum: int = 1 << 40) -> int:
        """Return a whole number."""
        if self._node.tag != f"{_TAG}int":
            self.reject("must be a whole number")
        value = parse_integer(str(self._node.value).replace("_", "")[:64])
        if value is None:
            self.reject("must be a whole number of at most 18 digits")
        if not minimum <= value <= maximum:
            self.reject(f"must be {minimum} to {maximum}, is {value}")
        return value

    def flag(self) -> bool:
        """Return true or false."""
        if self._node.tag != f"{_TAG}bool":
            self.reject("must be true or false")
        return str(self._node.value).lower() == "true"

    def choice(self, choices: Iterable[str]) -> str:
        """Return this value, which must be one of these words."""
        words = tuple(choices)
        value = self.text()
        if value not in words:
            matches = difflib.get_close_matches(value, words, 1)
            hint = f"; did you mean '{matches[0]}'?" if matches else f"; known: {', '.join(words)}"
            self.reject(f"'{value}' is not known{hint}")
        return value

    def errno(self) -> int:
        """Return the number of the errno that this value names."""
        name = self.text()
        number = getattr(errno, name, None)
        if not isinstance(number, int):
            self.reject(f"'{name}' is not an errno; write it like EIO")
        return number


class YamlMapping:
    """A checked mapping."""

    def __init__(self, owner: YamlValue, values: dict[str, YamlValue]) -> None:
        self.owner = owner
        self._values = values

    def get(self, name: str) -> YamlValue | None:
        """Return a value, or None if the key is missing."""
        return self._values.get(name)

    def require(self, name: str) -> YamlValue:
        """Return a value. Refuse the mapping if the key is missing."""
        value = self._values.get(name)
        if value is None:
            self.owner.reject(f"'{name}' is missing")
        return value

    def text(self, name: str, default: str) -> str:
        """Return a text or its default."""
        value = self.get(name)
        return value.text() if value is not None else default

    def number(self, name: str, default: int, minimum: int = 0, maximum: int = 1 << 40) -> int:
        """Return a whole number or its default."""
        value = self.get(name)
        return value.number(minimum, maximum) if value is not None else default

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false, or the default."""
        value = self.get(name)
        return value.flag() if value is not None else default

    def items(self, name: str) -> list[YamlValue]:
        """Return the members of a list, or none if the key is missing."""
        value = self.get(name)
        return value.items() if value is not None else []


@lru_cache(maxsize=16)
def read_scenario(text: str, file: str) -> YamlValue:
    """Parse YAML, once for each text: a process may open many simulated hosts of few scenarios.

    Raises:
        InvalidInput: the text is not YAML, or is empty.
    """
    try:
        node = compose_yaml(text)
    except YamlError as exc:
        raise InvalidInput(f"{file}:{exc.line}:{exc.column}: {exc.problem}", hint=SCENARIO_HINT, file=file) from exc
    if node is None:
        raise InvalidInput(f"{file}: the scenario is empty", hint=SCENARIO_HINT, file=file)
    _refuse_aliases(node, file)
    return YamlValue(node, file, "")


def _refuse_aliases(root: Any, file: str) -> None:
    """Refuse a node that occurs twice: a few lines of nested aliases can expand to billions of values."""
    visited: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if id(node) in visited:
            YamlValue(node, file, "").reject("an alias (*name) of this value is not allowed here: write the value out")
        visited.add(id(node))
        if isinstance(node.value, list):
            pending += [child for entry in node.value for child in (entry if isinstance(entry, tuple) else (entry,))]
