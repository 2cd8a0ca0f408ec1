# SPDX-License-Identifier: Apache-2.0
"""Which names a request selects."""

from __future__ import annotations

from typing import Any

import pytest

from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.operations.plans.selection import Candidate, Request, select

VMS = (
    Candidate("vdi-10", ("u10",), labels={"team": "cad"}),
    Candidate("vdi-9", ("u9",)),
    Candidate("odd[1]"),
    Candidate("old", managed=False),
)


def chosen(*texts: str, managed_only: bool = True, **more: Any) -> tuple[str, ...]:
    return select(Request("VM", texts, **more), VMS, managed_only=managed_only).names


def test_names_are_in_the_order_typed_and_a_pattern_sorts_by_number() -> None:
    assert chosen("odd[1]", "vdi-*", "u9") == ("odd[1]", "vdi-9", "vdi-10")
    assert chosen("vdi-{10..9}") == ("vdi-10", "vdi-9")
    assert chosen(everything=True) == ("odd[1]", "vdi-9", "vdi-10")
    assert chosen("vdi-*", labels={"team": "cad"}) == chosen(labels={"team": "cad"}) == ("vdi-10",)


def test_unmanaged_ones_need_their_exact_name() -> None:
    assert chosen("old") == ("old",)
    assert chosen("ol*", managed_only=False) == ("old",)


def test_what_does_not_exist_is_named() -> None:
    with pytest.raises(NotFound) as missing:
        chosen("vdi-{8..9}", "nobody", "x*")
    assert missing.value.facts["missing"] == ["vdi-8", "nobody", "x*"]
    with pytest.raises(NotFound, match="has the label team=x"):
        chosen(labels={"team": "x"})
    with pytest.raises(InvalidInput):
        chosen()
