# SPDX-License-Identifier: Apache-2.0
"""Strict reading of a scenario's YAML: every mistake is told with its file and line.

Works on ruamel.yaml's nodes, which know their lines; the values are converted here, so that an address that
looks like a number stays text.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from typing import Any, NoReturn

from vgpuctl.errors import InvalidInput
from vgpuctl.model.digits import whole
from vgpuctl.model.yaml_text import NotYaml, compose

_TAG = "tag:yaml.org,2002:"
HINT = "docs/scenarios.md lists every key"


class Value:
    """A node of the file. `name` says in words where it is: gpus[2].vfs."""

    def __init__(self, node: Any, file: str, name: str) -> None:
        self._node = node
        self._file = file
        self._name = name

    def wrong(self, what: str) -> NoReturn:
        """Refuse this value."""
        raise self.error(what)

    def error(self, what: str) -> InvalidInput:
        """Return the error that refuses this value."""
        place = f"{self._file}:{self._node.start_mark.line + 1}"
        subject = f"{self._name}: " if self._name else ""
        return InvalidInput(f"{place}: {subject}{what}", hint=HINT, file=self._file)

    def table(self, keys: Iterable[str]) -> Table:
        """Return a mapping that has only these keys."""
        if self._node.tag != f"{_TAG}map":
            self.wrong("must be a mapping (key: value)")
        found: dict[str, Value] = {}
        known = tuple(keys)
        for key, value in self._node.value:
            name = str(key.value)
            inside = Value(value, self._file, f"{self._name}.{name}" if self._name else name)
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                more = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}"
                Value(key, self._file, self._name).wrong(f"unknown key '{name}'{more}")
            if name in found:
                Value(key, self._file, self._name).wrong(f"'{name}' is there twice")
            found[name] = inside
        return Table(self, found)

    def items(self) -> list[Value]:
        """Return the members of a list."""
        if self._node.tag != f"{_TAG}seq":
            self.wrong("must be a list")
        return [Value(node, self._file, f"{self._name}[{number}]") for number, node in enumerate(self._node.value)]

    def is_text(self) -> bool:
        """Say whether this is a single word or line, not a mapping or list."""
        return isinstance(self._node.value, str)

    def text(self) -> str:
        """Return a text; numbers are taken as they are written."""
        if not self.is_text() or self._node.tag == f"{_TAG}null":
            self.wrong("must be a text")
        return str(self._node.value)

    def number(self, least: int = 0, most: int = 1 << 40) -> int:
        """Return a whole number."""
        if self._node.tag != f"{_TAG}int":
            self.wrong("must be a whole number")
        value = whole(str(self._node.value).replace("_", "")[:64])
        if value is None:
            self.wrong("must be a whole number of at most 18 digits")
        if not least <= value <= most:
            self.wrong(f"must be {least} to {most}, is {value}")
        return value

    def flag(self) -> bool:
        """Return true or false."""
        if self._node.tag != f"{_TAG}bool":
            self.wrong("must be true or false")
        return str(self._node.value).lower() == "true"

    def choice(self, known: Iterable[str]) -> str:
        """Return one of these words."""
        words = tuple(known)
        value = self.text()
        if value not in words:
            near = difflib.get_close_matches(value, words, 1)
            more = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(words)}"
            self.wrong(f"'{value}' is not known{more}")
        return value

    def errno(self) -> int:
        """Return an errno by its name."""
        name = self.text()
        number = getattr(errno, name, None)
        if not isinstance(number, int):
            self.wrong(f"'{name}' is not an errno; write it like EIO")
        return number


class Table:
    """A checked mapping."""

    def __init__(self, owner: Value, values: dict[str, Value]) -> None:
        self.owner = owner
        self._values = values

    def get(self, name: str) -> Value | None:
        """Return a value, or None when the key is not there."""
        return self._values.get(name)

    def need(self, name: str) -> Value:
        """Return a value that must be there."""
        found = self._values.get(name)
        if found is None:
            self.owner.wrong(f"'{name}' is missing")
        return found

    def text(self, name: str, default: str) -> str:
        """Return a text or its default."""
        found = self.get(name)
        return found.text() if found is not None else default

    def number(self, name: str, default: int, least: int = 0, most: int = 1 << 40) -> int:
        """Return a whole number or its default."""
        found = self.get(name)
        return found.number(least, most) if found is not None else default

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false, or the default."""
        found = self.get(name)
        return found.flag() if found is not None else default

    def items(self, name: str) -> list[Value]:
        """Return the members of a list; none when the key is not there."""
        found = self.get(name)
        return found.items() if found is not None else []


def read(text: str, file: str) -> Value:
    """Parse YAML.

    Raises:
        InvalidInput: it is not YAML, or empty.
    """
    try:
        node = compose(text)
    except NotYaml as exc:
        raise InvalidInput(f"{file}:{exc.line}:{exc.column}: {exc.problem}", hint=HINT, file=file) from exc
    if node is None:
        raise InvalidInput(f"{file}: the scenario is empty", hint=HINT, file=file)
    _refuse_aliases(node, file)
    return Value(node, file, "")


def _refuse_aliases(root: Any, file: str) -> None:
    """Refuse a node that is there twice: a few lines of aliases of aliases stand for billions of values."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            Value(node, file, "").wrong("an alias (*name) of this value is not taken here: write the value out")
        seen.add(id(node))
        if isinstance(node.value, list):
            waiting += [inner for entry in node.value for inner in (entry if isinstance(entry, tuple) else (entry,))]
