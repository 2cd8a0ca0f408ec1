# SPDX-License-Identifier: Apache-2.0
"""What every record of the program is: an immutable value with named fields.

`dataclasses` would write and compile six functions for each class, at every start of the program: a third of a
millisecond a class, on more than a hundred classes. Here all classes share the functions below, so that making a
class costs nearly nothing; type checkers see a frozen dataclass (PEP 681). `tests/bench` has the figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, dataclass_transform

NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""The default of a field that is a mapping."""

AnyValue = TypeVar("AnyValue", bound="Value")


@dataclass_transform(frozen_default=True)
class Value:
    """Base of the records. A subclass annotates its fields in order; a value beside one is its default.

    Equal are two of the same class with equal fields; a value is hashable when its fields are. A default is
    shared by all, so it must be immutable.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _required: ClassVar[frozenset[str]] = frozenset()
    _known: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        own = [name for name, kind in cls.__annotations__.items() if not str(kind).startswith("ClassVar")]
        cls._fields = (*cls._fields, *own)
        cls._required = cls._required.union(name for name in own if name not in cls.__dict__)
        cls._known = frozenset(cls._fields)

    def __init__(self, *args: Any, **named: Any) -> None:
        kind = type(self)
        given = named
        if args:
            given = {**dict(zip(kind._fields, args, strict=False)), **named}
        once = len(given) == len(args) + len(named)
        if not once or not kind._known.issuperset(given) or not kind._required.issubset(given):
            words = ", ".join([*kind._fields[: len(args)], *named])
            raise TypeError(f"{kind.__name__} takes each of {', '.join(kind._fields)} once; given: {words}")
        object.__setattr__(self, "__dict__", given)  # a dict of this call's own, so it need not be copied

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set: use replace()")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and _values(self) == _values(other))

    def __hash__(self) -> int:
        return hash((type(self), _values(self)))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, _values(self), strict=True))
        return f"{type(self).__name__}({fields})"


def field_names(kind: type[Value] | Value) -> tuple[str, ...]:
    """Return the names of the fields in the order of their declaration."""
    return kind._fields


def as_dict(value: Value) -> dict[str, Any]:
    """Return the fields by name, and so for every value in them, also within tuples and mappings."""
    return {name: _deep(getattr(value, name)) for name in value._fields}


def replace(value: AnyValue, **changes: Any) -> AnyValue:
    """Return a copy with some fields changed.

    Raises:
        TypeError: a name is not a field.
    """
    return type(value)(**{**value.__dict__, **changes})


def _values(value: Value) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in value._fields)


def _deep(value: object) -> object:
    if isinstance(value, Value):
        return as_dict(value)
    if isinstance(value, tuple):
        return tuple(_deep(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _deep(item) for key, item in value.items()}
    return value
