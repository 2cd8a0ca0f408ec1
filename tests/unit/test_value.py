# SPDX-License-Identifier: Apache-2.0
"""Records: immutable, equal by class and fields, made by place or name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from vgpuctl.value import EMPTY_MAPPING, Value, as_dict, field_names, replace


class Point(Value):
    unit: ClassVar[str] = "mib"
    x: int
    y: int = 0


class Named(Point):
    name: str
    notes: Mapping[str, Any] = EMPTY_MAPPING


class Other(Value):
    x: int
    y: int = 0


def test_a_subclass_adds_its_fields_after_those_of_its_base() -> None:
    assert field_names(Named) == ("x", "y", "name", "notes")
    assert Named(1, name="a") == Named(x=1, y=0, name="a", notes={})


def test_equal_class_and_fields_are_equal() -> None:
    assert Point(1) == Point(1, 0) != Point(1, 1)
    assert Point(1) != Other(1)
    assert Point(1) != (1, 0)
    assert len({Point(1), Point(1, 0), Other(1)}) == 2
    assert repr(Point(1)) == "Point(x=1, y=0)"


def test_a_value_never_changes() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match=r"Point\.x cannot be set"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del point.x
    assert replace(point, y=5) == Point(1, 5)
    assert point == Point(1)


@pytest.mark.parametrize(
    ("args", "named"),
    [((), {}), ((1, 2, 3), {}), ((1,), {"x": 1}), ((1,), {"z": 1}), ((), {"y": 1}), ((1,), {"unit": "b"})],
)
def test_missing_surplus_and_unknown_fields_are_refused(args: tuple[int, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Point"):
        Point(*args, **named)
    with pytest.raises(TypeError, match="Point"):
        replace(Point(1), z=1)


def test_as_dict_goes_into_tuples_and_mappings() -> None:
    deep = Named(1, 2, "a", {"k": (Point(3), "s")})
    assert as_dict(deep) == {"x": 1, "y": 2, "name": "a", "notes": {"k": ({"x": 3, "y": 0}, "s")}}
