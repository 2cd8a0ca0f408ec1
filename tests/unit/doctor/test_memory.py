# SPDX-License-Identifier: Apache-2.0
"""Memory that VMs with devices lock."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import A4C, a100, assigned, snapshot, vm
from vgpuctl.doctor.check import Verdict
from vgpuctl.doctor.memory import MEMINFO
from vgpuctl.model.numbers import format_mib
from vgpuctl.model.port_values import HypervisorStatus
from vgpuctl.model.vm import VmState

GPU = a100()
OWN = assigned(GPU, A4C)


def meminfo(total_mib: int, free_mib: int) -> dict[str, str]:
    return {MEMINFO: f"MemTotal:  {total_mib * 1024} kB\nMemFree: 1 kB\nMemAvailable:  {free_mib * 1024} kB\n"}


@pytest.mark.parametrize(
    ("state", "total", "free", "verdict"),
    [
        (VmState.RUNNING, 8192, 100, Verdict.OK),
        (VmState.STOPPED, 8192, 4096, Verdict.OK),
        (VmState.STOPPED, 8192, 4095, Verdict.WARN),
        (VmState.RUNNING, 4095, 100, Verdict.WARN),
    ],
)
def test_the_memory_that_is_locked_must_be_there(state, total, free, verdict):
    host = snapshot(GPU, vms=(vm(1, OWN, memory_mib=4096, state=state),))
    result = run_check("locked-memory", host, files=meminfo(total, free))
    assert result.verdict is verdict
    assert f"MemTotal {format_mib(total)}" in finding_text(result)


def test_without_devices_or_figures_it_is_not_checked():
    assert run_check("locked-memory", snapshot(GPU, vms=(vm(1),))).verdict is Verdict.NOT_APPLICABLE
    assert run_check("locked-memory", snapshot(GPU, vms=(vm(1, OWN),))).verdict is Verdict.UNKNOWN
    off = HypervisorStatus(available=False, uri="qemu:///system", reason="refused")
    assert run_check("locked-memory", snapshot(GPU, hypervisor=off)).verdict is Verdict.UNKNOWN
