# SPDX-License-Identifier: Apache-2.0
"""A hint names a command that does not refuse the VM, quoted for the shell."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, assigned
from vgpuctl.model.hint_commands import remove_transient_command, start_command, stop_command
from vgpuctl.model.vm import RecordState, Vm, VmRecord, VmState
from vgpuctl.value import replace

MADE = VmRecord(state=RecordState.READY, vm_uuid="u", machine_id="m", vgpus=(), disks=(), request_json="{}")
VGPU = assigned(a100(), A4C)


@pytest.mark.parametrize(
    ("record", "start", "stop", "force", "remove"),
    [
        (None, "virsh start 'a b'", "virsh shutdown 'a b'", "virsh destroy 'a b'", "virsh destroy 'a b'"),
        (MADE, "vgpuctl start-vm 'a b'", "vgpuctl stop-vm 'a b'", "vgpuctl stop-vm 'a b' --force",
         "vgpuctl delete-vm 'a b'"),
    ],
)  # fmt: skip
def test_a_vm_without_a_record_is_virshs(record: VmRecord | None, start: str, stop: str, force: str, remove: str):
    vm = Vm("a b", "u", VmState.RUNNING, 1, 1, record=record)
    assert (start_command(vm), stop_command(vm), stop_command(vm, force=True), remove_transient_command(vm)) == (
        start,
        stop,
        force,
        remove,
    )


def test_a_vm_that_is_half_way_is_stopped_by_virsh():
    vm = Vm("a", "u", VmState.RUNNING, 1, 1, record=replace(MADE, state=RecordState.REMOVING))
    assert (stop_command(vm), stop_command(vm, force=True)) == ("virsh shutdown a", "virsh destroy a")
