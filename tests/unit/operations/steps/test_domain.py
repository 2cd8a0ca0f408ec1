# SPDX-License-Identifier: Apache-2.0
"""The steps that define, start and change a VM: each is verified, and undo changes only what vgpuctl created."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

import pytest

from tests.faults import failing
from tests.hosts import SimulatedHost, create, open_sim_host, picture, request
from tests.meanwhile import unchanged, with_calls
from vgpuctl.backends.mdev import CreateMdev, RemoveMdev
from vgpuctl.domain.domain_edit import DomainEdit, edit_domain
from vgpuctl.domain.render import compile_template, read_builtin_template, render_domain
from vgpuctl.errors import Busy, Exists, InUse, LibvirtFailed, Refused, VerifyFailed
from vgpuctl.model.port_values import DetachOutcome
from vgpuctl.model.vm import RecordState, Vm, VmState
from vgpuctl.observe import observe
from vgpuctl.observe.definition import read_vm
from vgpuctl.operations.create import prepare_vm
from vgpuctl.operations.steps.attach import (
    DetachDevice,
    RedefineDomain,
    RemoveForReplace,
)
from vgpuctl.operations.steps.domain import DefineDomain, SetRecordState, StartDomain, StopDomain, UndefineDomain
from vgpuctl.value import replace

DEVICE = """<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{}'/></source>{}</hostdev>"""


@pytest.fixture
def host(tmp_path) -> SimulatedHost:
    """A host with one VM that is off."""
    made = open_sim_host(tmp_path, "t4")
    create(made.ports, request("T4-2Q", name="vm"), start=False)
    return made


def the_vm(host: SimulatedHost) -> Vm:
    record = host.ports.hypervisor.find_domain("vm")
    return read_vm(host.ports, record)


def the_xml(host: SimulatedHost) -> str:
    record = host.ports.hypervisor.find_domain("vm")
    return record.xml


def test_a_device_without_an_alias_of_its_own_is_taken_out_of_the_definition(host):
    carrier = "11111111-2222-3333-4444-555555555555"
    uuid, before = the_vm(host).uuid, the_xml(host)
    host.ports.hypervisor.attach_device(uuid, DEVICE.format(carrier, ""), False)
    step = DetachDevice("vm", uuid, carrier, 5)
    with pytest.raises(VerifyFailed):
        step.verify(host.ports)
    step.perform(host.ports)
    step.verify(host.ports)
    assert the_xml(host) == before, "and nothing else"


def test_a_running_device_that_libvirt_gave_no_alias_is_refused_with_what_to_do(host):
    (own,) = the_vm(host).hostdevs
    uuid = the_vm(host).uuid
    info = host.ports.hypervisor.find_domain("vm")
    xml = info.xml.replace(f"<alias name='{own.alias}'/>", "")
    bare = replace(info, xml=xml, live_xml=xml, state=VmState.RUNNING)
    ports = with_calls(host.ports, "hypervisor", find_domain=lambda _: bare)
    with unchanged(host), pytest.raises(Refused, match="no alias") as caught:
        DetachDevice("vm", uuid, own.carrier, 5).perform(ports)
    assert caught.value.hint == "virsh shutdown vm, then run the command again"


def test_a_device_that_is_not_there_needs_no_detaching(host):
    DetachDevice("vm", the_vm(host).uuid, "0000:ff:00.0", 5).perform(host.ports)


class Late:
    """A libvirt that reports the device as removed while the guest still has it."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    @contextmanager
    def watch_device_removal(self, uuid, alias):
        yield self

    def wait(self, deadline_seconds):
        return DetachOutcome.REMOVED

    def detach_device(self, uuid, alias, *, live, config):
        """Do nothing."""


def test_the_live_xml_decides_and_not_the_event(tmp_path):
    host = open_sim_host(tmp_path)
    uuid = str(create(host.ports, request("A100-4C", name="vm")).data.uuid)
    (carrier,) = picture(host).claims
    with pytest.raises(Busy, match="did not release"):
        DetachDevice("vm", uuid, carrier, 5).perform(replace(host.ports, hypervisor=Late(host.ports.hypervisor)))


def test_a_definition_that_somebody_changed_meanwhile_is_left_alone(host):
    xml = the_xml(host)
    step = RedefineDomain("vm", the_vm(host).uuid, edit_domain(xml, DomainEdit(vcpus=3)), xml, ())
    host.ports.hypervisor.redefine(the_vm(host).uuid, edit_domain(xml, DomainEdit(memory_mib=77)))
    now = picture(host)
    with pytest.raises(InUse, match="changed by another program"):
        step.perform(host.ports)
    assert picture(host) == now


def test_a_removed_device_is_made_again(host):
    vm, before = the_vm(host), picture(host)
    (vgpu,) = vm.record.vgpus
    step = RemoveForReplace((RemoveMdev(vgpu),), (CreateMdev(vgpu, before.mdevs[vgpu.carrier][1]),))
    step.undo(host.ports)
    assert picture(host) == before
    step.perform(host.ports)
    step.verify(host.ports)
    assert picture(host).mdevs == {}
    step.undo(host.ports)
    assert picture(host) == before


def defined(ports, name="vm"):
    design = prepare_vm(ports, partial(observe, ports), request("A100-4C", name=name), start=True).design
    step = DefineDomain(design, render_domain(design, compile_template(read_builtin_template("vm") or "")))
    step.perform(ports)
    return step


def test_xml_lost_by_libvirt_is_noticed(tmp_path):
    host = open_sim_host(tmp_path)
    step = defined(host.ports)
    with pytest.raises(VerifyFailed) as raised:
        replace(step, design=replace(step.design, memory_mib=9999)).verify(host.ports)
    assert "9999" in str(raised.value)


def test_an_existing_domain_of_that_name_is_kept(tmp_path):
    host = open_sim_host(tmp_path)
    first = defined(host.ports)
    other = replace(first.design, uuid="99999999-8888-4777-8666-555555555555")
    other = replace(other, record=replace(other.record, vm_uuid=other.uuid))
    second = DefineDomain(other, render_domain(other, compile_template(read_builtin_template("vm") or "")))
    with pytest.raises(Exists):
        second.perform(host.ports)
    second.undo(host.ports)
    first.verify(host.ports)


def test_the_record_of_a_vm_that_is_gone_is_not_put_back(tmp_path):
    host = open_sim_host(tmp_path)
    design = defined(host.ports).design
    step = SetRecordState(design.name, design.uuid, replace(design.record, state=RecordState.READY), design.record)
    step.perform(host.ports)
    host.ports.hypervisor.undefine(design.uuid)
    step.undo(host.ports)
    assert not picture(host).domains


def test_undo_keeps_a_domain_without_record(tmp_path):
    host = open_sim_host(tmp_path)
    step = defined(host.ports)
    host.ports.hypervisor.set_record(step.design.uuid, None)
    step.undo(host.ports)
    assert picture(host).domains


def test_a_vm_started_by_another_program_without_its_disk_is_refused(tmp_path):
    host = open_sim_host(tmp_path)
    made = create(host.ports, request("A100-4C", name="vm")).data
    disk = made.disks[0].path
    host.ports.storage.remove_volume("default", disk.rpartition("/")[2])
    with pytest.raises(InUse, match=disk):
        StartDomain("vm", made.uuid).perform(host.ports)
    assert picture(host).running


def test_a_start_that_libvirt_refuses_keeps_libvirts_number(tmp_path):
    host = open_sim_host(tmp_path)
    uuid = create(host.ports, request("A100-4C", name="vm"), start=False).data.uuid
    with pytest.raises(LibvirtFailed) as raised:
        StartDomain("vm", uuid).perform(failing(host.ports, 1))
    assert raised.value.facts["libvirt_code"] == 38


def test_a_guest_ignoring_shutdown_is_busy_with_a_force_off_hint(tmp_path):
    text = "version: 1\ngpus:\n  - {model: A100}\nfaults:\n  - {on: shutdown, kind: lost}\n"
    host = open_sim_host(tmp_path, text=text)
    uuid = create(host.ports, request("A100-4C", name="vm")).data.uuid
    with pytest.raises(Busy) as raised:
        StopDomain("vm", uuid, force=False, deadline_seconds=3).perform(host.ports)
    assert "within 3 s" in str(raised.value)
    assert "--force" in str(raised.value.hint)
    forced = StopDomain("vm", uuid, force=True, deadline_seconds=0)
    forced.perform(host.ports)
    forced.verify(host.ports)
    forced.perform(host.ports)
    assert host.ports.hypervisor.find_domain("vm").state is VmState.STOPPED


def test_undefining_is_read_back_and_twice_is_once(tmp_path):
    host = open_sim_host(tmp_path)
    design = defined(host.ports).design
    step = UndefineDomain(design.name, design.uuid, ("NVRAM /x",))
    assert step.describe() == "undefine VM vm with NVRAM /x"
    with pytest.raises(VerifyFailed):
        step.verify(host.ports)
    step.perform(host.ports)
    step.perform(host.ports)
    step.verify(host.ports)
