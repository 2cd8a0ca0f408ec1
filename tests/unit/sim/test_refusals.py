# SPDX-License-Identifier: Apache-2.0
"""The table of refusals has one entry for each situation, and the kernel returns only an errno.

Error numbers equal those of libvirt's library, and every call has its text.
"""

from __future__ import annotations

import os

import pytest

from vgpuctl.sim import faults
from vgpuctl.sim.refusals import _LIBVIRT_CALLS, KernelRefusal, VirErrorNumber, raise_refusal


def test_no_situation_hides_behind_another() -> None:
    assert len(KernelRefusal) == len(KernelRefusal.__members__), "two members of one value would be one"


@pytest.mark.parametrize("refusal", KernelRefusal)
def test_only_the_errno_gets_out(refusal: KernelRefusal) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011
        raise_refusal(refusal)
    assert (caught.value.errno, caught.value.strerror) == (refusal.errno_number, os.strerror(refusal.errno_number))


@pytest.mark.parametrize("code", VirErrorNumber)
def test_numbers_are_libvirts(code: VirErrorNumber) -> None:
    import libvirt

    assert getattr(libvirt, f"VIR_ERR_{code.name}") == code


def test_every_call_that_can_fail_has_words() -> None:
    others = ("sysfs", "nvml", "sriov-manage", "reset-gpu")
    assert {call for call in faults.CALLS if not call.startswith(others)} <= set(_LIBVIRT_CALLS)
