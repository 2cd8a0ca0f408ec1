# SPDX-License-Identifier: Apache-2.0
"""The hardware, kernel or driver changed while the VMs were off: each VM finds another slot, or the way to one."""

from __future__ import annotations

from shlex import quote

import pytest

from tests.hosts import (
    SimulatedHost,
    context,
    create,
    open_sim_host,
    operation,
    picture,
    request,
    run_reconcile,
    set_vm,
    start,
    with_other_hardware,
)
from vgpuctl.config.host_spec import GpuSpec, HostSpec, VgpuSpec
from vgpuctl.errors import Failed, HostCannot, NoCapacity, VgpuctlError
from vgpuctl.model.gpu import GpuMode
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.diagnose import diagnose
from vgpuctl.operations.restore import restore_host

OLD, NEW, OTHER = "0000:3b:00.0", "0000:3c:00.0", "0000:af:00.0"
VM_NAME = "it's"


def scenario(*gpus: str, kernel: str = "6.8.0-45-generic", driver: str = "550.90.05") -> str:
    """Return a host with these GPUs: `MODEL ADDRESS`, and further keys."""
    lines = [
        f"version: 1\nkernel: {kernel}\nnvidia: {{driver: {driver!r}}}\nnetworks: [{{name: default}}]\n",
        "storage: {pools: [{name: default}]}\ngpus:\n",
    ]
    for gpu in gpus:
        model, address, *more = gpu.split(" ", 2)
        lines.append(f"  - {{model: {model}, address: '{address}'{', ' if more else ''}{''.join(more)}}}\n")
    return "".join(lines)


BEFORE = scenario(f"L40S {OLD}", f"L40S {OTHER}")
MOVED = scenario(f"L40S {NEW}", f"L40S {OTHER}")
MDEV_KERNEL = "5.15.0-100-generic"
CHANGES = {
    "another address": (BEFORE, MOVED, "L40S-8Q", "L40S-8Q"),
    "mdev to VF": (scenario(f"L40S {OLD}", kernel=MDEV_KERNEL), scenario(f"L40S {OLD}"), "L40S-8Q", "L40S-8Q"),
    "VF to mdev": (scenario(f"L40S {OLD}"), scenario(f"L40S {OLD}", kernel=MDEV_KERNEL), "L40S-8Q", "L40S-8Q"),
    "another model": (scenario(f"A40 {OLD}"), scenario(f"L40S {OLD}"), "8Q", "L40S-8Q"),
    "another address of an mdev": (scenario(f"T4 {OLD}"), scenario(f"T4 {NEW}"), "T4-4Q", "T4-4Q"),
}


def state_of(host: SimulatedHost, name: str) -> tuple[tuple[AssignedVgpu, ...], list[str], str]:
    """Return a VM's vGPUs in its record, the devices in its definition, and its state."""
    vm = observe(host.ports, ReadScope()).vm(name)
    return vm.record.vgpus, [h.carrier for h in vm.hostdevs], str(vm.state)


def restore(host: SimulatedHost, spec: HostSpec | None = None, *, dry_run: bool = False) -> Outcome:
    with operation(host.ports):
        return restore_host(host.ports, context(dry_run=dry_run, wait_seconds=5.0), spec or HostSpec(1))


def check_is_placed(host: SimulatedHost, name: str, profile: str, *gpus: str, state: str = "running") -> None:
    assigned, carriers, current = state_of(host, name)
    assert (current, [v.profile for v in assigned]) == (state, [profile])
    assert carriers == [v.carrier for v in assigned]
    assert {v.gpu for v in assigned} <= set(gpus)
    assert [c.carrier for c in host.ports.claims.all() if c.vm == name] == carriers


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("reserve", ["always", "running"])
def test_a_vm_whose_slot_is_gone_starts_in_another_one(tmp_path, case, reserve):
    before, after, asked, gets = CHANGES[case]
    host = open_sim_host(tmp_path, text=before)
    names = ("one", "two") if reserve == "always" else ("one",)
    for name in names:
        create(host.ports, request(asked, name=name, reserve=reserve), start=False)
    host = with_other_hardware(host, after)
    for name in names:
        assert start(host.ports, name).changed
        check_is_placed(host, name, gets, OLD, NEW, OTHER)
    assert not run_reconcile(host.ports).changed


@pytest.mark.parametrize("case", CHANGES)
def test_restore_host_waits_for_no_slot_that_cannot_come_and_places_the_vms(tmp_path, case):
    before, after, asked, gets = CHANGES[case]
    host = open_sim_host(tmp_path, text=before)
    for name in ("one", "two"):
        create(host.ports, request(asked, name=name), start=False)
    host = with_other_hardware(host, after)
    seconds = host.ports.clock.monotonic()
    planned = restore(host, dry_run=True)
    assert any("vm one would get another place when libvirt runs" in warning for warning in planned.warnings)
    done = restore(host)
    assert host.ports.clock.monotonic() == seconds
    assert [(r.kind, r.name) for r in done.data.restored] == [("vm", "one"), ("vm", "two")]
    for name in ("one", "two"):
        check_is_placed(host, name, gets, OLD, NEW, OTHER, state="stopped")
    assert not restore(host).changed


def test_claims_of_a_boot_before_do_not_stay_on_the_old_slot(tmp_path):
    host = open_sim_host(tmp_path, text=scenario(f"T4 {OLD}"))
    create(host.ports, request("T4-4Q", name="one"), start=False)
    claims = host.ports.claims.all()
    host = with_other_hardware(host, scenario(f"T4 {NEW}"))
    for claim in claims:
        host.ports.claims.add(claim)
    start(host.ports, "one")
    assert [c.gpu for c in host.ports.claims.all()] == [NEW]


@pytest.mark.parametrize("reserve", ["always", "running"])
def test_a_vm_that_may_be_only_on_a_gpu_that_is_gone_names_the_command_that_moves_it(tmp_path, reserve):
    host = open_sim_host(tmp_path, text=BEFORE)
    create(host.ports, request("L40S-8Q", name="one", gpu=OLD, reserve=reserve), start=False)
    host = with_other_hardware(host, MOVED)
    before = picture(host)
    with pytest.raises(HostCannot, match=f"one may be only on {OLD}") as raised:
        start(host.ports, "one")
    assert raised.value.hint == f"vgpuctl set-vm one --profile L40S-8Q --gpu {NEW}"
    assert picture(host) == before
    moved = set_vm(host.ports, request("L40S-8Q", name="one", gpu=NEW), "profile", "gpu")
    assert moved.changed
    assert start(host.ports, "one").changed
    check_is_placed(host, "one", "L40S-8Q", NEW)
    assert run_reconcile(host.ports).changed is False


def test_a_vm_without_room_elsewhere_stays_as_it_is(tmp_path):
    host = open_sim_host(tmp_path, text=scenario(f"L40S {OLD}", f"L40S {OTHER}"))
    for number in range(2):
        create(host.ports, request("L40S-48Q", name=f"vm-{number}"), start=False)
    host = with_other_hardware(host, scenario(f"L40S {NEW}"))
    start(host.ports, "vm-0")
    start_before = picture(host)
    with pytest.raises(NoCapacity):
        start(host.ports, "vm-1")
    assert picture(host) == start_before


def test_a_gpu_of_host_yaml_on_no_bus_fails_at_once_and_is_named(tmp_path):
    host = open_sim_host(tmp_path, text=MOVED)
    seconds = host.ports.clock.monotonic()
    spec = HostSpec(1, gpus={OLD: GpuSpec(GpuMode.VGPU)}, vgpus={"spare": VgpuSpec("L40S-8Q", OLD, f"{OLD[:-1]}4")})
    with pytest.raises(Failed) as raised:
        restore(host, spec)
    assert host.ports.clock.monotonic() == seconds
    failed = {entry.name: entry for entry in raised.value.facts["failed"]}
    assert f"correct or remove {OLD}" in failed[OLD].hint
    assert failed["spare"].hint == ("vgpuctl delete-vgpu spare --yes; vgpuctl create-vgpu spare --profile L40S-8Q")


def test_a_gpu_whose_driver_is_not_there_yet_is_waited_for(tmp_path):
    host = open_sim_host(tmp_path, text=scenario(f"L40S {OLD}"))
    create(host.ports, request("L40S-8Q", name="one"), start=False)
    host = with_other_hardware(host, scenario(f"L40S {OLD} vfs: {{enabled: 0}}"))
    with pytest.raises(VgpuctlError, match=f"the VFs of {OLD}"):
        start(host.ports, "one")
    seconds = host.ports.clock.monotonic()
    with pytest.raises(Failed, match="offers no vGPUs yet"):
        restore(host)
    assert host.ports.clock.monotonic() > seconds


@pytest.mark.parametrize("reserve", ["always", "running"])
@pytest.mark.parametrize("model", ["T4", "H100"])
def test_a_vm_whose_profile_nothing_offers_any_more_gets_the_command_that_changes_it(tmp_path, model, reserve):
    profile, near = {"T4": ("T4-4Q", "T4-4C"), "H100": ("H100-10C", "H100-16C")}[model]
    host = open_sim_host(tmp_path, text=scenario(f"{model} {OLD} profiles: [{profile}]"))
    create(host.ports, request(profile, name=VM_NAME, reserve=reserve), start=False)
    host = with_other_hardware(host, scenario(f"{model} {OLD} profiles: [{near}]"))
    with pytest.raises(HostCannot, match=f"{VM_NAME} has {profile}, which no GPU on this host offers") as raised:
        start(host.ports, VM_NAME)
    assert raised.value.hint == f"vgpuctl set-vm {quote(VM_NAME)} --profile {near}"
    (check,) = diagnose(host.ports, ("lost-vgpus",)).checks
    assert (check.evidence, check.fix) == (
        (f"{VM_NAME} needs another place: {OLD} no longer offers {profile}",),
        raised.value.hint,
    )
    assert set_vm(host.ports, request(near, name=VM_NAME)).changed
    assert start(host.ports, VM_NAME).changed


@pytest.mark.parametrize("model", ["T4", "L40S"])
def test_nothing_waits_for_a_gpu_that_vfio_pci_has(tmp_path, model):
    profile = {"T4": "T4-4Q", "L40S": "L40S-8Q"}[model]
    host = open_sim_host(tmp_path, text=scenario(f"{model} {OLD}"))
    create(host.ports, request(profile, name="vm"), start=False)
    host = with_other_hardware(host, scenario(f"{model} {OLD} driver: vfio-pci"))
    begin = host.ports.clock.monotonic()
    with pytest.raises(Failed, match=f"vfio-pci has {OLD}, so it offers no vGPUs") as raised:
        restore(host)
    assert host.ports.clock.monotonic() == begin
    assert str(raised.value.hint).startswith("vfio-pci has it; give it to nvidia now: virsh nodedev-reattach pci_0000_")
