# SPDX-License-Identifier: Apache-2.0
"""Turn YAML or JSON text into plain values, and report every problem with its file, line and column.

YAML is read as version 1.2 with the core schema only: text, null, true/false, whole and decimal numbers. A YAML 1.1
reader turns the unquoted address 0000:41:00.0 into the number 2460.0; here it stays text, and a number that such a tool
wrote in place of an address gets a message that says so (see `rules.gpu`). JSON is a part of YAML 1.2, so there is one
reader. Aliases, merge keys and tags are refused: a spec is data that a person can check by eye.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from vgpuctl.config.rules import Problem, ValidationError, format_path
from vgpuctl.config.shape import Shape
from vgpuctl.errors import InvalidInput
from vgpuctl.model.json_yaml import TOO_DEEP_PROBLEM, YamlError, compose_yaml
from vgpuctl.model.numbers import count_text
from vgpuctl.value import EMPTY_MAPPING, Value

KeyPath = tuple[str | int, ...]

MAX_PROBLEMS = 50
"""An error lists at most this many problems, the first ones of the file."""

_CORE = "tag:yaml.org,2002:"
_CORE_TAGS = ("map", "seq", "str", "null", "bool", "int", "float", "timestamp", "merge", "value")
_TAGS = frozenset(f"{_CORE}{name}" for name in _CORE_TAGS)
"""The tags that YAML assigns itself.

`!!binary` and others of the same name space are there only if somebody wrote them.
"""
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}", re.ASCII)
_OCTAL_OR_HEX = re.compile(r"0o[0-7]{1,18}|0x[0-9a-fA-F]{1,16}", re.ASCII)
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,4})?", re.ASCII)
_CONSTANTS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class Position(Value):
    """A place in a text, counted from 1 as in editors."""

    line: int
    column: int


class Document(Value):
    """A parsed text: its value, and the position of each value and each key."""

    name: str
    value: object
    value_positions: Mapping[KeyPath, Position] = EMPTY_MAPPING
    key_positions: Mapping[KeyPath, Position] = EMPTY_MAPPING

    def position(self, path: KeyPath, *, of_key: bool = False) -> Position:
        """Return the position of a value or its key; of the nearest enclosing one when it does not exist."""
        if of_key and path in self.key_positions:
            return self.key_positions[path]
        while path and path not in self.value_positions:
            path = path[:-1]
        return self.value_positions.get(path, Position(1, 1))

    def format_path(self, path: KeyPath) -> str:
        """Return a path in readable form, `disk[1]`; omits parts that the text does not have."""
        while len(path) > 1 and isinstance(path[-1], int) and path not in self.value_positions:
            path = path[:-1]
        return format_path(path)


class LocatedProblem(Value):
    """A problem at a place, from which `problems_error` builds its message and its facts."""

    line: int
    column: int
    path: str
    text: str


def load_document(text: str, name: str, *, lines_before: int = 0) -> Document:
    """Read one YAML or JSON document; `name` is the file's, for messages. `lines_before`: of the file before the text.

    Raises:
        InvalidInput: it cannot be read, or has a key twice; the error lists every such problem.
    """
    try:
        node = compose_yaml(text)
        reader = _NodeReader(lines_before)
        value = reader.value(node, ()) if node is not None else None
    except YamlError as exc:
        raise problems_error(name, [LocatedProblem(exc.line + lines_before, exc.column, "", exc.problem)]) from exc
    except RecursionError as exc:
        raise problems_error(name, [LocatedProblem(1 + lines_before, 1, "", TOO_DEEP_PROBLEM)]) from exc
    if reader.problems:
        raise problems_error(name, reader.problems)
    return Document(name, value, reader.values, reader.keys)


def parse_document(text: str, name: str, shape: Shape) -> dict[str, object]:
    """Read a text and check it against a shape; `name` is the file's, for messages.

    Raises:
        InvalidInput: each problem as `file:line:column: path: what is wrong`.
    """
    document = load_document(text, name)
    try:
        return shape.check(document.value)
    except ValidationError as exc:
        raise problems_error(name, [locate_problem(document, problem) for problem in exc.problems]) from exc


def problems_error(name: str, problems: list[LocatedProblem]) -> InvalidInput:
    """Return one InvalidInput that lists the problems in the order of the text."""
    ordered = sorted(dict.fromkeys(problems), key=lambda entry: (entry.line, entry.column))
    shown = ordered[:MAX_PROBLEMS]
    lines = [_format_problem(name, entry) for entry in shown]
    facts = [{"file": name, "line": e.line, "column": e.column, "path": e.path, "problem": e.text} for e in shown]
    if len(ordered) > 1:
        lines.insert(0, f"{name} has {len(ordered)} problems")
    if len(ordered) > len(shown):
        lines.append(f"and {count_text(len(ordered) - len(shown), 'more problem')}")
    return InvalidInput("\n".join(lines), problems=facts)


def locate_problem(document: Document, problem: Problem) -> LocatedProblem:
    """Return a problem of a document's value at its place in the text."""
    position = document.position(problem.path, of_key=problem.at_key)
    return LocatedProblem(position.line, position.column, document.format_path(problem.path), problem.text)


def _format_problem(name: str, entry: LocatedProblem) -> str:
    where = f"{name}:{entry.line}:{entry.column}: "
    return where + (f"{entry.path}: " if entry.path else "") + entry.text


class _NodeReader:
    """One pass over the tree of nodes, which collects positions and problems."""

    def __init__(self, lines_before: int) -> None:
        self._lines_before = lines_before
        self.values: dict[KeyPath, Position] = {}
        self.keys: dict[KeyPath, Position] = {}
        self.problems: list[LocatedProblem] = []
        self._visited: set[int] = set()

    def value(self, node: Node, path: KeyPath) -> object:
        self.values[path] = self._position(node)
        if id(node) in self._visited:
            self._problem(node, path, "an alias (*name) is not allowed here: write the value out")
            return None
        self._visited.add(id(node))
        if str(node.tag) not in _TAGS:
            self._problem(node, path, "a tag (!name) is not allowed here; a text that begins with ! needs quotes")
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.value(item, (*path, number)) for number, item in enumerate(node.value)]
        return _read_scalar(node) if isinstance(node, ScalarNode) else None

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._problem(key_node, path, "a key must be a word")
                continue
            key = _join_surrogates(key_node.value)
            key_path = (*path, key)
            if key in result:
                first = self.keys[key_path]
                self._problem(key_node, key_path, f"the key appears twice (first in line {first.line})")
                continue
            self.keys[key_path] = self._position(key_node)
            result[key] = self.value(value_node, key_path)
        return result

    def _problem(self, node: Node, path: KeyPath, text: str) -> None:
        position = self._position(node)
        self.problems.append(LocatedProblem(position.line, position.column, format_path(path), text))

    def _position(self, node: Node) -> Position:
        return Position(self._lines_before + node.start_mark.line + 1, node.start_mark.column + 1)


def _read_scalar(node: ScalarNode) -> object:
    text = _join_surrogates(node.value)
    if node.style is not None or node.tag == f"{_CORE}str":
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _OCTAL_OR_HEX.fullmatch(text):
        return int(text, 0)
    return float(text) if _DECIMAL.fullmatch(text) else text


def _join_surrogates(text: str) -> str:
    r"""Join the two halves of a JSON escape like \ud83d\ude00, which YAML reads one by one."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
