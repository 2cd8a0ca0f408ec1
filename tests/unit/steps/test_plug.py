# SPDX-License-Identifier: Apache-2.0
"""The steps that change a VM which exists: each is read back, and undo puts back what was."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from tests.faults import failing
from tests.worlds import Host, create, open_host, picture, wish
from vgpuctl.backends.mdev import MakeMdev, RemoveMdev
from vgpuctl.domain.edit import Edit, edited
from vgpuctl.engine.observe.vms import read_vm
from vgpuctl.errors import Busy, InUse, LibvirtFailed, Refused, VerifyFailed
from vgpuctl.model.records import Removed
from vgpuctl.model.vm import Vm
from vgpuctl.steps.plug import AttachDevice, DetachDevice, DropClaim, Redefine, TakeOut, WriteRecord
from vgpuctl.value import replace

DEVICE = """<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{}'/></source>{}</hostdev>"""
ALIAS = "<alias name='ua-x'/>"


@pytest.fixture
def host(tmp_path) -> Host:
    """A host with one VM that is off."""
    made = open_host(tmp_path, "t4")
    create(made.world, wish("T4-2Q", name="vm"), start=False)
    return made


def the_vm(host: Host) -> Vm:
    record = host.world.hypervisor.find_domain("vm")
    assert record is not None
    return read_vm(host.world, record)


def the_xml(host: Host) -> str:
    record = host.world.hypervisor.find_domain("vm")
    assert record is not None
    return record.xml


def test_a_record_is_written_taken_away_and_put_back(host):
    vm, before = the_vm(host), picture(host)
    step = WriteRecord("vm", vm.uuid, None, vm.promise)
    step.perform(host.world)
    step.verify(host.world)
    assert the_vm(host).promise is None
    with pytest.raises(VerifyFailed):
        replace(step, promise=vm.promise).verify(host.world)
    step.undo(host.world)
    assert picture(host) == before


def test_a_device_is_attached_read_back_and_taken_away_again(host):
    before, carrier = picture(host), "11111111-2222-3333-4444-555555555555"
    step = AttachDevice("vm", the_vm(host).uuid, carrier, DEVICE.format(carrier, ALIAS), live=False)
    with pytest.raises(VerifyFailed, match="not in its definition"):
        step.verify(host.world)
    step.perform(host.world)
    step.verify(host.world)
    step.undo(host.world)
    assert picture(host) == before
    step.undo(host.world)


def test_a_device_without_an_alias_of_its_own_is_refused_with_what_to_do(host):
    carrier = "11111111-2222-3333-4444-555555555555"
    uuid = the_vm(host).uuid
    host.world.hypervisor.attach_device(uuid, DEVICE.format(carrier, ""), False)
    step = DetachDevice("vm", uuid, carrier, 5)
    with pytest.raises(Refused, match="no alias") as caught:
        step.perform(host.world)
    assert "virsh edit vm" in str(caught.value.hint)
    with pytest.raises(VerifyFailed):
        step.verify(host.world)


def test_a_device_that_is_not_there_needs_no_detaching(host):
    DetachDevice("vm", the_vm(host).uuid, "0000:ff:00.0", 5).perform(host.world)


class Late:
    """A libvirt that says the device is gone while the guest still has it."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    @contextmanager
    def removal(self, uuid, alias):
        yield self

    def wait(self, deadline_seconds):
        return Removed.GONE

    def detach_device(self, uuid, alias, *, live, config):
        """Do nothing."""


def test_what_is_true_is_the_live_xml_and_not_what_was_told(tmp_path):
    host = open_host(tmp_path)
    uuid = str(create(host.world, wish("A100-4C", name="vm")).data["uuid"])
    (carrier,) = picture(host).claims
    with pytest.raises(Busy, match="did not let"):
        DetachDevice("vm", uuid, carrier, 5).perform(replace(host.world, hypervisor=Late(host.world.hypervisor)))


def test_a_definition_is_changed_and_put_back(host):
    vm, xml, before = the_vm(host), the_xml(host), picture(host)
    step = Redefine("vm", vm.uuid, edited(xml, Edit(vcpus=3)), xml, ("vcpus: 1 -> 3",))
    with pytest.raises(VerifyFailed):
        step.verify(host.world)
    step.perform(host.world)
    step.verify(host.world)
    assert the_vm(host) == replace(vm, vcpus=3)
    step.undo(host.world)
    assert picture(host) == before


def test_a_definition_that_somebody_changed_meanwhile_is_left_alone(host):
    xml = the_xml(host)
    step = Redefine("vm", the_vm(host).uuid, edited(xml, Edit(vcpus=3)), xml, ())
    host.world.hypervisor.redefine(the_vm(host).uuid, edited(xml, Edit(memory_mib=77)))
    now = picture(host)
    with pytest.raises(InUse, match="changed by somebody else"):
        step.perform(host.world)
    assert picture(host) == now


def test_a_device_that_was_taken_out_is_made_again(host):
    vm, before = the_vm(host), picture(host)
    assert vm.promise is not None
    (vgpu,) = vm.promise.vgpus
    step = TakeOut((RemoveMdev(vgpu),), (MakeMdev(vgpu, before.mdevs[vgpu.carrier][1]),))
    step.undo(host.world)
    assert picture(host) == before
    step.perform(host.world)
    step.verify(host.world)
    assert picture(host).mdevs == {}
    step.undo(host.world)
    assert picture(host) == before


def test_a_claim_that_was_dropped_is_held_again(host):
    (claim,) = host.world.claims.all()
    step = DropClaim(claim)
    step.perform(host.world)
    assert host.world.claims.all() == ()
    step.undo(host.world)
    assert host.world.claims.all() == (claim,)


def test_libvirts_own_errors_stay_what_they_are(host):
    step = AttachDevice("vm", the_vm(host).uuid, "x", "<hostdev/>", live=False)
    with pytest.raises(LibvirtFailed):
        step.perform(failing(host.world, 1))
