# SPDX-License-Identifier: Apache-2.0
"""A shape finds every problem of a mapping at once and says where each is."""

from __future__ import annotations

import pytest

from vgpuctl.config.rules import Problem, ValidationError, as_text, whole_number
from vgpuctl.config.shape import Key, Shape, single_or_list

INNER = Shape("Inner", "inner", (Key("size", whole_number(1, 9), "size"),))
SHAPE = Shape(
    "Outer",
    "outer",
    (
        Key("version", whole_number(1, 1), "version", required=True),
        Key("names", single_or_list(as_text), "names"),
        Key("inner", INNER.check, "inner", nested_shape=INNER),
    ),
    lambda fields: (Problem(("names",), "not with inner"),) if fields.keys() >= {"names", "inner"} else (),
)


def problems(value: object) -> tuple[Problem, ...]:
    with pytest.raises(ValidationError) as caught:
        SHAPE.check(value)
    return caught.value.problems


def test_given_fields_are_checked_and_ordered() -> None:
    assert list(SHAPE.check({"inner": {"size": 2}, "version": 1, "names": None}).items()) == [
        ("version", 1),
        ("inner", {"size": 2}),
    ]
    assert SHAPE.check({"version": 1, "names": "a"})["names"] == ("a",)


def test_every_problem_has_its_path() -> None:
    assert problems({"names": ["a", 1, 2], "inner": {"siz": 1, "size": 10}, "ohter": 1}) == (
        Problem(("ohter",), "unknown field", at_key=True),
        Problem(("version",), "missing"),
        Problem(("names", 1), "1 is not text: put it in quotes"),
        Problem(("names", 2), "2 is not text: put it in quotes"),
        Problem(("inner", "siz"), "unknown field (did you mean 'size'?)", at_key=True),
        Problem(("inner", "size"), "10 is not between 1 and 9"),
        Problem(("names",), "not with inner"),
    )


@pytest.mark.parametrize("value", [None, 1, "a", [{}]])
def test_a_non_mapping_is_refused(value: object) -> None:
    assert problems(value) == (Problem((), "expected a mapping (key: value)"),)


def test_a_required_key_is_not_null() -> None:
    assert problems({"version": None}) == (Problem(("version",), "null is not a whole number"),)


def test_many_unknown_fields_are_counted() -> None:
    with pytest.raises(ValidationError) as caught:
        Shape("S", "", ()).check({f"f{number}": 1 for number in range(5000)})
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1].text == "5000 unknown fields; the first 20 are listed"
