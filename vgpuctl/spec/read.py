# SPDX-License-Identifier: Apache-2.0
"""YAML or JSON text becomes plain values, and every problem is told with its file, line and column.

YAML is read as version 1.2 by the core schema only: text, null, true/false, whole and decimal numbers. A
YAML 1.1 reader turns the unquoted address 0000:41:00.0 into the number 2460.0; here it stays text, and a
number that such a tool wrote where an address is due is named as what it is (see `rules.gpu`). JSON is a
part of YAML 1.2, so there is one reader. Aliases, merge keys and tags are refused: a spec is data that a
person can check by eye.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from vgpuctl.errors import InvalidInput
from vgpuctl.model.yaml_text import DEEP, NotYaml, compose
from vgpuctl.spec.rules import Problem, Refused, shown_path
from vgpuctl.spec.shape import Shape
from vgpuctl.value import NOTHING, Value

Path = tuple[str | int, ...]

_CORE = "tag:yaml.org,2002:"
_PLAIN = ("map", "seq", "str", "null", "bool", "int", "float", "timestamp", "merge", "value")
_TAGS = frozenset(f"{_CORE}{name}" for name in _PLAIN)
"""What YAML gives a node by itself; `!!binary` and the like are in the same name space, and somebody wrote them."""
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}", re.ASCII)
_BASED = re.compile(r"0o[0-7]{1,18}|0x[0-9a-fA-F]{1,16}", re.ASCII)
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,4})?", re.ASCII)
_WORDS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class Position(Value):
    """A place in a text, counted from 1 as editors do."""

    line: int
    column: int


class Document(Value):
    """A text that was read: its value, and where each value and each key stands in it."""

    name: str
    value: object
    values: Mapping[Path, Position] = NOTHING
    keys: Mapping[Path, Position] = NOTHING

    def position(self, path: Path, *, of_key: bool = False) -> Position:
        """Return the position of a value or its key; of the nearest one around it when it is not there."""
        if of_key and path in self.keys:
            return self.keys[path]
        while path and path not in self.values:
            path = path[:-1]
        return self.values.get(path, Position(1, 1))

    def shown(self, path: Path) -> str:
        """Return a path as people read it, `disk[1]`; parts that the text does not have are left out."""
        while len(path) > 1 and isinstance(path[-1], int) and path not in self.values:
            path = path[:-1]
        return shown_path(path)


class Found(Value):
    """A problem at a place: what `refusal` makes its message and its facts of."""

    line: int
    column: int
    path: str
    text: str


def load(text: str, name: str) -> Document:
    """Read one YAML or JSON document; `name` is the file's, for messages.

    Raises:
        InvalidInput: it cannot be read, or says a key twice; every such problem is listed.
    """
    try:
        node = compose(text)
        walk = _Walk()
        value = walk.value(node, ()) if node is not None else None
    except NotYaml as exc:
        raise refusal(name, [Found(exc.line, exc.column, "", exc.problem)]) from exc
    except RecursionError as exc:
        raise refusal(name, [Found(1, 1, "", DEEP)]) from exc
    if walk.problems:
        raise refusal(name, walk.problems)
    return Document(name, value, walk.values, walk.keys)


def parse(text: str, name: str, shape: Shape) -> dict[str, object]:
    """Read a text and check it against a shape; `name` is the file's, for messages.

    Raises:
        InvalidInput: each problem as `file:line:column: path: what is wrong`.
    """
    document = load(text, name)
    try:
        return shape.check(document.value)
    except Refused as exc:
        raise refusal(name, [_placed(document, problem) for problem in exc.problems]) from exc


def refusal(name: str, found: list[Found]) -> InvalidInput:
    """Return one InvalidInput that lists the problems in the order of the text."""
    ordered = sorted(dict.fromkeys(found), key=lambda entry: (entry.line, entry.column))
    lines = [_line(name, entry) for entry in ordered]
    facts = [{"file": name, "line": e.line, "column": e.column, "path": e.path, "problem": e.text} for e in ordered]
    message = lines[0] if len(lines) == 1 else "\n".join([f"{name} has {len(lines)} problems", *lines])
    return InvalidInput(message, problems=facts)


def _placed(document: Document, problem: Problem) -> Found:
    position = document.position(problem.path, of_key=problem.at_key)
    return Found(position.line, position.column, document.shown(problem.path), problem.text)


def _line(name: str, entry: Found) -> str:
    where = f"{name}:{entry.line}:{entry.column}: "
    return where + (f"{entry.path}: " if entry.path else "") + entry.text


class _Walk:
    """One pass over the tree of nodes, which collects positions and problems."""

    def __init__(self) -> None:
        self.values: dict[Path, Position] = {}
        self.keys: dict[Path, Position] = {}
        self.problems: list[Found] = []
        self._seen: set[int] = set()

    def value(self, node: Node, path: Path) -> object:
        self.values[path] = _position(node)
        if id(node) in self._seen:
            self._problem(node, path, "an alias (*name) is not taken here: write the value out")
            return None
        self._seen.add(id(node))
        if str(node.tag) not in _TAGS:
            self._problem(node, path, f"the tag {node.tag} is not taken here")
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.value(item, (*path, number)) for number, item in enumerate(node.value)]
        return _scalar(node) if isinstance(node, ScalarNode) else None

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._problem(key_node, path, "a key must be a word")
                continue
            key = _whole_text(key_node.value)
            here = (*path, key)
            if key in result:
                first = self.keys[here]
                self._problem(key_node, here, f"the key is there twice (first in line {first.line})")
                continue
            self.keys[here] = _position(key_node)
            result[key] = self.value(value_node, here)
        return result

    def _problem(self, node: Node, path: Path, text: str) -> None:
        position = _position(node)
        self.problems.append(Found(position.line, position.column, shown_path(path), text))


def _position(node: Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


def _scalar(node: ScalarNode) -> object:
    text = _whole_text(node.value)
    if node.style is not None or node.tag == f"{_CORE}str":
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    return float(text) if _DECIMAL.fullmatch(text) else text


def _whole_text(text: str) -> str:
    r"""Join the two halves of a JSON escape like \ud83d\ude00, which YAML reads one by one."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
