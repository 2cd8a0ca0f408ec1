# SPDX-License-Identifier: Apache-2.0
"""An exchange of places that version 0.1 left half-way: nobody uses its VMs until reconcile has resolved it."""

from __future__ import annotations

from functools import partial
from xml.etree import ElementTree

import pytest

from tests.disk_state_0_1 import NAMESPACE, PROFILES, Site, carrier_of, fresh, record_of, site, written
from tests.faults import Watch, outcome
from tests.hosts import SimulatedHost, create, picture, request, run_reconcile
from tests.reserving_vms import vm_of
from vgpuctl.errors import Busy, NoCapacity
from vgpuctl.model.port_values import DomainInfo
from vgpuctl.model.vm import VmState
from vgpuctl.operations.devices import has_missing_devices
from vgpuctl.value import replace

__all__ = ["fresh", "site"]
NAMES = ("first", "second", "third")


def note_of(site: Site, name: str) -> ElementTree.Element:
    note = written(site, name).find(f"{NAMESPACE}exchange")
    assert note is not None
    return note


def new_carrier(site: Site, name: str) -> str:
    return carrier_of(note_of(site, name))


@pytest.fixture
def decided(site: Site) -> SimulatedHost:
    """The host as 0.1 left it once the deciding VM had been switched over, and before the others were."""
    host, text = site.host(), site.xml("first")
    old, new = carrier_of(written(site, "first")), note_of(site, "second").attrib["with-carrier"]
    place = record_of(site.xml("second")).find(f"{NAMESPACE}vgpu")
    here = written(site, "first").find(f"{NAMESPACE}vgpu")
    assert place is not None
    assert here is not None
    text = text.replace(old, new).replace(here.attrib["gpu"], place.attrib["gpu"])
    source = "bus='0x3b' slot='0x00' function='0x4'", "bus='0x5e' slot='0x00' function='0x5'"
    host.ports.hypervisor.redefine(vm_of(host, "first").uuid, text.replace(*source))
    assert carrier_of(record_of(site.xml("first"))) == new
    return host.again()


def test_until_reconcile_has_run_its_vms_are_left_alone(site: Site) -> None:
    host = site.host()
    for name in NAMES[1:]:
        assert "its place is being exchanged" in site.run("start-vm", name, status=75)["message"]
        vm = vm_of(host, name)
        assert vm.record is not None
        with pytest.raises(Busy, match="its place is being exchanged"):
            has_missing_devices(host.ports, vm, vm.record)
        with pytest.raises(NoCapacity):  # nobody gets the place that a VM goes to, before it is there
            create(host.ports, request(PROFILES[site.kind][2], name="faster", gpu=note_of(site, name)[0].attrib["gpu"]))


@pytest.mark.parametrize("booted", [False, True], ids=["", "booted"])
def test_what_was_decided_is_finished(site: Site, decided: SimulatedHost, booted: bool) -> None:
    if booted:
        decided.sim.reboot()
    findings = site.run("reconcile-host")["findings"]
    assert len([f for f in findings if f["kind"] == "half-exchanged"]) == 2
    for name in NAMES[1:]:
        record = record_of(site.xml(name))
        assert record.find(f"{NAMESPACE}exchange") is None
        assert carrier_of(record) == new_carrier(site, name)
    left = {f["kind"] for f in site.run("reconcile-host", "--dry-run")["findings"]}
    assert left == ({"vgpu-missing"} if booted else set())  # restore-host makes that one
    for name in NAMES:
        site.run("start-vm", name)
        assert site.run("show-vm", name)["vgpus"][0]["present"]


def test_what_was_not_decided_is_taken_back(site: Site) -> None:
    site.run("reconcile-host")
    for name in NAMES:
        assert carrier_of(record_of(site.xml(name))) == carrier_of(written(site, name))
        site.run("start-vm", name)


def test_a_vm_that_another_program_starts_meanwhile_loses_nothing_to_reconcile(
    site: Site, decided: SimulatedHost
) -> None:
    if site.kind != "vendor-vf":
        return
    site.run("delete-vm", "second", "--yes")  # which has the whole GPU now
    old = carrier_of(written(site, "third"))
    host = decided.again()
    for function, profile in ((new_carrier(site, "second"), "0"), (old, "472")):
        host.ports.sysfs.write(f"/sys/bus/pci/devices/{function}/nvidia/current_vgpu_type", f"{profile}\n")
    host = host.again()
    looked: list[str] = []

    def begin(number: int, call: str, args: tuple[object, ...]) -> None:
        is_third = call == "hypervisor.find_domain" and args == (vm_of(host, "third").uuid,)
        looked.extend([call] if is_third else [])
        if is_third and len(looked) == 1:  # it was off when reconcile looked last; no hook of vgpuctl runs here
            host.sim.hypervisor.start(vm_of(host, "third").uuid)

    error = outcome(partial(run_reconcile, Watch(after=begin).watch(host.ports)))
    assert vm_of(host, "third").state is VmState.RUNNING
    assert error is not None
    assert any("VM third is running" in line for line in error.left)
    assert picture(host).types[old] == 472


def test_a_vm_that_runs_where_it_was_keeps_that_place(decided: SimulatedHost) -> None:
    class Runs:
        """A hypervisor on which the VM was started behind vgpuctl's back."""

        def __getattr__(self, name: str) -> object:
            return getattr(decided.ports.hypervisor, name)

        def domains(self) -> tuple[DomainInfo, ...]:
            domains = decided.ports.hypervisor.domains()
            return tuple(replace(r, state=VmState.RUNNING) if r.name == "third" else r for r in domains)

    before = picture(decided)
    seen = run_reconcile(replace(decided.ports, hypervisor=Runs()), dry_run=True).data.findings
    assert "nothing while it runs in its old place: virsh shutdown third first" in [
        f.action for f in seen if f.kind == "half-exchanged"
    ]
    assert picture(decided) == before
