# SPDX-License-Identifier: Apache-2.0
"""A VM's generation grows with each change, and a call that expects one changes nothing of a VM changed since."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.callers import ADA
from tests.hosts import SimulatedHost, open_sim_host, yes
from tests.meanwhile import on_call, unchanged
from vgpuctl.domain.domain_edit import with_next_generation
from vgpuctl.domain.record import record_after, record_from_xml, record_to_xml
from vgpuctl.errors import Busy, LibvirtFailed, NotFound, Stale, VgpuctlError
from vgpuctl.library import GpuHost
from vgpuctl.model.outcome import CallSettings, NoProgress
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
SPEC: Any = {"profile": "A100-4C", "memory": "1GiB", "image": IMAGE}
BY_0_2 = '<vm xmlns="urn:vgpuctl:1" state="ready" vm-uuid="u" machine-id="m" reserve="always"><spec>{}</spec></vm>'


def calls(host: SimulatedHost, if_generation: int | None = None, ports: Host | None = None) -> GpuHost:
    """Return the library's calls for a request that expects a generation; None: it expects none."""
    used = replace(ports or host.ports, audit_log=host.sim.audit)
    settings = CallSettings(30.0, NoProgress(), yes, lambda: False, caller=ADA, if_generation=if_generation)
    return GpuHost(used, settings, None, lambda settings, _: GpuHost(used, settings))


def generation(host: SimulatedHost, name: str = "vm") -> int | None:
    """Return the generation that show-vm shows, and list-vms too."""
    shown = calls(host).show_vm(name).data.generation
    assert [row.generation for row in calls(host).list_vms().data if row.name == name] == [shown]
    return shown


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    """A host with the VM `vm`, which is off."""
    host = open_sim_host(tmp_path)
    calls(host).create_vm("vm", start=False, **SPEC)
    return host


CHANGES: dict[str, Callable[[GpuHost], object]] = {
    "set-vm": lambda by: by.set_vm("vm", memory="2GiB"),
    "set-vm, labels": lambda by: by.set_vm("vm", owner="me"),
    "ensure-vm": lambda by: by.ensure_vm("vm", vcpus=4, state="started"),
    "attach-vgpu": lambda by: by.attach_vgpu("vm", profile="A100-4C"),
    "detach-vgpu": lambda by: by.detach_vgpu("vm"),
    "resize-disk": lambda by: by.resize_disk("vm", "500GiB"),
    "refresh-vm": lambda by: by.refresh_vm("vm", IMAGE),
}
OTHERS: dict[str, Callable[[GpuHost], object]] = {
    "start-vm": lambda by: by.start_vm("vm"),
    "stop-vm": lambda by: by.stop_vm("vm", force=True),
    "reboot-vm": lambda by: by.reboot_vm("vm", force=True),
    "delete-vm": lambda by: by.delete_vm("vm"),
    "ensure-vm absent": lambda by: by.ensure_vm("vm", state="absent"),
    "set-vm, drained": lambda by: by.set_vm("vm", memory="2GiB", drain=True),
    "refresh-vm, drained": lambda by: by.refresh_vm("vm", IMAGE, drain=True),
}
STARTED_BEFORE = ("stop-vm", "reboot-vm", "set-vm, drained", "refresh-vm, drained")


def test_a_record_of_version_0_2_is_at_0_and_is_written_as_before() -> None:
    record = record_from_xml(BY_0_2)
    assert record.generation == 0
    assert record_to_xml(record) == BY_0_2
    assert record_from_xml(record_to_xml(replace(record, generation=7))).generation == 7
    grown = BY_0_2.replace(' reserve="always"', ' reserve="always" generation="1"')
    assert record_to_xml(record_after(record, record)) == grown


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_lets_it_grow_and_the_same_change_again_does_not(host: SimulatedHost, name: str) -> None:
    assert generation(host) == 0
    CHANGES[name](calls(host))
    after = generation(host)
    assert after is not None
    assert after > 0
    if name in ("set-vm", "set-vm, labels", "ensure-vm", "resize-disk"):
        assert after == 1
        CHANGES[name](calls(host))
        assert generation(host) == after


def test_a_start_and_a_stop_that_change_no_record_leave_it(host: SimulatedHost) -> None:
    for act in (OTHERS["start-vm"], OTHERS["reboot-vm"], OTHERS["stop-vm"]):
        act(calls(host))
        assert generation(host) == 0


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_is_undone_puts_the_number_back(tmp_path: Path, name: str) -> None:
    """A removal, which is not undone, has grown instead."""

    def fail() -> None:
        raise LibvirtFailed("it failed after the write")

    failures = 0
    for call in ("hypervisor.set_record", "hypervisor.redefine"):
        host = open_sim_host(tmp_path / call)
        calls(host).create_vm("vm", start=False, **SPEC)
        before = calls(host).show_vm("vm").data
        try:
            CHANGES[name](calls(host, ports=on_call(host.ports, call, fail, nth=1, after=True)))
        except VgpuctlError:
            failures += 1
            after = calls(host).show_vm("vm").data
            assert (replace(after, generation=0) == before) == (name != "detach-vgpu"), call
            assert after.generation == (1 if name == "detach-vgpu" else 0), call
    assert failures


@pytest.mark.parametrize("name", [*CHANGES, *OTHERS])
def test_with_the_right_generation_it_is_carried_out(host: SimulatedHost, name: str) -> None:
    calls(host).set_vm("vm", labels={"a": "b"})
    if name in STARTED_BEFORE:
        calls(host).start_vm("vm")
    {**CHANGES, **OTHERS}[name](calls(host, 1))


@pytest.mark.parametrize("name", [*CHANGES, *OTHERS])
def test_of_two_changes_for_the_same_generation_the_second_is_refused(host: SimulatedHost, name: str) -> None:
    if name in STARTED_BEFORE:
        calls(host).start_vm("vm")
    calls(host, 0).set_vm("vm", labels={"a": "b"})
    with (
        unchanged(host),
        pytest.raises(Stale, match=r"vm was changed: it is at generation 1, .* generation 0") as stale,
    ):
        {**CHANGES, **OTHERS}[name](calls(host, 0))
    assert (stale.value.code, stale.value.status) == ("stale", 3)
    assert stale.value.facts == {"vm": "vm", "generation": 1, "expected": 0}
    assert "show-vm vm --json" in str(stale.value.hint)


@pytest.mark.parametrize("name", [*CHANGES, *OTHERS])
def test_a_change_of_another_process_in_between_is_never_overwritten(tmp_path: Path, name: str) -> None:
    """Another process changes the VM ahead of each look of the operation, or before it writes."""
    swaps = 0
    for call in ("hypervisor.domains", "hypervisor.find_domain", "claims.lock", "hypervisor.definition"):
        for number in (1, 2, 3):
            directory = tmp_path / f"{call}{number}"
            host = open_sim_host(directory)
            calls(host).create_vm("vm", start=name in STARTED_BEFORE, **SPEC)
            other = host.again()
            seen: list[Any] = []

            def change(other: SimulatedHost = other, seen: list[Any] = seen) -> None:
                with suppress(Busy, NotFound):  # the operation works on it
                    calls(other).set_vm("vm", labels={"by": "another"})
                    seen.append(calls(other).show_vm("vm").data)

            ports = on_call(open_sim_host(directory).ports, call, change, nth=number)
            refused = False
            try:
                {**CHANGES, **OTHERS}[name](calls(host, 0, ports))
            except VgpuctlError:
                refused = True
            if not seen:
                continue
            swaps += refused
            assert calls(other).show_vm("vm").data.labels == {"by": "another"}, (call, number)
            if name in CHANGES:  # it was refused, or the other one changed what it had changed
                assert refused or seen[0].generation > 1, (call, number)
    assert swaps


def test_a_vm_without_a_record_is_at_no_generation(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    host.ports.hypervisor.define(
        """<domain type='kvm'><name>theirs</name><uuid>11111111-2222-4333-8444-555555555555</uuid>
<memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os><devices>
<controller type='pci' index='0' model='pcie-root'/></devices></domain>"""
    )
    assert generation(host, "theirs") is None
    root = replace(host.ports, audit_log=host.sim.audit)
    settings = CallSettings(30.0, NoProgress(), yes, lambda: False, if_generation=0)
    with unchanged(host), pytest.raises(Stale, match="theirs has no record of vgpuctl"):
        GpuHost(root, settings).attach_vgpu("theirs", profile="A100-4C")
    GpuHost(root, replace(settings, if_generation=None)).attach_vgpu("theirs", profile="A100-4C")
    assert generation(host, "theirs") == 0


def test_a_vm_that_is_gone_is_not_made_again_for_a_request_that_expects_it(host: SimulatedHost) -> None:
    calls(host).delete_vm("vm")
    with unchanged(host), pytest.raises(NotFound, match="no VM vm"):
        calls(host, 0).ensure_vm("vm", **SPEC)


def test_a_copied_record_is_left_alone(host: SimulatedHost) -> None:
    xml = host.ports.hypervisor.definition(calls(host).show_vm("vm").data.uuid)
    assert with_next_generation(xml).count('generation="1"') == 1
    copied = xml.replace("<uuid>", "<uuid>0", 1)
    assert with_next_generation(copied) == copied
