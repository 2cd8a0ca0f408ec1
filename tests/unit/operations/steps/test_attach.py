# SPDX-License-Identifier: Apache-2.0
"""The steps that change an existing VM: each is verified, and undo restores the former state."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from tests.hosts import SimulatedHost, create, open_sim_host, picture, request
from vgpuctl.backends.mdev import CreateMdev, RemoveMdev
from vgpuctl.domain.domain_edit import DomainEdit, edit_domain
from vgpuctl.errors import Busy, InUse, Refused, VerifyFailed
from vgpuctl.model.port_values import DetachOutcome
from vgpuctl.model.vm import Vm
from vgpuctl.observe.vms import read_vm
from vgpuctl.operations.steps.attach import (
    DetachDevice,
    RedefineDomain,
    RemoveForReplace,
)
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


def test_a_device_without_an_alias_of_its_own_is_refused_with_what_to_do(host):
    carrier = "11111111-2222-3333-4444-555555555555"
    uuid = the_vm(host).uuid
    host.ports.hypervisor.attach_device(uuid, DEVICE.format(carrier, ""), False)
    step = DetachDevice("vm", uuid, carrier, 5)
    with pytest.raises(Refused, match="no alias") as caught:
        step.perform(host.ports)
    assert "virsh edit vm" in str(caught.value.hint)
    with pytest.raises(VerifyFailed):
        step.verify(host.ports)


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
