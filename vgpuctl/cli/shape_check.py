# SPDX-License-Identifier: Apache-2.0
"""Checks that the reply of another host has the shape that `shapes` defines for that command's data.

The schemas of docs/json are made from the same types. Here unknown fields and new enum values are allowed, because a
newer vgpuctl may reply: versions only add fields and values.
"""

from __future__ import annotations

import functools
import types
import typing
from typing import Any, Literal, NotRequired, get_args, get_origin

MAX_NUMBER = 1 << 63
"""vgpuctl never sends a larger number, and Python cannot print one of 5,000 digits."""


def find_mismatch(value: object, shape: Any, path: str = "data") -> str | None:
    """Return where and how a value differs from a shape, None when it does not."""
    origin, arguments = get_origin(shape), get_args(shape)
    if origin in (types.UnionType, typing.Union):
        mismatches = [find_mismatch(value, part, path) for part in arguments]
        return None if None in mismatches else max((item for item in mismatches if item), key=len)
    if origin is Literal:
        fits = any(type(value) is type(choice) for choice in arguments)
        return None if fits else f"{path} is {_type_name(value)}"
    if origin in (list, dict):
        if not isinstance(value, origin):
            return f"{path} is {_type_name(value)}, not {_TYPE_NAMES[origin]}"
        items = enumerate(value) if isinstance(value, list) else value.items()
        return next(
            (mismatch for key, item in items if (mismatch := find_mismatch(item, arguments[-1], f"{path}[{key!r}]"))),
            None,
        )
    if typing.is_typeddict(shape):
        return _find_field_mismatch(value, shape, path)
    return None if _matches_type(value, shape) else f"{path} is {_type_name(value)}"


def _find_field_mismatch(value: object, shape: Any, path: str) -> str | None:
    if not isinstance(value, dict):
        return f"{path} is {_type_name(value)}, not {_TYPE_NAMES[dict]}"
    for name, hint, optional in _typed_dict_fields(shape):
        if name not in value and not optional:
            return f"{path}.{name} is missing"
        mismatch = find_mismatch(value[name], hint, f"{path}.{name}") if name in value else None
        if mismatch:
            return mismatch
    return None


@functools.cache
def _typed_dict_fields(shape: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Return a TypedDict's fields: name, type, and whether it may be missing."""
    hints = typing.get_type_hints(shape, include_extras=True)
    optional = {name: get_origin(hint) is NotRequired for name, hint in hints.items()}
    return tuple((name, get_args(hint)[0] if optional[name] else hint, optional[name]) for name, hint in hints.items())


def _matches_type(value: object, shape: Any) -> bool:
    if shape is object:
        return True
    if shape is None or shape is type(None):
        return value is None
    if isinstance(value, bool) or shape is bool:
        return isinstance(value, bool) and shape is bool
    if isinstance(value, int):
        return shape in (int, float) and abs(value) < MAX_NUMBER
    return isinstance(value, shape)


_TYPE_NAMES = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
}


def _type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), "null")
