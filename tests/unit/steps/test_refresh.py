# SPDX-License-Identifier: Apache-2.0
"""The steps of a refresh: each is read back, and none deletes a disk that the VM uses."""

from __future__ import annotations

import pytest

from tests.worlds import Silent, create, open_host, picture, start, stop, wish
from vgpuctl.domain.parse import parse
from vgpuctl.engine.run import carry_out
from vgpuctl.errors import InUse, Refused, VerifyFailed
from vgpuctl.model.records import ImageRecord
from vgpuctl.model.step import Plan
from vgpuctl.plan.refresh import making, new_disk
from vgpuctl.steps.refresh import DropSpare
from vgpuctl.value import replace

BASE = "/srv/images/ubuntu-24.04.qcow2"


@pytest.fixture
def host(tmp_path):
    made = open_host(tmp_path)
    create(made.world, wish("A100-4C", name="vm", image=BASE), start=False)
    return made


def the_vm(host):
    record = host.world.hypervisor.find_domain("vm")
    return parse(record.xml, record.state, host.world.machine_id)


@pytest.fixture
def steps(host):
    """Record, make and switch."""
    vm = the_vm(host)
    old = vm.promise.disks[0]
    image = ImageRecord(BASE, "qcow2", 1, "both")
    return making(vm, vm.promise, old, new_disk(old, image, "n.qcow2"), image, None).steps


def test_each_is_read_back_and_taken_back(host, steps):
    before = picture(host)
    for step in steps:
        with pytest.raises(VerifyFailed):
            step.verify(host.world)
        step.perform(host.world)
        step.verify(host.world)
    assert the_vm(host).disks[0].source.endswith("/n.qcow2")
    for step in reversed(steps):
        step.undo(host.world)
        step.undo(host.world)
    assert picture(host) == before


def test_the_switch_is_refused_while_the_vm_runs_or_when_its_record_changed(host, steps):
    record, make, switch = steps
    make.perform(host.world)
    with pytest.raises(InUse, match="changed by somebody else"):
        switch.perform(host.world)
    record.perform(host.world)
    start(host.world, "vm")
    before = picture(host)
    with pytest.raises(InUse, match="was started"):
        switch.perform(host.world)
    assert picture(host) == before


def test_a_vm_started_during_the_switch_is_seen_on_its_former_disk(host, steps):
    record, make, switch = steps
    record.perform(host.world)
    make.perform(host.world)
    start(host.world, "vm")
    switch._define(host.world, switch.old, switch.new, switch.after)
    with pytest.raises(VerifyFailed, match=r"n\.qcow2 alone"):
        switch.verify(host.world)
    drop = DropSpare("vm", the_vm(host).uuid, switch.after.disks[-1])
    with pytest.raises(InUse, match="vm uses"):
        drop.perform(host.world)
    stop(host.world, "vm")
    switch.undo(host.world)
    assert the_vm(host).disks[0].source == switch.old


def test_the_new_disk_stays_where_the_switch_could_not_be_taken_back(host, steps):
    for step in steps:
        step.perform(host.world)
    before = picture(host)
    with pytest.raises(InUse, match="vm uses"):
        steps[1].undo(host.world)
    assert picture(host) == before


def test_nothing_is_dropped_while_the_vms_own_disk_is_missing(host, steps):
    for step in steps:
        step.perform(host.world)
    old = the_vm(host).promise.disks[-1]
    drop = DropSpare("vm", the_vm(host).uuid, old, (replace(old, path="/gone.qcow2"),))
    before = picture(host)
    with pytest.raises(Refused, match=r"/gone\.qcow2.*is not there"):
        drop.perform(host.world)
    assert picture(host) == before
    with pytest.raises(VerifyFailed):
        drop.verify(host.world)
    replace(drop, needed=()).perform(host.world)
    drop.verify(host.world)


def test_a_switch_to_a_disk_that_somebody_deleted_is_taken_back(host, steps):
    record, make, switch = steps
    record.perform(host.world)
    make.perform(host.world)
    DropSpare("vm", the_vm(host).uuid, make.disk).perform(host.world)
    before = picture(host)
    with pytest.raises(VerifyFailed, match="is not there"):
        carry_out(host.world, Plan((switch,)), Silent())
    assert picture(host) == before
