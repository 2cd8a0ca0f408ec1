# SPDX-License-Identifier: Apache-2.0
"""Parses YAML into a tree of nodes with line numbers; every parser failure becomes one error type.

ruamel.yaml raises more than its own errors: RecursionError for deep nesting, ValueError and OverflowError for an
escape that is no character. Nothing expands aliases, so a tree is at most as large as its text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import VgpuctlError
from vgpuctl.lazy_module import LazyModule

if TYPE_CHECKING:
    from ruamel import yaml
    from ruamel.yaml import error, reader
    from ruamel.yaml.nodes import Node
else:
    yaml = LazyModule("ruamel.yaml")
    error = LazyModule("ruamel.yaml.error")
    reader = LazyModule("ruamel.yaml.reader")

TOO_DEEP_PROBLEM = "it is nested too deeply"


class YamlError(Exception):
    """Where parsing failed, counted from 1, and why."""

    def __init__(self, line: int, column: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line
        self.column = column
        self.problem = problem


def compose_yaml(text: str) -> Node | None:
    """Return the root node of the only document in a text; None for an empty text.

    Raises:
        YamlError: the text is not YAML, or cannot be parsed.
    """
    try:
        return yaml.YAML(typ="safe", pure=True).compose(text)  # type: ignore[no-any-return] # Any in its stubs
    except VgpuctlError:  # a signal
        raise
    except error.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        problem = " ".join(str(part) for part in (exc.context, exc.problem) if part)
        raise YamlError(line, column, f"it is not YAML: {problem}") from exc
    except reader.ReaderError as exc:
        before = text[: exc.position] if isinstance(exc.position, int) else ""
        column = len(before) - (before.rfind("\n") + 1) + 1
        raise YamlError(before.count("\n") + 1, column, "a character that YAML does not allow") from exc
    except RecursionError as exc:
        raise YamlError(1, 1, TOO_DEEP_PROBLEM) from exc
    except Exception as exc:  # the parser's own bugs
        raise YamlError(1, 1, f"it is not YAML: {exc}") from exc
