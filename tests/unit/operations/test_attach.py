# SPDX-License-Identifier: Apache-2.0
"""attach and detach: VM on or off, managed or unmanaged, and what a guest that does not answer leaves behind."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.hosts import (
    SimulatedHost,
    context,
    create,
    delete,
    open_sim_host,
    picture,
    request,
    run_reconcile,
    start,
    stop,
)
from tests.meanwhile import rebooted, unchanged
from tests.reserving_vms import vm_of
from vgpuctl.domain.domain_edit import count_root_ports
from vgpuctl.domain.record import record_to_xml
from vgpuctl.errors import Busy, NoCapacity, NotFound, Refused, Unmanaged
from vgpuctl.model.outcome import Outcome
from vgpuctl.operations.attach import attach, detach

HOSTS = {"a100-40": "A100-4C", "t4": "T4-2Q", "a16": "A16-2Q"}
FOREIGN = """<domain type='kvm'><name>desk</name><uuid>11111111-2222-4333-8444-555555555555</uuid>
<memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os><devices>
<controller type='pci' index='0' model='pcie-root'/><controller type='pci' index='1' model='pcie-root-port'/>
<controller type='usb' model='none'/><memballoon model='none'/></devices></domain>"""
DEAF = """version: 1
gpus:
  - {model: A100, vfs: {total: 4, enabled: 4}}
faults:
  - {on: unplug, kind: %s, code: 9, nth: 1}
"""


def plug(host: SimulatedHost, profile: str, name: str = "vm", *, dry_run: bool = False, count: int = 1) -> Outcome:
    """Attach."""
    wanted = request(profile, count, name=name)
    return attach(host.ports, context(dry_run=dry_run), wanted)


def unplug(host: SimulatedHost, name: str = "vm", *carriers: str, dry_run: bool = False) -> Outcome:
    """Detach."""
    return detach(host.ports, context(dry_run=dry_run, wait_seconds=5), name, carriers)


@pytest.mark.parametrize("scenario", HOSTS)
@pytest.mark.parametrize("running", [True, False])
def test_a_vgpu_comes_and_goes_and_nothing_is_left(host: SimulatedHost, scenario: str, running: bool) -> None:
    create(host.ports, request(HOSTS[scenario], name="vm"), start=running)
    before = picture(host)
    outcome = plug(host, HOSTS[scenario])
    vgpus = outcome.data.vgpus
    assert [(v.present, v.ownership) for v in vgpus] == [(True, "managed")] * 2
    carriers = {v.carrier for v in vgpus}
    assert len(carriers) == 2
    after = picture(host)
    assert set(after.claims) == carriers
    assert set(after.running.get(next(iter(after.domains)), ())) == (carriers if running else set())
    new = carriers - set(before.claims)
    assert unplug(host, "vm", *new).changed
    now = picture(host)
    domains = {uuid: (name, xml.replace(" generation='2'", "")) for uuid, (name, xml) in now.domains.items()}
    assert domains != now.domains
    assert dataclasses.replace(now, domains=domains) == before, "only the number of changes is another one"
    assert unplug(host).changed
    assert not unplug(host).changed
    stop(host.ports, "vm")
    host = rebooted(host)
    start(host.ports, "vm")
    assert (picture(host).types, picture(host).mdevs) == ({}, {}), "it is not made again"
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


def test_a_vm_that_somebody_else_made_gets_one_and_is_never_deleted(host: SimulatedHost) -> None:
    host.ports.hypervisor.define(FOREIGN)
    host.ports.hypervisor.start("11111111-2222-4333-8444-555555555555")
    before = picture(host)
    data = plug(host, "A100-4C", "desk").data
    assert (data.ownership, data.record) == ("unmanaged", "ready")
    alias = "ua-vgpuctl-plug-0"
    assert alias in host.ports.hypervisor.find_domain("desk").xml, "as in definitions that version 0.2 wrote"
    with pytest.raises(Unmanaged, match="only attached 1"):
        delete(host.ports, "desk")
    stop(host.ports, "desk")
    start(host.ports, "desk")
    host.ports.hypervisor.set_record(data.uuid, None)
    assert [f.kind for f in run_reconcile(host.ports).data.findings] == ["record-lost"]
    with pytest.raises(Unmanaged):
        delete(host.ports, "desk")
    unplug(host, "desk")
    assert picture(host) == before


@pytest.mark.parametrize("scenario", HOSTS)
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_record_that_cannot_be_read_is_not_written_over(host: SimulatedHost, scenario: str, dry_run: bool) -> None:
    uuid = create(host.ports, request(HOSTS[scenario], name="vm"), start=False).data.uuid
    newer = record_to_xml(vm_of(host, "vm").record).replace('state="ready"', 'state="parked"')
    host.ports.hypervisor.set_record(str(uuid), newer)
    with unchanged(host), pytest.raises(Unmanaged, match="a newer one may have written it"):
        plug(host, HOSTS[scenario], dry_run=dry_run)


def test_without_a_free_port_it_is_refused_with_their_number_and_off_it_works(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm", hotplug_slots=1))
    assert count_root_ports(host.ports.hypervisor.find_domain("vm").live_xml).free == 1
    plug(host, "A100-4C")
    with unchanged(host), pytest.raises(Refused, match=r"0 of \d+ PCI ports free") as caught:
        plug(host, "A100-4C")
    assert caught.value.facts["ports_free"] == 0
    assert "stop-vm" in str(caught.value.hint)
    stop(host.ports, "vm")
    plug(host, "A100-4C")


def test_no_room_and_an_unknown_carrier_are_refused_and_change_nothing(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm"), start=False)
    with unchanged(host), pytest.raises(NoCapacity):
        plug(host, "A100-4C", count=10)
    with unchanged(host), pytest.raises(NotFound, match=r"no vGPU 0000:ff:00\.0"):
        unplug(host, "vm", "0000:ff:00.0")


def test_a_guest_that_does_not_let_go_keeps_it_until_it_does(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=DEAF % "lost")
    create(host.ports, request("A100-4C", name="vm"))
    plug(host, "A100-4C")
    before = picture(host)
    (carrier,) = set(before.claims) - {c for c in before.claims if c.endswith(".4")}
    with pytest.raises(Busy, match="within 5 s") as caught:
        unplug(host, "vm", carrier)
    assert caught.value.status == 75
    now = picture(host)
    assert (now.claims, now.types, now.running) == (before.claims, before.types, before.running)
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings
    unplug(host.again(), "vm", carrier)
    assert carrier not in picture(host).claims


def test_what_a_guest_let_go_later_reconcile_finishes(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=DEAF % "lost")
    create(host.ports, request("A100-4C", name="vm"))
    with pytest.raises(Busy):
        unplug(host)
    stop(host.ports, "vm")
    later = host.again()
    assert [f.kind for f in run_reconcile(later.ports).data.findings] == ["half-attached"]
    now = picture(later)
    assert (now.claims, now.types) == ({}, {})
    delete(later.ports, "vm")


def test_a_guest_that_refuses_keeps_config_and_device(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=DEAF % "error")
    create(host.ports, request("A100-4C", name="vm"))
    with unchanged(host), pytest.raises(Busy, match="refuses"):
        unplug(host)


def test_a_guest_that_refuses_later_is_not_waited_for_any_longer(tmp_path: Path) -> None:
    text = DEAF % "lost" + "  - {on: removal, kind: error, nth: 1}\n"
    host = open_sim_host(tmp_path, text=text)
    create(host.ports, request("A100-4C", name="vm"))
    before = picture(host)
    with pytest.raises(Busy, match="refuses to release"):
        unplug(host)
    now = picture(host)
    assert (now.claims, now.types, now.running) == (before.claims, before.types, before.running)
    unplug(host.again())
    assert picture(host).claims == {}


def test_a_dry_run_says_the_steps_and_changes_nothing(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm"))
    with unchanged(host):
        plugged, unplugged = plug(host, "A100-4C", dry_run=True).steps, unplug(host, dry_run=True).steps
    assert [s.split()[0] for s in plugged] == ["claim", "record", "create", "attach"]
    assert [s.split()[0] for s in unplugged] == ["detach", "remove", "record", "release"]
