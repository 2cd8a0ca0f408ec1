# SPDX-License-Identifier: Apache-2.0
"""One lock for a simulated host: threads call it one at a time, as at the kernel's and libvirt's locks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

_Kind = TypeVar("_Kind", bound=type)


def serialize_calls(cls: _Kind) -> _Kind:
    """Make every public method of a class hold its host's lock (`Core.call_lock`) for the whole call."""
    for name, member in list(vars(cls).items()):
        if isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(cls, name, _serialized(member))
    return cls


def _serialized(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def locked_call(self: Any, *args: Any, **named: Any) -> Any:
        with self._core.call_lock:
            return method(self, *args, **named)

    return locked_call
