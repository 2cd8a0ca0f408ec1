# SPDX-License-Identifier: Apache-2.0
"""Runs one command while another program or another vgpuctl acts on a VM, and checks the invariants.

A VM that is not off keeps its disks, record, definition, devices and claims. The command ends with a documented status.
Repeated `reconcile` runs reach a state without changes, leave running VMs alone and leave nothing without an owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

from tests.faults import CHANGING, Watch
from tests.hosts import Act, EagerClock, SimulatedHost, copied, kill_operation, open_sim_host, run_reconcile
from tests.outside.cases import Case
from vgpuctl.domain.domain_xml import parse_disk_sources, parse_domain
from vgpuctl.errors import VgpuctlError
from vgpuctl.hook.run import prepare
from vgpuctl.model.deleted_disk import BIN_FOLDER, parse_bin_entry
from vgpuctl.model.vm import RecordState, VmState
from vgpuctl.sim.state import State

ACTIONS = ("start", "destroy", "undefine")
STATUSES = frozenset({1, 2, 3, 4, 5, 6, 75})
"""The failure statuses in docs/reference/exit-codes.md, without those of signals."""
ROUNDS = 5
LOOKS = frozenset({"sysfs.read", "sysfs.readlink", "sysfs.listdir"})


@dataclass(frozen=True)
class Instant:
    """An action of another program, or a command of another vgpuctl, on one VM, before one port call."""

    action: str
    target: str
    number: int


@dataclass(frozen=True)
class Result:
    """The result of a trial. `effective`: the action was carried out. `wrong`: the violated invariants."""

    case: Case
    instant: Instant
    call: str
    effective: bool
    status: int
    error: str
    wrong: tuple[str, ...]

    @property
    def where(self) -> str:
        """Return which trial it was."""
        i = self.instant
        return f"{self.case.name}: {i.action} {i.target} before call {i.number} {self.call}"


def _parts_of(host: SimulatedHost, state: State, uuid: str) -> set[str]:
    """Return the definition, record, disks, devices and claims that a running VM has; without a record no claims."""
    domain, running = state.domains[uuid], state.running[uuid]
    has_record = "urn:vgpuctl:1" in domain.xml
    claims = {c.carrier for c in host.ports.claims.all() if c.vm_uuid == uuid and has_record}
    plain = host.sim._core.machine.functions.keys() - state.vf_types.keys()
    live = {c for c in running.carriers if c in state.mdevs or state.vf_types.get(c)} | (plain & set(running.carriers))
    files = parse_disk_sources(running.xml).files
    return {
        *(["definition"] if domain.persistent else []),
        *(["record"] if has_record else []),
        *(f"disk {path}" for path in files if path in state.files),
        *(f"device {carrier}" for carrier in live),
        *(f"claim {carrier}" for carrier in claims & set(running.carriers)),
    }


@dataclass
class Running:
    """Checks the running VMs repeatedly: a VM must lose nothing while it runs."""

    host: SimulatedHost
    had: dict[str, set[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def check(self, when: str) -> None:
        """Check that every running VM still has everything that it had at the previous check."""
        state = self.host.sim._core.read_state()
        self.had = {uuid: had for uuid, had in self.had.items() if uuid in state.running}
        for uuid, running in state.running.items():
            now = _parts_of(self.host, state, uuid)
            had = {t for t in self.had.get(uuid, now) if _still_belongs(t, running.carriers)}
            self.wrong += [f"{when}: {running.name} runs and lost its {thing}" for thing in sorted(had - now)]
            self.wrong += [
                f"{when}: {running.name} runs without {p}"
                for p in parse_disk_sources(running.xml).files
                if p not in state.files
            ]
            self.had[uuid] = now

    def undefined(self, uuid: str) -> None:
        """Record that another program removed the definition: vgpuctl need not keep it."""
        self.had.get(uuid, set()).discard("definition")


def _still_belongs(thing: str, carriers: tuple[str, ...]) -> bool:
    """Return whether `thing` still belongs to the VM: a guest may have released a device."""
    kind, _, carrier = thing.partition(" ")
    return kind not in ("device", "claim") or carrier in carriers


@dataclass
class Trials:
    """The trials of one case. Each runs on a copy of a host that is created once."""

    case: Case
    directory: Path

    @cached_property
    def made(self) -> SimulatedHost:
        """Return the host as it is before the command."""
        made = self.case.prepared(self.directory / "made")
        made.sim.close()
        return made

    @cached_property
    def seen(self) -> tuple[tuple[str, dict[str, str]], ...]:
        """Return each call of the undisturbed command, and the state of each target before the call."""
        host = copied(self.made, self.directory / "dry")
        other, seen = open_sim_host(host.directory, host.scenario), []

        def note(number: int, call: str, args: tuple[Any, ...]) -> None:
            state = other.sim._core.read_state()
            states = {}
            for name in self.case.targets:
                uuid = state.uuids_by_name.get(name)
                states[name] = "" if uuid is None else "on" if uuid in state.running else "off"
            seen.append((call, states))

        self.case.act(Watch(before=note).watch(host.ports))
        _close(host, other)
        return tuple(seen)

    def instants(self) -> Iterator[Instant]:
        """Yield every instant at which an action is possible: before a call, but not between two sysfs reads."""
        possible = {"start": ("off",), "destroy": ("on",), "undefine": ("on", "off")}
        last = ""
        for number, (call, states) in enumerate(self.seen, start=1):
            if not (last in LOOKS and call in LOOKS):
                for target, state in states.items():
                    names = self.case.second or (a for a in ACTIONS if state in possible[a])
                    yield from (Instant(name, target, number) for name in names if state)
            last = call

    def run(self, instant: Instant) -> Result:
        """Run the command with the action at that instant; then reconcile, and check the invariants."""
        directory = self.directory / f"{instant.action}-{instant.target}-{instant.number}"
        host = copied(self.made, directory)
        other = open_sim_host(host.directory, host.scenario, clock=EagerClock())  # it does not wait for a lock
        running, files = Running(other), set(other.sim._core.read_state().files)
        unmanaged = _unclaimed(other)
        running.check("before")
        effective: list[str] = []

        def before(number: int, call: str, args: tuple[Any, ...]) -> None:
            if number == instant.number and self.case.second:
                error, bare = _outcome(partial(self.case.second[instant.action], name=instant.target), other.ports)
                effective.extend([instant.target] if error is None else [])
                running.wrong += [*bare, *_of_error(error)]
            elif number == instant.number and (uuid := _interfere(other, instant)) is not None:
                effective.append(uuid)
                if instant.action == "undefine":
                    running.undefined(uuid)
                running.check(f"after {instant.action}")

        def after(number: int, call: str, args: tuple[Any, ...]) -> None:
            if call in CHANGING:
                running.check(f"after call {number} {call}")

        error, wrong = _outcome(self.case.act, Watch(before=before, after=after).watch(host.ports))
        wrong += _of_error(error)
        kill_operation(host.ports)
        running.check("at the end")
        later = other.again()
        wrong += _settle(later, running)
        undefined = instant.action == "undefine" and bool(effective)
        wrong += _leaks(later, files, unmanaged, undefined=undefined, failed=error is not None)
        _close(host, other, later)
        rmtree(directory)
        status, text = (0, "") if error is None else (error.status, str(error))
        call = self.seen[instant.number - 1][0]
        return Result(self.case, instant, call, bool(effective), status, text, (*running.wrong, *wrong))


def _close(*hosts: SimulatedHost) -> None:
    for host in hosts:
        kill_operation(host.ports)
        host.sim.close()


def _interfere(host: SimulatedHost, instant: Instant) -> str | None:
    """Do what the other program does and return the VM's UUID; None if libvirt refuses the action."""
    uuid = host.sim._core.read_state().uuids_by_name.get(instant.target)
    if uuid is None:
        return None
    is_running = uuid in host.sim._core.read_state().running
    with suppress(VgpuctlError):
        if instant.action == "start":
            _hook(host, uuid)
            host.sim.hypervisor.start(uuid)
        elif instant.action == "destroy" and is_running:
            host.sim.hypervisor.destroy(uuid)
        elif instant.action == "undefine":
            (host.sim.hypervisor.make_transient if is_running else host.sim.hypervisor.undefine)(uuid)
        else:
            return None
        return uuid
    return None


def _hook(host: SimulatedHost, uuid: str) -> None:
    """Let vgpuctl's hook refuse the start of a VM that is being removed. Other starts run without the hook."""
    xml = host.sim._core.read_state().domains[uuid].xml
    record = parse_domain(xml, VmState.STOPPED, host.ports.machine_id).record
    is_leaving = any(c.leaving and c.vm_uuid == uuid for c in host.ports.claims.all())
    if is_leaving or (record is not None and record.state is RecordState.REMOVING):
        prepare(host.ports, xml)


def _outcome(act: Act, ports: Any) -> tuple[VgpuctlError | None, list[str]]:
    try:
        act(ports)
    except VgpuctlError as error:
        return error, []
    except Exception as error:  # noqa: BLE001 - the trial reports any error that is not vgpuctl's
        return None, [f"a bare {type(error).__name__}: {error}"]
    return None, []


def _of_error(error: VgpuctlError | None) -> list[str]:
    if error is None:
        return []
    wrong = [] if error.status in STATUSES else [f"status {error.status} is not documented"]
    if "bug in vgpuctl" in (error.hint or "") or not error.message:
        wrong.append(f"an internal error: {error}")
    if error.status == 5 and not (error.left and error.hint):
        wrong.append(f"status 5 does not say what is left, or what helps: {error}")
    return wrong


def _settle(later: SimulatedHost, running: Running) -> list[str]:
    """Reconcile until nothing changes any more. Running VMs must keep running and lose nothing."""
    running_before = set(later.sim._core.read_state().running)
    wrong, left = [], ""
    for _ in range(ROUNDS):
        # Each round is a separate command: the process behind the previous round's claims no longer lives.
        command = open_sim_host(later.directory, later.scenario)
        try:
            outcome = run_reconcile(command.ports)
            left = str(outcome.data.findings) if outcome.changed else ""
        except VgpuctlError as error:
            left = str(error)
        _close(command)
        running.check("after reconcile")
        if not left:
            break
    wrong += [f"reconcile stopped {uuid}" for uuid in running_before - set(later.sim._core.read_state().running)]
    return wrong + ([f"reconcile does not come to rest: {left}"] if left else [])


def _unclaimed(host: SimulatedHost) -> set[str]:
    """Return the devices without a claim: before a command they are another program's."""
    state = host.sim._core.read_state()
    devices = {*state.mdevs, *(c for c, t in state.vf_types.items() if t)}
    return devices - {c.carrier for c in host.ports.claims.all()}


def _leaks(host: SimulatedHost, files: set[str], unmanaged: set[str], *, undefined: bool, failed: bool) -> list[str]:
    """Return things without an owner, unfinished changes, and missing disks that a record names.

    `unmanaged`: the devices of other programs.
    """
    state = host.sim._core.read_state()
    claims = {c.carrier: c.vm_uuid for c in host.ports.claims.all()}
    wrong = [f"a claim on {c} of a VM that is gone" for c, uuid in claims.items() if uuid not in state.domains]
    wrong += [f"a device {c} without a claim" for c in sorted(_unclaimed(host) - unmanaged)]
    named: set[str] = set()
    for domain in state.domains.values():
        power = VmState.RUNNING if domain.uuid in state.running else VmState.STOPPED
        vm = parse_domain(domain.xml, power, host.ports.machine_id)
        live = state.running[domain.uuid].xml if domain.uuid in state.running else None
        named |= set(parse_disk_sources(domain.xml, live).files)
        if vm.record is not None:
            named |= {d.path for d in vm.record.disks}
            wrong += [f"{vm.name} names {d.path}, which is gone" for d in vm.record.disks if d.path not in state.files]
            if vm.record.state is not RecordState.READY and power is VmState.STOPPED:
                wrong.append(f"{vm.name} is off and its record says {vm.record.state}")
    named |= {p for p in state.files if BIN_FOLDER in p and parse_bin_entry(p.rpartition("/")[2]) is not None}
    orphans = {p for p in state.files if p.startswith("/var")} - named
    new = orphans - files
    if (not undefined and orphans) or (undefined and failed and new and not files - set(state.files)):
        wrong += [f"nobody names {path}" for path in sorted(new if undefined else orphans)]
    return wrong


def sampled(
    trials: list[Trials], count: int, seed: int, calls: frozenset[str] | set[str] | None = None
) -> list[tuple[Trials, Instant]]:
    """Return this many random instants for this seed, taken from all cases in turn; with `calls` only before those."""
    random = Random(seed)
    decks = []
    for each in trials:
        deck = [i for i in each.instants() if calls is None or each.seen[i.number - 1][0] in calls]
        random.shuffle(deck)
        decks.append((each, deck))
    drawn: list[tuple[Trials, Instant]] = []
    while len(drawn) < count and any(deck for _, deck in decks):
        drawn += [(each, deck.pop()) for each, deck in decks if deck]
    return drawn[:count]
