# SPDX-License-Identifier: Apache-2.0
"""Error numbers equal those of libvirt's library, and every call has its text."""

from __future__ import annotations

import pytest

from vgpuctl.sim import faults
from vgpuctl.sim.libvirt_errors import _LIBVIRT_CALLS, VirErrorNumber


@pytest.mark.parametrize("code", VirErrorNumber)
def test_numbers_are_libvirts(code: VirErrorNumber) -> None:
    import libvirt

    assert getattr(libvirt, f"VIR_ERR_{code.name}") == code


def test_every_call_that_can_fail_has_words() -> None:
    others = ("sysfs", "nvml", "sriov-manage", "reset-gpu")
    assert {call for call in faults.CALLS if not call.startswith(others)} <= set(_LIBVIRT_CALLS)
