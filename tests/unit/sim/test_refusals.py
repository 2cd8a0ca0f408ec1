# SPDX-License-Identifier: Apache-2.0
"""The table of refusals has one entry for each situation, and the kernel returns only an errno."""

from __future__ import annotations

import os

import pytest

from vgpuctl.sim.refusals import KernelRefusal, raise_refusal


def test_no_situation_hides_behind_another() -> None:
    assert len(KernelRefusal) == len(KernelRefusal.__members__), "two members of one value would be one"


@pytest.mark.parametrize("refusal", KernelRefusal)
def test_only_the_errno_gets_out(refusal: KernelRefusal) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011
        raise_refusal(refusal)
    assert (caught.value.errno, caught.value.strerror) == (refusal.errno_number, os.strerror(refusal.errno_number))
