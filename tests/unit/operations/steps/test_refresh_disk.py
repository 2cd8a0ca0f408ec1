# SPDX-License-Identifier: Apache-2.0
"""The steps that refresh a disk and make one larger: each is verified, and none touches a disk that the VM uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import Silent, SimulatedHost, create, open_sim_host, picture, request, start, stop
from tests.unit.operations.test_refresh import the_vm
from vgpuctl.errors import InUse, VerifyFailed
from vgpuctl.model.port_values import ImageInfo
from vgpuctl.model.vm import DiskRole
from vgpuctl.operations.execute import execute_plan
from vgpuctl.operations.steps.refresh_disk import DeleteSpareDisk
from vgpuctl.operations.steps.storage import GrowDisk
from vgpuctl.operations.system_disk import disk_switch_plan, new_disk
from vgpuctl.ports.step import Plan
from vgpuctl.value import replace

BASE = "/srv/images/ubuntu-24.04.qcow2"


@pytest.fixture
def host(tmp_path):
    made = open_sim_host(tmp_path)
    create(made.ports, request("A100-4C", name="vm", image=BASE), start=False)
    return made


@pytest.fixture
def steps(host):
    """Record, make and switch."""
    vm = the_vm(host)
    old = vm.record.disks[0]
    image = ImageInfo(BASE, "qcow2", 1, "both")
    new, spare = new_disk(old, image, "n.qcow2"), replace(old, role=DiskRole.SPARE)
    return disk_switch_plan(vm, vm.record, old, new, image, None, (spare,)).steps


def test_each_is_read_back_and_taken_back(host, steps):
    before = picture(host)
    for step in steps:
        with pytest.raises(VerifyFailed):
            step.verify(host.ports)
        step.perform(host.ports)
        step.verify(host.ports)
    assert the_vm(host).disks[0].source.endswith("/n.qcow2")
    for step in reversed(steps):
        step.undo(host.ports)
        step.undo(host.ports)
    assert picture(host) == before


def test_the_switch_is_refused_while_the_vm_runs_or_when_its_record_changed(host, steps):
    record, make, switch = steps
    make.perform(host.ports)
    with pytest.raises(InUse, match="changed by another program"):
        switch.perform(host.ports)
    record.perform(host.ports)
    start(host.ports, "vm")
    before = picture(host)
    with pytest.raises(InUse, match="has just been started"):
        switch.perform(host.ports)
    assert picture(host) == before


def test_a_vm_started_during_the_switch_is_seen_on_its_former_disk(host, steps):
    record, make, switch = steps
    record.perform(host.ports)
    make.perform(host.ports)
    start(host.ports, "vm")
    switch._define(host.ports, switch.old_path, switch.new_path, switch.written)
    with pytest.raises(VerifyFailed, match=r"not only .*n\.qcow2"):
        switch.verify(host.ports)
    drop = DeleteSpareDisk("vm", the_vm(host).uuid, switch.new_record.disks[-1])
    with pytest.raises(InUse, match="vm uses"):
        drop.perform(host.ports)
    stop(host.ports, "vm")
    switch.undo(host.ports)
    assert the_vm(host).disks[0].source == switch.old_path


def test_the_new_disk_stays_where_the_switch_could_not_be_taken_back(host, steps):
    for step in steps:
        step.perform(host.ports)
    before = picture(host)
    with pytest.raises(InUse, match="vm uses"):
        steps[1].undo(host.ports)
    assert picture(host) == before


def test_a_switch_to_a_disk_that_somebody_deleted_is_taken_back(host, steps):
    record, make, switch = steps
    record.perform(host.ports)
    make.perform(host.ports)
    DeleteSpareDisk("vm", the_vm(host).uuid, make.disk).perform(host.ports)
    before = picture(host)
    with pytest.raises(VerifyFailed, match="does not exist"):
        execute_plan(host.ports, Plan((switch,)), Silent())
    assert picture(host) == before


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
