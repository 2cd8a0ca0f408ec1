# SPDX-License-Identifier: Apache-2.0
"""The base class of the program's data types: an immutable value with named fields.

`dataclasses` would generate and compile six functions for each class at every start of the program. That costs a third
of a millisecond per class, for more than a hundred classes. Here all classes share the functions below, so defining a
class costs nearly nothing. Type checkers see a frozen dataclass (PEP 681). `tests/bench` has the figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, dataclass_transform

EMPTY_MAPPING: Mapping[Any, Any] = MappingProxyType({})
"""The default of a field that is a mapping."""

AnyValue = TypeVar("AnyValue", bound="Value")


@dataclass_transform(frozen_default=True)
class Value:
    """An immutable value. A subclass annotates its fields in order; a value assigned to a field is its default.

    Two values are equal if they have the same class and equal fields. A value is hashable if its fields are. All
    instances share a default, so it must be immutable.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _required: ClassVar[frozenset[str]] = frozenset()
    _field_set: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        own = [name for name, kind in cls.__annotations__.items() if not str(kind).startswith("ClassVar")]
        cls._fields = (*cls._fields, *own)
        cls._required = cls._required.union(name for name in own if name not in cls.__dict__)
        cls._field_set = frozenset(cls._fields)
        super().__init_subclass__()

    def __init__(self, *args: Any, **named: Any) -> None:
        kind = type(self)
        given = named
        if args:
            given = {**dict(zip(kind._fields, args, strict=False)), **named}
        no_duplicates = len(given) == len(args) + len(named)
        if not no_duplicates or not kind._field_set.issuperset(given) or not kind._required.issubset(given):
            given_names = ", ".join([*kind._fields[: len(args)], *named])
            raise TypeError(f"{kind.__name__} takes each of {', '.join(kind._fields)} once; given: {given_names}")
        object.__setattr__(self, "__dict__", given)  # this call's own dict, so no copy is needed

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set: use replace()")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and _field_values(self) == _field_values(other))

    def __hash__(self) -> int:
        return hash((type(self), _field_values(self)))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, _field_values(self), strict=True))
        return f"{type(self).__name__}({fields})"


def field_names(kind: type[Value] | Value) -> tuple[str, ...]:
    """Return the names of the fields in declaration order."""
    return kind._fields


def as_dict(value: Value) -> dict[str, Any]:
    """Return the fields by name; nested values, also those in tuples and mappings, become dicts too."""
    return {name: _convert_nested(getattr(value, name)) for name in value._fields}


def replace(value: AnyValue, **changes: Any) -> AnyValue:
    """Return a copy with some fields changed.

    Raises:
        TypeError: a name in `changes` is not a field.
    """
    return type(value)(**{**value.__dict__, **changes})


def extend(kind: type[AnyValue], value: Value, **more: Any) -> AnyValue:
    """Return a value of another class that has the fields of `value`, and more.

    Raises:
        TypeError: the class has no such field, or needs others.
    """
    return kind(**{**value.__dict__, **more})


def _field_values(value: Value) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in value._fields)


def _convert_nested(value: object) -> object:
    if isinstance(value, Value):
        return as_dict(value)
    if isinstance(value, tuple):
        return tuple(_convert_nested(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _convert_nested(item) for key, item in value.items()}
    return value
