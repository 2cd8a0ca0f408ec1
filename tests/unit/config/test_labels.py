# SPDX-License-Identifier: Apache-2.0
"""Labels, their changes, and owners."""

from __future__ import annotations

import pytest

from vgpuctl.config.labels import labels, owner, parse_changes, parse_selector
from vgpuctl.errors import InvalidInput


def test_labels_come_from_a_mapping_a_text_or_a_list() -> None:
    assert labels({"b": "2", "a": ""}) == {"a": "", "b": "2"}
    assert labels("team=cad") == {"team": "cad"}
    assert labels(["a/b.c-d_e=x=y".partition("=x")[0] + "=x", "z=1"]) == {"a/b.c-d_e": "x", "z": "1"}


@pytest.mark.parametrize(
    "value", ["a", "=b", "a b=c", "-a=b", "a=b c", f"{'k' * 64}=v", ["a=1", "a=2"], 5, [f"k{n}=v" for n in range(33)]]
)
def test_other_labels_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        labels(value)


def test_changes_set_and_remove() -> None:
    assert parse_changes(["a=1", "b-"]) == {"a": "1", "b": None}
    for wrong in (["a"], ["a=1", "a-"], ["-"]):
        with pytest.raises(InvalidInput):
            parse_changes(wrong)


def test_a_selector_names_each_key_once() -> None:
    assert parse_selector(("a=1", "b=2")) == {"a": "1", "b": "2"}
    with pytest.raises(InvalidInput):
        parse_selector(("a=1", "a=2"))


@pytest.mark.parametrize("value", ["", " a", "a\n", "x" * 65, 5])
def test_an_owner_is_visible_and_short(value: object) -> None:
    assert owner("Jane Doe") == "Jane Doe"
    with pytest.raises(ValueError, match=r"."):
        owner(value)


def test_too_many_labels_are_refused_before_they_are_checked():
    with pytest.raises(ValueError, match="60000 labels are too many: a VM has at most 32"):
        labels({f"not a key {number}": "x" for number in range(60_000)})
