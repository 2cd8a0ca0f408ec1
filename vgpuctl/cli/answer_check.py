# SPDX-License-Identifier: Apache-2.0
"""Says whether what another host answered has the shape that `shapes` gives that command's data.

The schemas of docs/json are made from the same types. Here a field may be unknown and a word new, because a newer
vgpuctl may answer: fields and words are only added.
"""

from __future__ import annotations

import functools
import types
import typing
from typing import Any, Literal, NotRequired, get_args, get_origin

MOST_NUMBER = 1 << 63
"""No number of ours is larger, and Python cannot print one of 5,000 digits."""


def misfit(value: object, shape: Any, where: str = "data") -> str | None:
    """Return where and how a value differs from a shape, None when it does not."""
    origin, arguments = get_origin(shape), get_args(shape)
    if origin in (types.UnionType, typing.Union):
        found = [misfit(value, part, where) for part in arguments]
        return None if None in found else max((one for one in found if one), key=len)
    if origin is Literal:
        fits = any(type(value) is type(word) for word in arguments)
        return None if fits else f"{where} is {_kind(value)}"
    if origin in (list, dict):
        if not isinstance(value, origin):
            return f"{where} is {_kind(value)}, not {_KINDS[origin]}"
        items = enumerate(value) if isinstance(value, list) else value.items()
        return next((bad for key, one in items if (bad := misfit(one, arguments[-1], f"{where}[{key!r}]"))), None)
    if typing.is_typeddict(shape):
        return _misfit_fields(value, shape, where)
    return None if _is(value, shape) else f"{where} is {_kind(value)}"


def _misfit_fields(value: object, shape: Any, where: str) -> str | None:
    if not isinstance(value, dict):
        return f"{where} is {_kind(value)}, not {_KINDS[dict]}"
    for name, hint, optional in _fields(shape):
        if name not in value and not optional:
            return f"{where}.{name} is missing"
        bad = misfit(value[name], hint, f"{where}.{name}") if name in value else None
        if bad:
            return bad
    return None


@functools.cache
def _fields(shape: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Return a TypedDict's fields: name, type, and whether it may be missing."""
    hints = typing.get_type_hints(shape, include_extras=True)
    optional = {name: get_origin(hint) is NotRequired for name, hint in hints.items()}
    return tuple((name, get_args(hint)[0] if optional[name] else hint, optional[name]) for name, hint in hints.items())


def _is(value: object, shape: Any) -> bool:
    if shape is object:
        return True
    if shape is None or shape is type(None):
        return value is None
    if isinstance(value, bool) or shape is bool:
        return isinstance(value, bool) and shape is bool
    if isinstance(value, int):
        return shape in (int, float) and abs(value) < MOST_NUMBER
    return isinstance(value, shape)


_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "null")
