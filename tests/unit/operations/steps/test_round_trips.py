# SPDX-License-Identifier: Apache-2.0
"""Every step is verified only once it is done, and its undo, once or twice, restores what was there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.hosts import SimulatedHost, create, open_sim_host, picture, request
from tests.values import T2Q, assigned, claim, t4
from vgpuctl.domain.domain_edit import DomainEdit, edit_domain
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.domain.render import compile_template, read_builtin_template, render_domain
from vgpuctl.errors import VerifyFailed
from vgpuctl.model.request import CloudInit, CloudInitFile
from vgpuctl.model.vm import DiskRole, ManagedDisk, RecordState, Vm, VmState
from vgpuctl.observe import observe
from vgpuctl.operations.create import prepare_vm
from vgpuctl.operations.steps.attach import AttachDevice, RedefineDomain, WriteRecord
from vgpuctl.operations.steps.claims import TakeClaim
from vgpuctl.operations.steps.domain import DefineDomain, SetRecordState, StartDomain
from vgpuctl.operations.steps.seed import CreateSeed
from vgpuctl.operations.steps.storage import CreateVolume
from vgpuctl.ports.step import Step
from vgpuctl.value import replace

POOL = "/var/lib/libvirt/images"
DISK = ManagedDisk("default", "new.qcow2", f"{POOL}/new.qcow2", 1 << 30)
CARRIER = "11111111-2222-3333-4444-555555555555"
DEVICE = f"""<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{CARRIER}'/></source>
<alias name='ua-x'/></hostdev>"""


def the_vm(host: SimulatedHost) -> tuple[Vm, str]:
    """Return the VM of a host, and its definition."""
    domain = host.ports.hypervisor.find_domain("vm")
    return parse_domain(domain.xml, VmState.STOPPED, host.ports.machine_id), domain.xml


def define(host: SimulatedHost) -> Step:
    wanted = request("T4-2Q", name="other")
    design = prepare_vm(host.ports, partial(observe, host.ports), wanted, start=True).design
    return DefineDomain(design, render_domain(design, compile_template(read_builtin_template("vm") or "")))


def set_state(host: SimulatedHost) -> Step:
    vm, _ = the_vm(host)
    return SetRecordState("vm", vm.uuid, replace(vm.record, state=RecordState.REMOVING), vm.record)


def forget_record(host: SimulatedHost) -> Step:
    vm, _ = the_vm(host)
    return WriteRecord("vm", vm.uuid, None, vm.record)


def redefine(host: SimulatedHost) -> Step:
    vm, xml = the_vm(host)
    return RedefineDomain("vm", vm.uuid, edit_domain(xml, DomainEdit(vcpus=3)), xml, ("vcpus: 1 -> 3",))


STEPS: dict[str, tuple[Callable[[SimulatedHost], Step], str | None]] = {
    "a domain is defined": (define, None),
    "the state of a record": (set_state, None),
    "a record is removed": (forget_record, None),
    "a definition is changed": (redefine, None),
    "a domain is started": (lambda host: StartDomain("vm", the_vm(host)[0].uuid), None),
    "a device is attached": (
        lambda host: AttachDevice("vm", the_vm(host)[0].uuid, CARRIER, DEVICE, live=False),
        "not in its definition",
    ),
    "a claim": (lambda host: TakeClaim(claim(assigned(t4(), T2Q, carrier=CARRIER), 1)), None),
    "an empty volume": (lambda host: CreateVolume(DISK), None),
    "a clone": (
        lambda host: CreateVolume(replace(DISK, base="/srv/images/ubuntu-24.04.qcow2", base_format="qcow2")),
        None,
    ),
    "a seed": (
        lambda host: CreateSeed(
            ManagedDisk("default", "s.iso", f"{POOL}/s.iso", 0, role=DiskRole.SEED),
            CloudInit(CloudInitFile("/root/ud", "#cloud-config\n")), "id", "vm",
        ),
        "reads back as nothing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_it_is_verified_once_it_is_done_and_undo_restores_what_was_there(tmp_path, name):
    host = open_sim_host(tmp_path, "t4")
    create(host.ports, request("T4-2Q", name="vm"), start=False)
    make, message = STEPS[name]
    step, before = make(host), picture(host)
    with pytest.raises(VerifyFailed, match=message):
        step.verify(host.ports)
    step.perform(host.ports)
    step.verify(host.ports)
    assert picture(host) != before
    for _ in range(2):
        step.undo(host.ports)
        assert picture(host) == before
