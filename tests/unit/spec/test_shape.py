# SPDX-License-Identifier: Apache-2.0
"""A shape finds every problem of a mapping at once and says where each is."""

from __future__ import annotations

import pytest

from vgpuctl.spec.rules import Problem, Refused, as_text, whole_number
from vgpuctl.spec.shape import Key, Shape, one_or_more

INNER = Shape("Inner", "inner", (Key("size", whole_number(1, 9), "size"),))
SHAPE = Shape(
    "Outer",
    "outer",
    (
        Key("version", whole_number(1, 1), "version", required=True),
        Key("names", one_or_more(as_text), "names"),
        Key("inner", INNER.check, "inner", shape=INNER),
    ),
    lambda fields: (Problem(("names",), "not with inner"),) if fields.keys() >= {"names", "inner"} else (),
)


def problems(value: object) -> tuple[Problem, ...]:
    with pytest.raises(Refused) as caught:
        SHAPE.check(value)
    return caught.value.problems


def test_what_was_given_comes_out_checked_and_in_order() -> None:
    assert list(SHAPE.check({"inner": {"size": 2}, "version": 1, "names": None}).items()) == [
        ("version", 1),
        ("inner", {"size": 2}),
    ]
    assert SHAPE.check({"version": 1, "names": "a"})["names"] == ("a",)


def test_every_problem_is_told_with_its_path() -> None:
    assert problems({"names": ["a", 1, 2], "inner": {"siz": 1, "size": 10}, "ohter": 1}) == (
        Problem(("ohter",), "there is no such field", at_key=True),
        Problem(("version",), "it is missing"),
        Problem(("names", 1), "1 is not text: put it in quotes"),
        Problem(("names", 2), "2 is not text: put it in quotes"),
        Problem(("inner", "siz"), "there is no such field (did you mean 'size'?)", at_key=True),
        Problem(("inner", "size"), "10 is not between 1 and 9"),
        Problem(("names",), "not with inner"),
    )


@pytest.mark.parametrize("value", [None, 1, "a", [{}]])
def test_what_is_no_mapping_is_told(value: object) -> None:
    assert problems(value) == (Problem((), "a mapping of fields (key: value) is due here"),)


def test_a_required_key_may_not_be_null() -> None:
    assert problems({"version": None}) == (Problem(("version",), "null is not a whole number"),)
