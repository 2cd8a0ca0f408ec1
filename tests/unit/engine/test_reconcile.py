# SPDX-License-Identifier: Apache-2.0
"""reconcile: mends what is provably ours, tells the rest, and a second run finds nothing."""

from __future__ import annotations

import re

import pytest

from tests.faults import Watch
from tests.halted import Halted, beside, elsewhere
from tests.layouts import FLEX, drained
from tests.unit.engine.test_attach import plug
from tests.worlds import Host, create, delete, mend, open_host, picture, wish
from vgpuctl.domain.metadata import promise_to_xml
from vgpuctl.domain.parse import parse
from vgpuctl.engine import queries
from vgpuctl.errors import Foreign, Stuck
from vgpuctl.model.vm import DrainedVm, ProcessId, PromiseState, StuckWrite
from vgpuctl.value import replace


def kinds(host: Host, *, dry_run: bool = False) -> list[str]:
    return [f["kind"] for f in mend(host.world, dry_run=dry_run).data["findings"]]


def without_record(host: Host, uuid: str) -> None:
    host.world.hypervisor.set_promise(uuid, None)


def test_a_host_in_order_has_no_findings_and_nothing_is_changed(tmp_path):
    host = open_host(tmp_path, "mixed")
    create(host.world, wish("A100-4C"))
    before = picture(host)
    done = mend(host.again().world)
    assert (done.changed, done.data["findings"]) == (False, [])
    assert picture(host) == before


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q")])
def test_a_device_whose_vm_was_undefined_behind_our_back_is_removed(tmp_path, scenario, profile):
    host = open_host(tmp_path, scenario)
    uuid = create(host.world, wish(profile), start=False).data["uuid"]
    host.world.hypervisor.undefine(uuid)
    later = host.again()
    assert kinds(later, dry_run=True) == ["leaked"]
    assert picture(later).claims
    assert kinds(later) == ["leaked"]
    now = picture(later)
    assert now.types == now.mdevs == now.claims == {}
    assert kinds(later) == []


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q")])
def test_a_lost_record_is_written_again_and_the_vm_can_be_deleted(tmp_path, scenario, profile):
    host = open_host(tmp_path, scenario)
    uuid = create(host.world, wish(profile, name="vm")).data["uuid"]
    without_record(host, uuid)
    later = host.again()
    assert kinds(later) == ["record-lost"]
    assert queries.show_vm(later.world, "vm").data["owner"] == "ours"
    assert kinds(later) == []
    delete(later.world, "vm")
    assert picture(later).types == picture(later).mdevs == {}


def newer(host: Host, uuid: str, old: str, new: str) -> str:
    """Rewrite a VM's record as a later vgpuctl might."""
    record = host.world.hypervisor.find_domain(uuid)
    assert record is not None
    text = promise_to_xml(parse(record.xml, record.state, host.world.machine_id).promise)
    assert old in text
    host.world.hypervisor.set_promise(uuid, text.replace(old, new))
    return uuid


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q")])
@pytest.mark.parametrize(
    ("old", "new"), [('state="ready"', 'state="parked"'), ('backend="', 'backend="new-'), (' index="0"', "")]
)
def test_a_record_that_cannot_be_read_is_told_and_never_written_over(tmp_path, scenario, profile, old, new):
    host = open_host(tmp_path, scenario)
    newer(host, create(host.world, wish(profile, name="vm")).data["uuid"], old, new)
    later = host.again()
    before = picture(later)
    (told,) = mend(later.world).data["findings"]
    assert (told["kind"], told["action"].startswith("nothing: ")) == ("unreadable-record", True)
    assert "a newer vgpuctl may have written it" in told["action"]
    assert picture(later) == before
    with pytest.raises(Foreign, match="a newer one"):
        delete(later.world, "vm")
    assert picture(later) == before


def test_a_vm_whose_record_cannot_be_read_is_still_shown(tmp_path):
    host = open_host(tmp_path)
    newer(host, create(host.world, wish("A100-4C", name="vm")).data["uuid"], 'state="ready"', 'state="parked"')
    assert [row["name"] for row in queries.list_vms(host.world).data] == ["vm"]
    shown = queries.show_vm(host.world, "vm").data
    assert (shown["record"], [v["present"] for v in shown["vgpus"]]) == (None, [True])


def test_what_only_an_unreadable_record_may_name_is_not_taken_away(tmp_path):
    host = open_host(tmp_path)
    uuid = create(host.world, wish("A100-4C", name="vm"), start=False).data["uuid"]
    newer(host, uuid, 'state="ready"', 'state="parked"')
    host.world.hypervisor.detach_device(uuid, "ua-vgpuctl-0", live=False, config=True)
    later = host.again()
    before = picture(later)
    assert kinds(later) == ["unreadable-record"]
    assert picture(later) == before


def test_a_record_that_a_newer_vgpuctl_wrote_meanwhile_is_left_alone(tmp_path):
    host = open_host(tmp_path)
    uuid = create(host.world, wish("A100-4C", name="vm"), start=False).data["uuid"]
    record = host.world.hypervisor.find_domain(uuid)
    text = promise_to_xml(parse(record.xml, record.state, host.world.machine_id).promise)
    text = text.replace('state="ready"', 'state="parked"')
    without_record(host, uuid)
    later = host.again()
    watch = Watch(before=lambda number, call, args: written(call))

    def written(call):
        if call == "hypervisor.find_domain" and "hypervisor.find_domain" not in watch.calls[:-1]:
            host.world.hypervisor.set_promise(uuid, text)

    found = mend(watch.watch(later.world)).data["findings"]
    assert [f["kind"] for f in found] == ["record-lost", "unreadable-record"]
    assert "state='parked'" in host.world.hypervisor.find_domain(uuid).xml


def test_a_copy_of_our_vm_is_told_and_left_alone(tmp_path):
    host = open_host(tmp_path)
    done = create(host.world, wish("A100-4C", name="vm"), start=False)
    record = host.world.hypervisor.find_domain("vm")
    assert record is not None
    other = "99999999-8888-4777-8666-555555555555"
    copied = record.xml.replace(f"<uuid>{done.data['uuid']}</uuid>", f"<uuid>{other}</uuid>")
    copied = copied.replace("<name>vm</name>", "<name>copy</name>")
    copied = re.sub(r"<mac address=[^>]*>", "", copied)
    host.world.hypervisor.define(copied)
    later = host.again()
    before = picture(later)
    assert kinds(later) == ["copied-record"]
    assert picture(later) == before
    assert queries.show_vm(later.world, "copy").data["owner"] == "copy"
    (vgpu,) = queries.show_vm(later.world, "vm").data["vgpus"]
    assert (vgpu["vm"], vgpu["owner"]) == ("vm", "ours")


def test_a_claim_that_vanished_is_written_again(tmp_path):
    host = open_host(tmp_path)
    done = create(host.world, wish("A100-4C"))
    host.world.claims.remove(done.data["vgpus"][0]["carrier"], done.data["uuid"])
    later = host.again()
    assert kinds(later) == ["claim-lost"]
    assert len(picture(later).claims) == 1
    assert kinds(later) == []


def test_foreign_devices_are_never_touched(tmp_path):
    host = open_host(tmp_path, "mixed")
    path = "/sys/bus/pci/devices/0000:3b:00.5/nvidia/current_vgpu_type"
    host.world.sysfs.write(path, "468\n")
    before = picture(host)
    assert kinds(host.again()) == []
    assert picture(host) == before


def test_a_vm_that_another_vgpuctl_finished_meanwhile_is_left_alone(tmp_path):
    host = open_host(tmp_path)
    uuid = create(host.world, wish("A100-4C", name="vm"), start=False).data["uuid"]
    record = host.world.hypervisor.find_domain(uuid)
    ready = parse(record.xml, record.state, host.world.machine_id).promise
    host.world.hypervisor.set_promise(uuid, promise_to_xml(replace(ready, state=PromiseState.MAKING)))
    later = host.again()
    before = picture(later)
    watch = Watch(before=lambda number, call, args: finished(call))

    def finished(call):
        if call == "hypervisor.find_domain" and "hypervisor.find_domain" not in watch.calls[:-1]:
            host.world.hypervisor.set_promise(uuid, promise_to_xml(ready))

    done = mend(watch.watch(later.world))
    assert [f["kind"] for f in done.data["findings"]] == ["half-made"]
    after = picture(later)
    assert (after.types, after.files, after.domains.keys()) == (before.types, before.files, before.domains.keys())
    assert queries.show_vm(later.world, "vm").data["record"] == "ready"


def test_a_claim_whose_vm_appeared_meanwhile_is_left_alone(tmp_path):
    host = open_host(tmp_path)
    uuid = create(host.world, wish("A100-4C", name="vm"), start=False).data["uuid"]
    xml = host.world.hypervisor.find_domain(uuid).xml
    host.world.hypervisor.undefine(uuid)
    later = host.again()
    before = picture(later)
    watch = Watch(before=lambda number, call, args: appeared(call))

    def appeared(call):
        if call == "hypervisor.find_domain" and "hypervisor.find_domain" not in watch.calls[:-1]:
            host.world.hypervisor.define(xml)

    assert [f["kind"] for f in mend(watch.watch(later.world)).data["findings"]] == ["leaked"]
    after = picture(later)
    assert (after.types, after.claims) == (before.types, before.claims)
    assert queries.show_vm(later.world, "vm").data["vgpus"][0]["present"]


def test_a_vm_that_a_living_command_is_making_is_no_finding(tmp_path):
    host = open_host(tmp_path)
    wanted = wish("A100-4C", name="vm")
    making = Halted(host, "hypervisor", "set_promise", lambda world: create(world, wanted, start=False))
    before = picture(host)
    assert len(before.claims) == len(before.domains) == 1
    assert kinds(host, dry_run=True) == []
    assert kinds(host) == []
    assert picture(host) == before
    assert making.finish() == 0
    assert queries.show_vm(host.world, "vm").data["record"] == "ready"


def test_a_vm_that_runs_is_recorded_and_keeps_all_although_its_record_says_half_made(tmp_path):
    host = open_host(tmp_path)
    uuid = create(host.world, wish("A100-4C", name="vm")).data["uuid"]
    record = host.world.hypervisor.find_domain(uuid)
    ready = parse(record.xml, record.state, host.world.machine_id).promise
    host.world.hypervisor.set_promise(uuid, promise_to_xml(replace(ready, state=PromiseState.MAKING)))
    later = host.again()
    before = picture(later)
    assert kinds(later) == ["half-made"]
    after = picture(later)
    assert (after.types, after.files, after.running) == (before.types, before.files, before.running)
    assert queries.show_vm(later.world, "vm").data["record"] == "ready"


def test_what_a_living_command_is_about_to_make_is_not_stray(tmp_path):
    """An attach has claimed, and neither the record nor the devices of its VM know of it yet."""
    host = open_host(tmp_path)
    elsewhere(lambda: create(beside(host).world, wish("A100-4C", name="vm"), start=False))
    attached = Halted(host, "hypervisor", "set_promise", lambda world: plug(replace(host, world=world), "A100-4C"))
    before = picture(host)
    assert len(before.claims) == 2
    assert kinds(host, dry_run=True) == []
    assert kinds(host) == []
    assert picture(host) == before
    assert attached.finish() == 0
    assert len(queries.show_vm(host.world, "vm").data["vgpus"]) == 2


def test_a_vm_that_was_drained_on_a_gpu_with_a_stuck_write_is_to_be_started_and_nothing_is_read_there(tmp_path):
    """What that GPU has now is not known before the write ends: the start says so, with its process."""
    host = drained(tmp_path)
    for name in ("one", "two"):
        host.world.hypervisor.destroy(host.world.hypervisor.find_domain(name).uuid)
    uuid = host.world.hypervisor.find_domain("one").uuid
    host.world.claims.note_drained(DrainedVm(uuid, FLEX, ProcessId(999999, 1)))
    host.world.sysfs.write(f"/sys/bus/pci/devices/{FLEX}/sriov_numvfs", "0\n")
    (seen,) = mend(host.world, dry_run=True).data["findings"]
    assert seen["action"].startswith("nothing before the GPU is set up")
    host.world.claims.record_stuck(StuckWrite(host.world.processes.this(), FLEX, "/sys/x", "0"))
    assert "start VM one" in [f["action"] for f in mend(host.world, dry_run=True).data["findings"]]
    with pytest.raises(Stuck) as raised:
        mend(host.world)
    assert raised.value.facts["gpu"] == FLEX
