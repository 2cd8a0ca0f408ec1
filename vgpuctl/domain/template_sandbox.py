# SPDX-License-Identifier: Apache-2.0
"""The environment in which templates run: jinja2's sandbox, and a limit on the work that one rendering may do.

A template is the operator's own file, so this is about mistakes: nested loops whose product is enormous, or a text that
doubles in a loop. Work is counted, not timed: each turn of a loop, each call and each filter is one, and a range counts
its numbers. So the result does not depend on the host's speed, and neither a signal nor another process is needed to
end a rendering.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import wraps
from math import prod
from typing import TYPE_CHECKING, Any

from jinja2 import StrictUndefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

if TYPE_CHECKING:
    from jinja2 import BytecodeCache
    from jinja2.runtime import Context

MAX_WORK = 100_000
"""Turns of loops, calls and filters of one rendering; a VM with the most devices and pinned CPUs needs a tenth."""

MAX_TEXT_LENGTH = 1 << 18
"""Characters of one text, entries of one list, or a width."""

_MAX_FACTOR = 1 << 32
"""More than any number that a domain's XML multiplies; with larger ones a template could allocate all memory."""

_PADDERS = ("batch", "center", "expandtabs", "indent", "ljust", "rjust", "slice", "wordwrap", "zfill")
_LONG_WIDTH = re.compile(r"[0-9]{5,}|%[-+ #0]*\*")
_REMOVED_GLOBALS = ("lipsum",)
_work: ContextVar[list[int]] = ContextVar("work")


def start_work() -> None:
    """Begin to count the work of one rendering, in this thread."""
    _work.set([0])


def _count(amount: int = 1) -> None:
    counter = _work.get([0])  # without one, jinja2 is folding a constant while it compiles
    counter[0] += amount
    if counter[0] > MAX_WORK:
        raise SecurityError(
            f"it does too much: more than {MAX_WORK} turns of loops, calls and filters; are its loops nested?"
        )


def _limit(value: Any) -> Any:
    """Return a value, unless it is a text or a list beyond the limit."""
    if isinstance(value, (str, list, tuple)) and len(value) > MAX_TEXT_LENGTH:
        raise SecurityError(f"a text or list in it has a length of {len(value)}; at most {MAX_TEXT_LENGTH} is allowed")
    return value


def _limit_arguments(name: str, arguments: tuple[object, ...]) -> None:
    """Refuse arguments of a filter or of a text's method with which its result would be beyond the limit."""
    if name in ("format", "format_map", "%") and _LONG_WIDTH.search(str(arguments[0])):
        raise SecurityError("a format with so large a width is not allowed")
    if name in _PADDERS:
        width = max((abs(value) for value in arguments if isinstance(value, int)), default=0)
        if width > MAX_TEXT_LENGTH:
            raise SecurityError(f"a width of {width} is too large: at most {MAX_TEXT_LENGTH} is allowed")
    if name in ("join", "replace"):
        length = prod(len(value) for value in arguments if isinstance(value, (str, list, tuple)) and value)
        if length > MAX_TEXT_LENGTH:
            raise SecurityError(
                f"{name} could make a text of {length} characters; at most {MAX_TEXT_LENGTH} is allowed"
            )


@pass_context
def _turns(_context: Context, values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values of a loop, and count them."""
    for value in values:
        _count()
        yield value


@pass_context
def _sized(_context: Context, text: Any) -> Any:
    """Return a text that `~` joined, unless it is too long."""
    return _limit(text)


def _counted(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that counts as work and whose result is limited."""

    @wraps(run)
    def counted(*args: Any, **kwargs: Any) -> Any:
        _count()
        values = args if isinstance(args[0], (str, list, tuple, int)) else args[1:]  # some get jinja2's context first
        _limit_arguments(name, (*values, *kwargs.values()))
        return _limit(run(*args, **kwargs))

    return counted


class _CountingNodes(NodeTransformer):
    """Adds the counting filters to loops and joined texts."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _with_filter(node.iter, "_turns")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _with_filter(node, "_sized")


def _with_filter(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, which counts work and refuses numbers and texts that would fill the host's memory."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, cache: BytecodeCache | None) -> None:
        super().__init__(
            undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True, bytecode_cache=cache
        )
        for name in _REMOVED_GLOBALS:
            self.globals.pop(name, None)
        self.filters = {name: _counted(name, run) for name, run in self.filters.items()}
        self.filters |= {"_turns": _turns, "_sized": _sized}

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        """Compile a template, with the counting filters (a hook that jinja2 documents for this)."""
        bounded = _CountingNodes().visit(source)
        return super()._generate(bounded.set_environment(self), *args, **kwargs)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function, a method or a macro, and count it."""
        _count()
        method = getattr(__obj, "__wrapped__", __obj)  # jinja2 wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _limit_arguments(method.__name__, (owner, *args, *kwargs.values()))
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, range):
            _count(len(result))
        return _limit(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `*`, `**`, `+` and `%`."""
        if operator == "%" and isinstance(left, str):
            _limit_arguments("%", (left,))
        if operator == "+" or (operator == "%" and isinstance(left, str)):
            return _limit(super().call_binop(context, operator, left, right))
        numbers = all(isinstance(side, (int, float)) and abs(side) < _MAX_FACTOR for side in (left, right))
        if operator == "**" or not numbers:
            raise SecurityError(f"a template may multiply numbers up to {_MAX_FACTOR} only, not {operator} others")
        return super().call_binop(context, operator, left, right)
