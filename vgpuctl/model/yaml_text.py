# SPDX-License-Identifier: Apache-2.0
"""YAML that people write becomes a tree of nodes that know their lines; whatever the parser stumbles over is one error.

ruamel.yaml raises more than its own errors: RecursionError for deep nesting, ValueError and OverflowError for an
escape that is no character. Aliases are expanded by nobody: a tree is at most as large as its text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import VgpuctlError

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node

DEEP = "it is nested too deeply"


class NotYaml(Exception):
    """Where a text breaks off, counted from 1, and why."""

    def __init__(self, line: int, column: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line
        self.column = column
        self.problem = problem


def compose(text: str) -> Node | None:
    """Return the root node of the one document in a text; None for an empty one.

    Raises:
        NotYaml: it is not YAML, or cannot be read.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.reader import ReaderError

    try:
        return YAML(typ="safe", pure=True).compose(text)  # type: ignore[no-any-return] # Any in its stubs
    except VgpuctlError:  # a signal
        raise
    except MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        problem = " ".join(str(part) for part in (exc.context, exc.problem) if part)
        raise NotYaml(line, column, f"it is not YAML: {problem}") from exc
    except ReaderError as exc:
        before = text[: exc.position] if isinstance(exc.position, int) else ""
        column = len(before) - (before.rfind("\n") + 1) + 1
        raise NotYaml(before.count("\n") + 1, column, "a character that YAML does not allow") from exc
    except RecursionError as exc:
        raise NotYaml(1, 1, DEEP) from exc
    except Exception as exc:  # the parser's own mistakes
        raise NotYaml(1, 1, f"it is not YAML: {exc}") from exc
