# SPDX-License-Identifier: Apache-2.0
"""A reboot: the VM keeps everything, the guest is waited for as far as it can be seen, and nothing else is touched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import (
    EagerClock,
    SimulatedHost,
    context,
    create,
    living_operation,
    open_sim_host,
    picture,
    request,
    stop,
)
from vgpuctl.errors import Busy, Interrupted, NotFound, PartlyApplied, Refused, Unmanaged
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.port_values import RebootOutcome
from vgpuctl.model.vm import VmState
from vgpuctl.operations.power import reboot_vm
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

DEAF = "version: 1\nstorage: {pools: [{name: default}]}\nnetworks: [{name: default}]\ngpus: [{model: A100}]\n"
DEAF += "faults:\n  - {on: reboot, match: deaf, kind: lost}\n"


def reboot(ports: Host, name: str = "vm", *, force: bool = False, dry_run: bool = False) -> Outcome:
    return reboot_vm(ports, context(dry_run=dry_run), name, force=force)


def with_vm(directory: Path, name: str = "vm", **options: Any) -> SimulatedHost:
    host = open_sim_host(directory, **options)
    create(host.ports, request("A100-4C", name=name))
    return host


def resets(host: SimulatedHost) -> list[int]:
    return [running.resets for running in host.sim._core.read_state().running.values()]


@pytest.mark.parametrize(("force", "step"), [(False, "reboot VM vm"), (True, "reset VM vm")])
def test_the_vm_keeps_its_vgpu_and_its_claim(tmp_path: Path, force: bool, step: str) -> None:
    host = with_vm(tmp_path)
    before = picture(host)
    done = reboot(host.ports, force=force)
    assert (done.changed, done.data.state, done.steps) == (True, "running", (step,))
    assert [v.present for v in done.data.vgpus] == [True]
    assert (picture(host), resets(host)) == (before, [1])


def test_a_dry_run_resets_nothing(tmp_path: Path) -> None:
    host = with_vm(tmp_path)
    assert reboot(host.ports, dry_run=True).dry_run
    assert resets(host) == [0]


def test_a_guest_that_ignores_it_is_busy_and_force_resets_it(tmp_path: Path) -> None:
    host = with_vm(tmp_path, "deaf", text=DEAF)
    with pytest.raises(Busy, match="deaf did not reboot within 30 s") as caught:
        reboot(host.ports, "deaf")
    assert "vgpuctl reboot-vm deaf --force" in str(caught.value.hint)
    assert (caught.value.left, caught.value.undone, resets(host)) == ([], [], [0])
    assert reboot(host.ports, "deaf", force=True).changed


def test_what_does_not_run_or_is_not_managed_is_refused(tmp_path: Path) -> None:
    host = with_vm(tmp_path, scenario="mixed")
    with pytest.raises(Unmanaged) as caught:
        reboot(host.ports, "old-desktop")
    assert "virsh reboot old-desktop" in str(caught.value.hint)
    with pytest.raises(NotFound):
        reboot(host.ports, "nobody")
    stop(host.ports, "vm")
    with pytest.raises(Refused, match="vm is stopped") as off:
        reboot(host.ports)
    assert off.value.hint == "vgpuctl start-vm vm"


class Around:
    """A hypervisor around the simulated one."""

    def __init__(self, host: SimulatedHost) -> None:
        self.inner = host.sim.hypervisor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class InState(Around):
    """A hypervisor whose VMs are in this state."""

    def __init__(self, host: SimulatedHost, state: VmState) -> None:
        super().__init__(host)
        self.state = state

    def domains(self) -> tuple[Any, ...]:
        return tuple(replace(domain, state=self.state) for domain in self.inner.domains())


@pytest.mark.parametrize(
    ("state", "hint"),
    [
        (VmState.PAUSED, "virsh resume vm"),
        (VmState.CRASHED, "vgpuctl stop-vm vm --force, then vgpuctl start-vm vm"),
    ],
)
def test_a_paused_or_crashed_vm_is_refused(tmp_path: Path, state: VmState, hint: str) -> None:
    host = with_vm(tmp_path)
    with pytest.raises(Refused, match="only a running VM can reboot") as caught:
        reboot(replace(host.ports, hypervisor=InState(host, state)))
    assert caught.value.hint == hint


def test_a_vm_on_which_another_command_works_is_busy(tmp_path: Path) -> None:
    host = with_vm(tmp_path)
    (claim,) = host.ports.claims.all()
    with host.ports.claims.lock(1):
        host.ports.claims.replace(replace(claim, operation=living_operation(host.ports).id))
    with pytest.raises(Busy, match="works on VM vm"):
        reboot(host.ports)


class Ends(Around):
    """A hypervisor whose VM does this when it is asked to reboot."""

    def __init__(self, host: SimulatedHost, outcome: RebootOutcome | BaseException) -> None:
        super().__init__(host)
        self.outcome = outcome

    @contextlib.contextmanager
    def watch_reboot(self, uuid: str) -> Iterator[Ends]:
        yield self

    def wait(self, deadline_seconds: float) -> RebootOutcome:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


def test_a_vm_that_goes_off_instead_is_left_and_named(tmp_path: Path) -> None:
    host = with_vm(tmp_path)
    with pytest.raises(PartlyApplied, match="vm went off instead of rebooting") as caught:
        reboot(replace(host.ports, hypervisor=Ends(host, RebootOutcome.OFF)))
    assert (caught.value.left, caught.value.hint) == (["VM vm: it is off"], "vgpuctl start-vm vm")


def test_a_reset_that_libvirt_does_not_report_is_no_success(tmp_path: Path) -> None:
    host = with_vm(tmp_path)
    with pytest.raises(Busy, match="has not reported that vm was reset"):
        reboot(replace(host.ports, hypervisor=Ends(host, RebootOutcome.UNKNOWN)), force=True)


def test_a_signal_says_what_was_asked(tmp_path: Path) -> None:
    host = with_vm(tmp_path)
    with pytest.raises(Interrupted) as caught:
        reboot(replace(host.ports, hypervisor=Ends(host, Interrupted("stopped", signal_number=2))))
    assert caught.value.left == ["VM vm: it was asked to reboot"]


class WithAgent(Around):
    """A guest whose agent answers, and after a reboot for some seconds does not."""

    def __init__(self, host: SimulatedHost, clock: EagerClock, silent_seconds: float) -> None:
        super().__init__(host)
        self.clock, self.silent_seconds = clock, silent_seconds
        self.back_at = 0.0

    def reboot(self, uuid: str) -> None:
        self.inner.reboot(uuid)
        self.back_at = self.clock.monotonic() + self.silent_seconds

    def guest_addresses(self, uuid: str, source: str) -> tuple[()] | None:
        return () if self.clock.monotonic() >= self.back_at else None


@pytest.mark.parametrize(("seconds", "notes"), [(20, 0), (100, 1)])
def test_a_guest_agent_is_waited_for_again(tmp_path: Path, seconds: int, notes: int) -> None:
    clock = EagerClock()
    host = with_vm(tmp_path, clock=clock)
    begun = clock.monotonic()
    done = reboot(replace(host.ports, hypervisor=WithAgent(host, clock, seconds)))
    assert (done.changed, len(done.notes), clock.monotonic() - begun) == (True, notes, min(seconds, 30))
