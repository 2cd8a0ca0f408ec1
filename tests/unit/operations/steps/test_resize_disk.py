# SPDX-License-Identifier: Apache-2.0
"""The step that makes a disk larger: it changes nothing on a VM that was started or stopped meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, create, open_sim_host, request, start
from tests.unit.operations.test_refresh import the_vm
from vgpuctl.errors import InUse, VerifyFailed
from vgpuctl.operations.steps.storage import GrowDisk
from vgpuctl.value import replace

SCENARIO = """version: 1
storage: {pools: [{name: default}, {name: vg0, kind: logical, capacity_gib: 200}]}
images: [{path: /old.qcow2, size_gib: 20, firmware: both}]
gpus: [{model: A100, vfs: {total: 3, enabled: 3}}]
"""
GIB = 1 << 30


def prepared(directory: Path, pool: str) -> tuple[SimulatedHost, GrowDisk]:
    host = open_sim_host(directory, text=SCENARIO)
    create(host.ports, request("A100-4C", name="vm", image="/old.qcow2", storage_pool=pool), start=False)
    vm = the_vm(host)
    assert vm.record is not None
    return host, GrowDisk("vm", vm.uuid, vm.record.disks[0], 30 * GIB, live=False)


@pytest.mark.parametrize("pool", ["default", "vg0"])
def test_it_is_read_back_and_cannot_be_undone(tmp_path: Path, pool: str) -> None:
    host, step = prepared(tmp_path, pool)
    with pytest.raises(VerifyFailed, match="has 20 GiB"):
        step.verify(host.ports)
    step.undo(host.ports)
    step.perform(host.ports)
    step.verify(host.ports)
    with pytest.raises(VerifyFailed, match="has 30 GiB now"):
        step.undo(host.ports)


@pytest.mark.parametrize("pool", ["default", "vg0"])
def test_a_vm_in_another_state_is_left_alone(tmp_path: Path, pool: str) -> None:
    host, step = prepared(tmp_path, pool)
    with pytest.raises(InUse, match="was stopped"):
        replace(step, live=True).perform(host.ports)
    start(host.ports, "vm")
    with pytest.raises(InUse, match="was started"):
        step.perform(host.ports)
    step.undo(host.ports)
    replace(step, live=True).perform(host.ports)
    step.verify(host.ports)
