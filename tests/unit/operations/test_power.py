# SPDX-License-Identifier: Apache-2.0
"""Start, stop, reboot and delete: only managed VMs, and only what was created for them.

The guest of a VM that reboots is waited for as far as it can be seen.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import (
    EagerClock,
    SimulatedHost,
    context,
    create,
    delete,
    living_operation,
    open_sim_host,
    picture,
    request,
    start,
    stop,
)
from tests.meanwhile import on_call, rebooted, unchanged, with_calls
from tests.unit.operations.test_change import reprofile
from vgpuctl.errors import Busy, Interrupted, InUse, NotFound, NotRebooted, PartlyApplied, Refused, Unmanaged
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.port_values import RebootOutcome
from vgpuctl.model.request import ExistingDisk
from vgpuctl.operations.power import reboot_vm
from vgpuctl.operations.wait import wait
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
DEAF = "version: 1\ngpus: [{model: A100}]\nfaults: [{on: reboot, match: deaf, kind: lost}]\n"


def with_vm(directory: Path, name: str = "vm", *, on: bool = True, **options: Any) -> SimulatedHost:
    host = open_sim_host(directory, **options)
    create(host.ports, request("A100-4C", name=name), start=on)
    return host


def reboot(ports: Host, name: str = "vm", *, force: bool = False, dry_run: bool = False) -> Outcome:
    return reboot_vm(ports, context(dry_run=dry_run), name, force=force)


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q"), ("a16", "A16-2Q")])
def test_create_then_delete_restores_the_host_exactly(tmp_path, scenario, profile):
    host = open_sim_host(tmp_path, scenario)
    before = picture(host)
    create(host.ports, request(profile, 2 if scenario == "t4" else 1, name="vm", image=IMAGE))
    assert picture(host) != before
    done = delete(host.ports, "vm")
    assert (done.changed, done.data.state) == (True, "absent")
    assert picture(host) == before


@pytest.fixture
def host(tmp_path):
    return with_vm(tmp_path)


def test_a_stopped_vm_keeps_its_vgpu_and_starts_again(host):
    made = picture(host).types
    assert stop(host.ports, "vm").data.state == "stopped"
    assert picture(host).types == made
    assert not stop(host.ports, "vm").changed
    assert start(host.ports, "vm").data.state == "running"
    assert not start(host.ports, "vm").changed


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q"), ("a16", "A16-2Q")])
def test_after_a_reboot_start_makes_the_device_again_at_its_place(tmp_path, scenario, profile):
    host = open_sim_host(tmp_path, scenario)
    create(host.ports, request(profile, name="vm"))
    before = picture(host)
    host = rebooted(host)
    assert picture(host).types == picture(host).mdevs == {}
    start(host.ports, "vm")
    assert picture(host) == before


def test_after_a_reboot_a_vf_that_somebody_took_is_not_taken_back(host):
    host = rebooted(host)
    host.ports.sysfs.write("/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type", "469\n")
    with unchanged(host), pytest.raises(InUse) as raised:
        start(host.ports, "vm")
    assert "A100-5C, not A100-4C as vm needs" in str(raised.value)


def test_delete_keeps_base_images_existing_disks_and_requested_disks(tmp_path):
    host = open_sim_host(tmp_path)
    before = picture(host)
    create(host.ports, request("A100-4C", name="one", image=IMAGE))
    made = set(picture(host).files) - set(before.files)
    done = delete(host.ports, "one", keep_disks=True)
    assert {d.path for d in done.data.disks} == made
    assert set(picture(host).files) == set(before.files) | made
    create(host.ports, request("A100-4C", name="two", disks=(ExistingDisk("/srv/images/windows-11.qcow2"),)))
    delete(host.ports, "two")
    assert "/srv/images/windows-11.qcow2" in picture(host).files


@pytest.mark.parametrize(
    ("act", "virsh"), [(start, "start"), (stop, "shutdown"), (delete, "undefine"), (reboot, "reboot")]
)
def test_an_unmanaged_vm_is_refused_unchanged(tmp_path, act, virsh):
    host = open_sim_host(tmp_path, "mixed")
    with unchanged(host), pytest.raises(Unmanaged) as raised:
        act(host.ports, "old-desktop")
    assert "old-desktop" in str(raised.value)
    assert f"virsh {virsh} old-desktop" in str(raised.value.hint)


def wait_for(ports: Host, name: str) -> Outcome:
    return wait(ports, context(), [name], "running", 1)


@pytest.mark.parametrize("act", [start, stop, delete, reboot, wait_for])
def test_a_vm_that_is_not_there_is_answered_with_near_names(tmp_path, act):
    host = with_vm(tmp_path, "desktop-1")
    with pytest.raises(NotFound) as raised:
        act(host.ports, "desktop-2")
    assert "desktop-1" in str(raised.value.hint)


def test_a_vm_is_matched_by_uuid_too(tmp_path):
    host = open_sim_host(tmp_path)
    uuid = create(host.ports, request("A100-4C")).data.uuid
    assert stop(host.ports, uuid).data.uuid == uuid


def test_a_vm_that_was_given_another_profile_meanwhile_is_busy_and_not_without_room(tmp_path):
    host = with_vm(tmp_path, on=False)
    ports = on_call(host.again().ports, "claims.read", lambda: reprofile(host.again(), "A100-5C"), nth=1)
    with pytest.raises(Busy, match="has just been changed"):
        start(ports, "vm")
    assert start(host.again().ports, "vm").data.vgpus[0].profile == "A100-5C"


def test_a_vm_started_during_the_deletion_prompt_keeps_running(tmp_path):
    host = with_vm(tmp_path, on=False)
    with pytest.raises(InUse, match="has been started since"):
        delete(host.ports, "vm", confirm=lambda *_: start(host.again().ports, "vm"))
    assert picture(host).claims
    assert picture(host).running
    assert not start(host.ports, "vm").changed


def resets(host: SimulatedHost) -> list[int]:
    return [running.resets for running in host.sim._core.read_state().running.values()]


@pytest.mark.parametrize(("force", "step"), [(False, "reboot VM vm"), (True, "reset VM vm")])
def test_the_vm_keeps_its_vgpu_and_its_claim(host: SimulatedHost, force: bool, step: str) -> None:
    before = picture(host)
    done = reboot(host.ports, force=force)
    assert (done.changed, done.data.state, done.steps) == (True, "running", (step,))
    assert [v.present for v in done.data.vgpus] == [True]
    assert (picture(host), resets(host)) == (before, [1])


def test_a_dry_run_resets_nothing(host: SimulatedHost) -> None:
    assert reboot(host.ports, dry_run=True).dry_run
    assert resets(host) == [0]


def test_a_guest_that_ignores_it_is_busy_and_force_resets_it(tmp_path: Path) -> None:
    host = with_vm(tmp_path, "deaf", text=DEAF)
    with pytest.raises(NotRebooted, match="deaf did not reboot within 30 s") as caught:
        reboot(host.ports, "deaf")
    assert "vgpuctl reboot-vm deaf --force" in str(caught.value.hint)
    assert (caught.value.left, caught.value.undone, resets(host)) == ([], [], [0])
    assert reboot(host.ports, "deaf", force=True).changed


def test_a_vm_that_does_not_run_cannot_reboot(host: SimulatedHost) -> None:
    stop(host.ports, "vm")
    with pytest.raises(Refused, match="vm is stopped: only a running VM can reboot") as off:
        reboot(host.ports)
    assert off.value.hint == "vgpuctl start-vm vm"


def test_a_vm_on_which_another_command_works_is_busy(host: SimulatedHost) -> None:
    (claim,) = host.ports.claims.all()
    with host.ports.claims.lock(1):
        host.ports.claims.replace(replace(claim, operation=living_operation(host.ports).id))
    with pytest.raises(Busy, match="works on VM vm"):
        reboot(host.ports)


class Ends:
    """The watch of a VM that does this when it is asked to reboot."""

    def __init__(self, outcome: RebootOutcome | BaseException) -> None:
        self.outcome = outcome

    def wait(self, deadline_seconds: float) -> RebootOutcome:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


def ending(host: SimulatedHost, outcome: RebootOutcome | BaseException) -> Host:
    return with_calls(host.ports, "hypervisor", watch_reboot=lambda uuid: contextlib.nullcontext(Ends(outcome)))


def test_a_vm_that_goes_off_instead_is_left_and_named(host: SimulatedHost) -> None:
    with pytest.raises(PartlyApplied, match="vm went off instead of rebooting") as caught:
        reboot(ending(host, RebootOutcome.OFF))
    assert (caught.value.left, caught.value.hint) == (["VM vm: it is off"], "vgpuctl start-vm vm")


def test_a_reset_that_libvirt_does_not_report_is_no_success(host: SimulatedHost) -> None:
    with pytest.raises(NotRebooted, match="has not reported that vm was reset"):
        reboot(ending(host, RebootOutcome.UNKNOWN), force=True)


def test_a_signal_says_what_was_asked(host: SimulatedHost) -> None:
    with pytest.raises(Interrupted) as caught:
        reboot(ending(host, Interrupted("stopped", signal_number=2)))
    assert caught.value.left == ["VM vm: it was asked to reboot"]


@pytest.mark.parametrize(("seconds", "notes"), [(20, 0), (100, 1)])
def test_a_guest_agent_is_waited_for_again(tmp_path: Path, seconds: int, notes: int) -> None:
    clock = EagerClock()
    host = with_vm(tmp_path, clock=clock)
    begun, silent_from = clock.monotonic(), []

    def answers(uuid: str, source: str) -> tuple[()] | None:
        return None if silent_from and clock.monotonic() < silent_from[0] + seconds else ()

    ports = with_calls(host.ports, "hypervisor", guest_addresses=answers)
    done = reboot(on_call(ports, "hypervisor.reboot", lambda: silent_from.append(clock.monotonic()), after=True))
    assert (done.changed, len(done.notes), clock.monotonic() - begun) == (True, notes, min(seconds, 30))
