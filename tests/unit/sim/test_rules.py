# SPDX-License-Identifier: Apache-2.0
"""The table of refusals is one entry for each situation, and the kernel says no more than an errno."""

from __future__ import annotations

import os

import pytest

from vgpuctl.sim.rules import Refusal, refuse


def test_no_situation_hides_behind_another() -> None:
    assert len(Refusal) == len(Refusal.__members__), "two members of one value would be one"


@pytest.mark.parametrize("refusal", Refusal)
def test_only_the_errno_gets_out(refusal: Refusal) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011
        refuse(refusal)
    assert (caught.value.errno, caught.value.strerror) == (refusal.number, os.strerror(refusal.number))
