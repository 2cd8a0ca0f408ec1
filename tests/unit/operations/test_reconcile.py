# SPDX-License-Identifier: Apache-2.0
"""reconcile: it fixes what is provably managed, reports the rest, and a second run finds nothing."""

from __future__ import annotations

import re

import pytest

from tests.faults import Watch
from tests.halted import Halted, elsewhere, reopen
from tests.hosts import SimulatedHost, create, delete, open_sim_host, picture, request, run_reconcile
from tests.layouts import FLEX, drained
from tests.unit.operations.test_attach import plug
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.domain.record import record_to_xml
from vgpuctl.errors import Stuck, Unmanaged
from vgpuctl.model.vm import DrainedVm, ProcessId, RecordState, StuckWrite
from vgpuctl.operations import queries
from vgpuctl.value import replace


def kinds(host: SimulatedHost, *, dry_run: bool = False) -> list[str]:
    return [f.kind for f in run_reconcile(host.ports, dry_run=dry_run).data.findings]


def without_record(host: SimulatedHost, uuid: str) -> None:
    host.ports.hypervisor.set_record(uuid, None)


def test_a_host_in_order_has_no_findings_and_nothing_is_changed(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    create(host.ports, request("A100-4C"))
    before = picture(host)
    done = run_reconcile(host.again().ports)
    assert (done.changed, done.data.findings) == (False, ())
    assert picture(host) == before


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q")])
def test_a_device_whose_vm_was_undefined_by_hand_is_removed(tmp_path, scenario, profile):
    host = open_sim_host(tmp_path, scenario)
    uuid = create(host.ports, request(profile), start=False).data.uuid
    host.ports.hypervisor.undefine(uuid)
    later = host.again()
    assert kinds(later, dry_run=True) == ["leaked"]
    assert picture(later).claims
    assert kinds(later) == ["leaked"]
    now = picture(later)
    assert now.types == now.mdevs == now.claims == {}
    assert kinds(later) == []


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q")])
def test_a_lost_record_is_written_again_and_the_vm_can_be_deleted(tmp_path, scenario, profile):
    host = open_sim_host(tmp_path, scenario)
    uuid = create(host.ports, request(profile, name="vm")).data.uuid
    without_record(host, uuid)
    later = host.again()
    assert kinds(later) == ["record-lost"]
    assert queries.show_vm(later.ports, "vm").data.ownership == "managed"
    assert kinds(later) == []
    delete(later.ports, "vm")
    assert picture(later).types == picture(later).mdevs == {}


def newer(host: SimulatedHost, uuid: str, old: str, new: str) -> str:
    """Rewrite a VM's record as a later vgpuctl might."""
    record = host.ports.hypervisor.find_domain(uuid)
    assert record is not None
    text = record_to_xml(parse_domain(record.xml, record.state, host.ports.machine_id).record)
    assert old in text
    host.ports.hypervisor.set_record(uuid, text.replace(old, new))
    return uuid


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q")])
@pytest.mark.parametrize(
    ("old", "new"), [('state="ready"', 'state="parked"'), ('backend="', 'backend="new-'), (' index="0"', "")]
)
def test_an_unreadable_record_is_reported_and_never_overwritten(tmp_path, scenario, profile, old, new):
    host = open_sim_host(tmp_path, scenario)
    newer(host, create(host.ports, request(profile, name="vm")).data.uuid, old, new)
    later = host.again()
    before = picture(later)
    (finding,) = run_reconcile(later.ports).data.findings
    assert (finding.kind, finding.action.startswith("nothing: ")) == ("unreadable-record", True)
    assert "a newer vgpuctl may have written it" in finding.action
    assert picture(later) == before
    with pytest.raises(Unmanaged, match="a newer one"):
        delete(later.ports, "vm")
    assert picture(later) == before


def test_a_vm_whose_record_cannot_be_read_is_still_shown(tmp_path):
    host = open_sim_host(tmp_path)
    newer(host, create(host.ports, request("A100-4C", name="vm")).data.uuid, 'state="ready"', 'state="parked"')
    assert [row.name for row in queries.list_vms(host.ports).data] == ["vm"]
    shown = queries.show_vm(host.ports, "vm").data
    assert (shown.record, [v.present for v in shown.vgpus]) == (None, [True])


def test_what_only_an_unreadable_record_may_name_is_not_taken_away(tmp_path):
    host = open_sim_host(tmp_path)
    uuid = create(host.ports, request("A100-4C", name="vm"), start=False).data.uuid
    newer(host, uuid, 'state="ready"', 'state="parked"')
    host.ports.hypervisor.detach_device(uuid, "ua-vgpuctl-0", live=False, config=True)
    later = host.again()
    before = picture(later)
    assert kinds(later) == ["unreadable-record"]
    assert picture(later) == before


def test_a_record_that_a_newer_vgpuctl_wrote_meanwhile_is_left_alone(tmp_path):
    host = open_sim_host(tmp_path)
    uuid = create(host.ports, request("A100-4C", name="vm"), start=False).data.uuid
    record = host.ports.hypervisor.find_domain(uuid)
    text = record_to_xml(parse_domain(record.xml, record.state, host.ports.machine_id).record)
    text = text.replace('state="ready"', 'state="parked"')
    without_record(host, uuid)
    later = host.again()
    watch = Watch(before=lambda number, call, args: written(call))

    def written(call):
        if call == "hypervisor.find_domain" and "hypervisor.find_domain" not in watch.calls[:-1]:
            host.ports.hypervisor.set_record(uuid, text)

    result = run_reconcile(watch.watch(later.ports)).data.findings
    assert [f.kind for f in result] == ["unreadable-record"]
    assert "state='parked'" in host.ports.hypervisor.find_domain(uuid).xml


def test_a_copy_of_a_managed_vm_is_left_alone(tmp_path):
    host = open_sim_host(tmp_path)
    done = create(host.ports, request("A100-4C", name="vm"), start=False)
    record = host.ports.hypervisor.find_domain("vm")
    assert record is not None
    other = "99999999-8888-4777-8666-555555555555"
    copied = record.xml.replace(f"<uuid>{done.data.uuid}</uuid>", f"<uuid>{other}</uuid>")
    copied = copied.replace("<name>vm</name>", "<name>copy</name>")
    copied = re.sub(r"<mac address=[^>]*>", "", copied)
    host.ports.hypervisor.define(copied)
    later = host.again()
    before = picture(later)
    assert kinds(later) == ["copied-record"]
    assert picture(later) == before
    assert queries.show_vm(later.ports, "copy").data.ownership == "copy"
    (vgpu,) = queries.show_vm(later.ports, "vm").data.vgpus
    assert (vgpu.vm, vgpu.ownership) == ("vm", "managed")


def test_a_claim_that_vanished_is_written_again(tmp_path):
    host = open_sim_host(tmp_path)
    done = create(host.ports, request("A100-4C"))
    host.ports.claims.remove(done.data.vgpus[0].carrier, done.data.uuid)
    later = host.again()
    assert kinds(later) == ["claim-lost"]
    assert len(picture(later).claims) == 1
    assert kinds(later) == []


def test_unmanaged_devices_are_unchanged(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    path = "/sys/bus/pci/devices/0000:3b:00.5/nvidia/current_vgpu_type"
    host.ports.sysfs.write(path, "468\n")
    before = picture(host)
    assert kinds(host.again()) == []
    assert picture(host) == before


def test_a_vm_that_another_vgpuctl_finished_meanwhile_is_left_alone(tmp_path):
    host = open_sim_host(tmp_path)
    uuid = create(host.ports, request("A100-4C", name="vm"), start=False).data.uuid
    record = host.ports.hypervisor.find_domain(uuid)
    ready = parse_domain(record.xml, record.state, host.ports.machine_id).record
    host.ports.hypervisor.set_record(uuid, record_to_xml(replace(ready, state=RecordState.CREATING)))
    later = host.again()
    before = picture(later)
    watch = Watch(before=lambda number, call, args: finished(call))

    def finished(call):
        if call == "hypervisor.find_domain" and "hypervisor.find_domain" not in watch.calls[:-1]:
            host.ports.hypervisor.set_record(uuid, record_to_xml(ready))

    done = run_reconcile(watch.watch(later.ports))
    assert (done.changed, done.data.findings) == (False, ())
    after = picture(later)
    assert (after.types, after.files, after.domains.keys()) == (before.types, before.files, before.domains.keys())
    assert queries.show_vm(later.ports, "vm").data.record == "ready"


def test_a_claim_whose_vm_appeared_meanwhile_is_left_alone(tmp_path):
    host = open_sim_host(tmp_path)
    uuid = create(host.ports, request("A100-4C", name="vm"), start=False).data.uuid
    xml = host.ports.hypervisor.find_domain(uuid).xml
    host.ports.hypervisor.undefine(uuid)
    later = host.again()
    before = picture(later)
    watch = Watch(before=lambda number, call, args: appeared(call))

    def appeared(call):
        if call == "hypervisor.find_domain" and "hypervisor.find_domain" not in watch.calls[:-1]:
            host.ports.hypervisor.define(xml)

    assert run_reconcile(watch.watch(later.ports)).data.findings == ()
    after = picture(later)
    assert (after.types, after.claims) == (before.types, before.claims)
    assert queries.show_vm(later.ports, "vm").data.vgpus[0].present


def test_a_vm_that_a_living_command_is_making_is_no_finding(tmp_path):
    host = open_sim_host(tmp_path)
    wanted = request("A100-4C", name="vm")
    making = Halted(host, "hypervisor", "set_record", lambda ports: create(ports, wanted, start=False))
    before = picture(host)
    assert len(before.claims) == len(before.domains) == 1
    assert kinds(host, dry_run=True) == []
    assert kinds(host) == []
    assert picture(host) == before
    assert making.finish() == 0
    assert queries.show_vm(host.ports, "vm").data.record == "ready"


def test_a_vm_that_runs_is_recorded_and_keeps_all_although_its_record_says_half_made(tmp_path):
    host = open_sim_host(tmp_path)
    uuid = create(host.ports, request("A100-4C", name="vm")).data.uuid
    record = host.ports.hypervisor.find_domain(uuid)
    ready = parse_domain(record.xml, record.state, host.ports.machine_id).record
    host.ports.hypervisor.set_record(uuid, record_to_xml(replace(ready, state=RecordState.CREATING)))
    later = host.again()
    before = picture(later)
    assert kinds(later) == ["half-made"]
    after = picture(later)
    assert (after.types, after.files, after.running) == (before.types, before.files, before.running)
    assert queries.show_vm(later.ports, "vm").data.record == "ready"


def test_what_a_living_command_is_about_to_make_is_not_stray(tmp_path):
    """An attach has claimed, and neither the record nor the devices of its VM show it yet."""
    host = open_sim_host(tmp_path)
    elsewhere(lambda: create(reopen(host).ports, request("A100-4C", name="vm"), start=False))
    attached = Halted(host, "hypervisor", "set_record", lambda ports: plug(replace(host, ports=ports), "A100-4C"))
    before = picture(host)
    assert len(before.claims) == 2
    assert kinds(host, dry_run=True) == []
    assert kinds(host) == []
    assert picture(host) == before
    assert attached.finish() == 0
    assert len(queries.show_vm(host.ports, "vm").data.vgpus) == 2


def test_a_vm_that_was_drained_on_a_gpu_with_a_stuck_write_is_to_be_started_and_nothing_is_read_there(tmp_path):
    """The GPU's state is unknown until the write ends: start-vm says so, and names the process."""
    host = drained(tmp_path)
    for name in ("one", "two"):
        host.ports.hypervisor.destroy(host.ports.hypervisor.find_domain(name).uuid)
    uuid = host.ports.hypervisor.find_domain("one").uuid
    host.ports.claims.add_drained_vm(DrainedVm(uuid, FLEX, ProcessId(999999, 1)))
    host.ports.sysfs.write(f"/sys/bus/pci/devices/{FLEX}/sriov_numvfs", "0\n")
    (seen,) = run_reconcile(host.ports, dry_run=True).data.findings
    assert seen.action.startswith("nothing before the GPU is set up")
    host.ports.claims.add_stuck_write(StuckWrite(host.ports.operations.current().process, FLEX, "/sys/x", "0"))
    assert "start VM one" in [f.action for f in run_reconcile(host.ports, dry_run=True).data.findings]
    with pytest.raises(Stuck) as raised:
        run_reconcile(host.ports)
    assert raised.value.facts["gpu"] == FLEX
