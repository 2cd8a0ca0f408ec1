# SPDX-License-Identifier: Apache-2.0
"""A hint names a command that does not refuse the VM, quoted for the shell."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, promised
from vgpuctl.model.commands import to_remove_transient, to_start, to_stop
from vgpuctl.model.vm import Exchange, Promise, PromiseState, Vm, VmState
from vgpuctl.value import replace

MADE = Promise(state=PromiseState.READY, vm_uuid="u", machine_id="m", vgpus=(), disks=(), spec="{}")
VGPU = promised(a100(), A4C)


@pytest.mark.parametrize(
    ("promise", "start", "stop", "force", "remove"),
    [
        (None, "virsh start 'a b'", "virsh shutdown 'a b'", "virsh destroy 'a b'", "virsh destroy 'a b'"),
        (MADE, "vgpuctl start-vm 'a b'", "vgpuctl stop-vm 'a b'", "vgpuctl stop-vm 'a b' --force",
         "vgpuctl delete-vm 'a b'"),
    ],
)  # fmt: skip
def test_a_vm_without_a_record_is_virshs(promise: Promise | None, start: str, stop: str, force: str, remove: str):
    vm = Vm("a b", "u", VmState.RUNNING, 1, 1, promise=promise)
    assert (to_start(vm), to_stop(vm), to_stop(vm, force=True), to_remove_transient(vm)) == (start, stop, force, remove)


def test_a_vm_that_is_half_way_is_stopped_by_virsh():
    for promise in (replace(MADE, state=PromiseState.REMOVING), replace(MADE, exchange=Exchange("a", VGPU, "v", "b"))):
        vm = Vm("a", "u", VmState.RUNNING, 1, 1, promise=promise)
        assert (to_stop(vm), to_stop(vm, force=True)) == ("virsh shutdown a", "virsh destroy a")
