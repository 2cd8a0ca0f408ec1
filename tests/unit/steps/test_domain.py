# SPDX-License-Identifier: Apache-2.0
"""The domain's steps: each is read back, and undo touches only what is ours."""

from __future__ import annotations

import pytest

from tests.faults import failing
from tests.worlds import create, open_host, picture, wish
from vgpuctl.domain.render import compile_template, render
from vgpuctl.domain.templates import builtin_template
from vgpuctl.engine.create import prepare
from vgpuctl.errors import Busy, Exists, InUse, LibvirtFailed, VerifyFailed
from vgpuctl.model.vm import PromiseState, VmState
from vgpuctl.steps.domain import DefineDomain, SetRecord, StartDomain, StopDomain, UndefineDomain
from vgpuctl.value import replace


def defined(world, name="vm"):
    design = prepare(world, wish("A100-4C", name=name)).design
    step = DefineDomain(design, render(design, compile_template(builtin_template("vm") or "")))
    step.perform(world)
    return step


def test_a_domain_is_defined_compared_and_taken_back(tmp_path):
    host = open_host(tmp_path)
    before = picture(host)
    step = defined(host.world)
    step.verify(host.world)
    step.undo(host.world)
    assert picture(host) == before
    step.undo(host.world)


def test_what_libvirt_did_not_keep_is_noticed(tmp_path):
    host = open_host(tmp_path)
    step = defined(host.world)
    with pytest.raises(VerifyFailed) as raised:
        replace(step, design=replace(step.design, memory_mib=9999)).verify(host.world)
    assert "9999" in str(raised.value)


def test_a_name_that_is_taken_is_somebody_elses_and_is_not_undone(tmp_path):
    host = open_host(tmp_path)
    first = defined(host.world)
    other = replace(first.design, uuid="99999999-8888-4777-8666-555555555555")
    other = replace(other, promise=replace(other.promise, vm_uuid=other.uuid))
    second = DefineDomain(other, render(other, compile_template(builtin_template("vm") or "")))
    with pytest.raises(Exists):
        second.perform(host.world)
    second.undo(host.world)
    first.verify(host.world)


def test_undo_leaves_a_domain_that_lost_our_record(tmp_path):
    host = open_host(tmp_path)
    step = defined(host.world)
    host.world.hypervisor.set_promise(step.design.uuid, None)
    step.undo(host.world)
    assert picture(host).domains


def test_the_record_is_set_read_back_and_put_back(tmp_path):
    host = open_host(tmp_path)
    design = defined(host.world).design
    was, ready = design.promise, replace(design.promise, state=PromiseState.READY)
    step = SetRecord(design.name, design.uuid, ready, was)
    with pytest.raises(VerifyFailed):
        step.verify(host.world)
    step.perform(host.world)
    step.verify(host.world)
    step.undo(host.world)
    SetRecord(design.name, design.uuid, was).verify(host.world)
    host.world.hypervisor.undefine(design.uuid)
    step.undo(host.world)


def test_a_start_is_read_back_and_its_undo_pulls_the_plug(tmp_path):
    host = open_host(tmp_path)
    uuid = create(host.world, wish("A100-4C", name="vm"), start=False).data["uuid"]
    step = StartDomain("vm", uuid)
    with pytest.raises(VerifyFailed):
        step.verify(host.world)
    step.perform(host.world)
    step.verify(host.world)
    step.undo(host.world)
    assert not picture(host).running


def test_a_vm_that_somebody_else_started_is_not_ours_to_stop(tmp_path):
    host = open_host(tmp_path)
    uuid = create(host.world, wish("A100-4C", name="vm")).data["uuid"]
    assert StartDomain("vm", uuid).perform(host.world) == "VM vm was started by another program"
    assert picture(host).running


def test_a_vm_that_somebody_else_started_and_that_lacks_something_is_refused_by_what_it_lacks(tmp_path):
    host = open_host(tmp_path)
    made = create(host.world, wish("A100-4C", name="vm")).data
    disk = made["disks"][0]["path"]
    host.world.storage.remove_volume("default", disk.rpartition("/")[2])
    with pytest.raises(InUse, match=disk):
        StartDomain("vm", made["uuid"]).perform(host.world)
    assert picture(host).running


def test_a_start_that_libvirt_refuses_keeps_libvirts_number(tmp_path):
    host = open_host(tmp_path)
    uuid = create(host.world, wish("A100-4C", name="vm"), start=False).data["uuid"]
    with pytest.raises(LibvirtFailed) as raised:
        StartDomain("vm", uuid).perform(failing(host.world, 1))
    assert raised.value.facts["libvirt_code"] == 38


def test_a_guest_that_ignores_the_button_is_busy_and_the_hint_pulls_the_plug(tmp_path):
    text = "version: 1\ngpus:\n  - {model: A100}\nfaults:\n  - {on: shutdown, kind: lost}\n"
    host = open_host(tmp_path, text=text)
    uuid = create(host.world, wish("A100-4C", name="vm")).data["uuid"]
    with pytest.raises(Busy) as raised:
        StopDomain("vm", uuid, force=False, deadline_seconds=3).perform(host.world)
    assert "within 3 s" in str(raised.value)
    assert "--force" in str(raised.value.hint)
    forced = StopDomain("vm", uuid, force=True, deadline_seconds=0)
    forced.perform(host.world)
    forced.verify(host.world)
    forced.perform(host.world)
    assert host.world.hypervisor.find_domain("vm").state is VmState.STOPPED


def test_undefining_is_read_back_and_twice_is_once(tmp_path):
    host = open_host(tmp_path)
    design = defined(host.world).design
    step = UndefineDomain(design.name, design.uuid, ("NVRAM /x",))
    assert step.describe() == "undefine VM vm with NVRAM /x"
    with pytest.raises(VerifyFailed):
        step.verify(host.world)
    step.perform(host.world)
    step.perform(host.world)
    step.verify(host.world)
