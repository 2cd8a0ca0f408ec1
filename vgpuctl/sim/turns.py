# SPDX-License-Identifier: Apache-2.0
"""Threads of one process take turns on a simulated host, call by call, as they do at a kernel's and libvirt's locks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

_Kind = TypeVar("_Kind", bound=type)


def in_turn(kind: _Kind) -> _Kind:
    """Have every public method of a class hold its host's turn (`Core.turn`) from beginning to end."""
    for name, found in list(vars(kind).items()):
        if isinstance(found, FunctionType) and not name.startswith("_"):
            setattr(kind, name, _turned(found))
    return kind


def _turned(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        with self._core.turn:
            return method(self, *args, **named)

    return call
