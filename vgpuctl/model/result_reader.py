# SPDX-License-Identifier: Apache-2.0
"""Reads the result of a command from the document of another host: the record that the local command would return.

The schemas of docs/json are made from the same types. Here unknown fields and new words are allowed, because a newer
vgpuctl may reply: versions only add fields and words.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.results import ABSENT, Absent, WorkResult
from vgpuctl.value import Value

_UNIONS = (types.UnionType, typing.Union)
MAX_NUMBER = 1 << 63
"""vgpuctl never sends a larger number, and Python cannot print one of 5,000 digits."""


class Mismatch(ValueError):
    """A value has not the type of its field: where, and what it is instead."""


def read_result(kind: object, document: Mapping[str, Any]) -> Outcome[Any] | QueryResult[Any]:
    """Return the result in a document. `kind`: its type, of `schemas.result_type`.

    Raises:
        Mismatch: a field is missing, or has another type.
    """
    data, changed = document["data"], bool(document.get("changed"))
    warnings = tuple(map(str, document["warnings"])) if isinstance(document.get("warnings"), list) else ()

    def read_as(part: object) -> Outcome[Any] | QueryResult[Any]:
        record = read_value(get_args(part)[0], data)
        if get_origin(part) is QueryResult:
            return QueryResult(record, warnings, changed)
        work: WorkResult = read_value(WorkResult, data)
        return Outcome(changed, record, work.steps, warnings, work.notes, work.dry_run)

    result: Outcome[Any] | QueryResult[Any] = _read_first(get_args(kind) if _is_union(kind) else (kind,), read_as)
    return result


def read_value(kind: Any, value: object, path: str = "data") -> Any:
    """Return a JSON value as a type: objects as records, lists as tuples.

    Raises:
        Mismatch: as `read_result`.
    """
    if (kind is str and type(value) is str) or kind is Any:  # most values of a long list are texts
        return value
    origin, arguments = _parts(kind)
    if origin in _UNIONS:
        if value is None and type(None) in arguments:
            return None
        return _read_first(arguments, lambda part: read_value(part, value, path))
    if origin is Literal:
        return _require(any(type(value) is type(choice) for choice in arguments), value, path)
    if origin is Annotated:
        return read_value(arguments[0], value, path)
    if origin in (tuple, Sequence):
        items = value if isinstance(value, list) else _require(False, value, path, list)
        return tuple(read_value(arguments[0], item, f"{path}[{number}]") for number, item in enumerate(items))
    if origin is Mapping:
        pairs = value if isinstance(value, dict) else _require(False, value, path, dict)
        return {key: read_value(arguments[1], item, f"{path}[{key!r}]") for key, item in pairs.items()}
    if is_record(kind):
        return _read_record(kind, value, path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        _require(isinstance(value, str) and kind is not Absent, value, path)
        return next((member for member in kind if member.value == value), value)
    return _require(_matches_type(value, kind), value, path, kind if kind in _TYPE_NAMES else None)


def _read_first(parts: tuple[Any, ...], read: Callable[[Any], Any]) -> Any:
    """Return what the first part of a union reads; if none can, the mismatch that was found farthest in."""
    mismatches = []
    for part in parts:
        try:
            return read(part)
        except Mismatch as mismatch:
            mismatches.append(mismatch)
    raise max(mismatches, key=lambda mismatch: len(str(mismatch)))


def _may_be_unknown(hint: Any) -> bool:
    """Return whether None is a value: what a host of an older version does not send is unknown then."""
    return type(None) in get_args(hint)


def _read_record(kind: Any, value: object, path: str) -> Value:
    fields = value if isinstance(value, dict) else _require(False, value, path, dict)
    given: dict[str, Any] = {}
    for name, json_name, hint, optional in typed_fields(kind):
        if json_name in fields:
            given[name] = read_value(hint, fields[json_name], f"{path}.{json_name}")
        elif not optional and not _may_be_unknown(hint):
            raise Mismatch(f"{path}.{json_name} is missing")
        elif not optional:
            given[name] = None
    record: Value = (get_origin(kind) or kind)(**given)
    return record


@functools.cache
def typed_fields(kind: Any) -> tuple[tuple[str, str, Any, bool], ...]:
    """Return the fields of a record's class: name, name in JSON, type, and whether it may be absent.

    Only schemas and replies of other hosts need the types: a local command does not wait for `get_type_hints`.
    """
    record: Any = get_origin(kind) or kind
    hints = typing.get_type_hints(record, include_extras=True)
    return tuple(
        (name, name.rstrip("_"), _substitute(hints[name], kind), getattr(record, name, None) is ABSENT)
        for name in record._fields
    )


@functools.cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(kind), get_args(kind)


@functools.cache
def is_record(kind: Any) -> bool:
    """Return whether a type is a record's class, or a generic one with its arguments."""
    record = get_origin(kind) or kind
    return isinstance(record, type) and issubclass(record, Value)


def _substitute(hint: Any, kind: Any) -> Any:
    """Return the type of a field of a generic record, with the record's arguments in it."""
    if isinstance(hint, typing.TypeVar):
        return get_args(kind)[0]
    parameters: tuple[object, ...] = getattr(hint, "__parameters__", ())
    return hint[get_args(kind)] if parameters and get_origin(kind) is not None else hint


def _is_union(kind: object) -> bool:
    return get_origin(kind) in _UNIONS


def _matches_type(value: object, kind: Any) -> bool:
    if kind is object:
        return True
    if kind is None or kind is type(None):
        return value is None
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if isinstance(value, int):
        return kind in (int, float) and abs(value) < MAX_NUMBER
    return isinstance(value, kind)


def _require(fits: bool, value: object, path: str, kind: type | None = None) -> Any:
    if not fits:
        expected = f", not {_TYPE_NAMES[kind]}" if kind is not None else ""
        raise Mismatch(f"{path} is {_TYPE_NAMES.get(type(value), 'null')}{expected}")
    return value


_TYPE_NAMES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
}
