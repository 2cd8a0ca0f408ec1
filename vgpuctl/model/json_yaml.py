# SPDX-License-Identifier: Apache-2.0
"""Parses JSON and YAML from outside: a record, a file in /run, another program's output, a file that people write.

YAML becomes a tree of nodes with line numbers; every parser failure becomes one error type. ruamel.yaml raises more
than its own errors: RecursionError for deep nesting, ValueError and OverflowError for an escape that is no character.
Nothing expands aliases, so a tree is at most as large as its text. Values and depth are counted while they are read: a
text beyond a limit is refused before the rest is read.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from vgpuctl.errors import VgpuctlError

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node

MAX_VALUES = 50_000
"""More keys and values than any file that vgpuctl reads has; a thousand take 50 ms."""

MAX_DEPTH = 50
"""More levels than any of its formats has; user-data and network configurations of other programs included."""

TOO_DEEP_PROBLEM = f"it is nested too deeply: at most {MAX_DEPTH} levels are allowed"

SECOND_DOCUMENT_PROBLEM = "a second document begins here, and the file may have one"


class YamlError(Exception):
    """Where parsing failed, counted from 1, and why."""

    def __init__(self, line: int, column: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line
        self.column = column
        self.problem = problem


def compose_yaml(text: str) -> Node | None:
    """Return the root node of the only document in a text; None for an empty text.

    The parser's own errors quote lines of the text, which may hold secrets. So ours is raised outside `except`, where
    it gets no `__context__`.

    Raises:
        YamlError: the text is not YAML, or cannot be parsed.
    """
    from ruamel import yaml
    from ruamel.yaml import error, reader

    try:
        reader_of_text: Any = yaml.YAML(typ="safe", pure=True)
        reader_of_text.Composer = _bounded_composer()
        return reader_of_text.compose(text)  # type: ignore[no-any-return] # Any in its stubs
    except VgpuctlError:  # a signal
        raise
    except _BeyondLimit as exc:
        failure = exc.failure
    except error.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        problem = " ".join(_unquote_text(str(part)) for part in (exc.context, exc.problem) if part)
        is_second = problem.startswith("expected a single document")
        failure = YamlError(line, column, SECOND_DOCUMENT_PROBLEM if is_second else f"it is not YAML: {problem}")
    except reader.ReaderError as exc:
        before = text[: exc.position] if isinstance(exc.position, int) else ""
        column = len(before) - (before.rfind("\n") + 1) + 1
        failure = YamlError(before.count("\n") + 1, column, "a character that YAML does not allow")
    except RecursionError:
        failure = YamlError(1, 1, TOO_DEEP_PROBLEM)
    except Exception as exc:  # noqa: BLE001 - the parser's own bugs
        failure = YamlError(1, 1, f"it is not YAML: the parser failed ({type(exc).__name__})")
    raise failure


class _BeyondLimit(Exception):
    """A text has more values or levels than allowed."""

    def __init__(self, mark: Any, problem: str) -> None:
        super().__init__(problem)
        self.failure = YamlError(mark.line + 1, mark.column + 1, problem)


@cache
def _bounded_composer() -> type[Any]:
    from ruamel.yaml import composer

    class BoundedComposer(composer.Composer):
        """Counts values and levels; a double anchor's name, which may be a secret, is in no warning."""

        def __init__(self, loader: Any = None) -> None:
            super().__init__(loader=loader)
            self.warn_double_anchors = False
            self._values = self._level = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self._values += 1
            self._level += 1
            if self._level > MAX_DEPTH:
                mark = self.parser.peek_event().start_mark
                raise _BeyondLimit(mark, f"{TOO_DEEP_PROBLEM}, and this is level {self._level}")
            if self._values > MAX_VALUES:
                mark = self.parser.peek_event().start_mark
                raise _BeyondLimit(mark, f"it has more than {MAX_VALUES} keys and values, which is the limit")
            node = super().compose_node(parent, index)
            self._level -= 1
            return node

    return BoundedComposer


def _unquote_text(problem: str) -> str:
    """Return a parser's sentence without what it quotes of the text; single characters and its `<block end>` stay."""
    return re.sub(r"(['\"])(?!<)(.{2,}?)\1", "(not shown)", problem)


def parse_json(text: str | bytes) -> object:
    """Return the parsed JSON; None when the text is not JSON or is nested too deeply."""
    import json  # loads slowly, and completion of options reads none

    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value
