# SPDX-License-Identifier: Apache-2.0
"""A move during which another program or person acts on the VM, on one of the hosts, before one call of a port."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from shutil import rmtree
from typing import Any

from tests.faults import CHANGING, NEVER_RAISE, Watch, error_of
from tests.hosts import (
    EagerClock,
    SimulatedHost,
    delete,
    kill_operation,
    open_sim_host,
    request,
    run_reconcile,
    set_vm,
    start,
    stop,
    yes,
)
from tests.moves.pairs import (
    HOST,
    Kind,
    Pair,
    final,
    invariants,
    library_host,
    made_pair,
    move,
    replace_hosts,
    settled,
    watched,
)
from tests.moves.trial import LOOKS, SIDES, _act, _of_error, _outcome
from vgpuctl.errors import VgpuctlError
from vgpuctl.hook.run import prepare
from vgpuctl.library.move_between import move_vm
from vgpuctl.library.move_end import settle_alone
from vgpuctl.operations.plans.migration_end import RUNS_HERE, RUNS_THERE
from vgpuctl.ports.host import Host

BOOT = "the host boots"
STATUSES = frozenset({1, 2, 3, 4, 5, 6, 75})
Deed = Callable[[SimulatedHost, Pair], object]
"""What another one does to a host; it raises a VgpuctlError, or returns False, where that is refused."""


def _virsh_start(host: SimulatedHost, pair: Pair) -> None:
    prepare(host.ports, host.sim._core.read_state().domains[pair.uuid].xml)
    host.sim.hypervisor.start(pair.uuid)


def _virsh_destroy(host: SimulatedHost, pair: Pair) -> bool:
    if pair.uuid not in host.sim._core.read_state().running:
        return False
    host.sim.hypervisor.destroy(pair.uuid)
    return True


def _virsh_undefine(host: SimulatedHost, pair: Pair) -> None:
    is_on = pair.uuid in host.sim._core.read_state().running
    (host.sim.hypervisor.make_transient if is_on else host.sim.hypervisor.undefine)(pair.uuid)


def _virsh_resume(host: SimulatedHost, pair: Pair) -> bool:
    """Resume it where the other host does not run it: libvirt lets nobody resume what is still coming."""
    running = host.sim._core.read_state().running.get(pair.uuid)
    if running is None or running.state == "running" or pair.running_on():
        return False
    host.sim.hypervisor.resume(pair.uuid)
    return True


def _reboot(host: SimulatedHost, pair: Pair) -> None:
    host.sim.reboot()


def _reconcile(host: SimulatedHost, pair: Pair) -> bool:
    return bool(run_reconcile(host.ports).changed)


def _migrate(host: SimulatedHost, pair: Pair, *, third: bool) -> None:
    """Run another migrate-vm of the VM from this host: to the other one of the pair, or to a third one."""
    other = open_sim_host(pair.directory / "third", text=HOST) if third else _other(host, pair)
    asked = pair.kind.request(other, offline=pair.kind.offline)
    move_vm(library_host(host.ports, 0.0), library_host(other.ports, 0.0), "vm", asked)


def _settle(host: SimulatedHost, pair: Pair) -> bool:
    return settled(pair.source.ports, pair.target.ports).changed


def _settle_with_third(host: SimulatedHost, pair: Pair) -> bool:
    """Run end-migration with a host that has no part in it."""
    third = open_sim_host(pair.directory / "third", text=HOST)
    return settled(third.ports, host.ports).changed or settled(host.ports, third.ports).changed


def _other(host: SimulatedHost, pair: Pair) -> SimulatedHost:
    return pair.target if host.directory == pair.source.directory else pair.source


def _set_owner(host: SimulatedHost, pair: Pair) -> None:
    set_vm(host.ports, request(name="vm", owner="ada"), "owner", wait_seconds=0.0)


DEEDS: dict[str, Deed] = {
    "virsh start": _virsh_start,
    "virsh destroy": _virsh_destroy,
    "virsh undefine": _virsh_undefine,
    "virsh resume": _virsh_resume,
    "start-vm": lambda host, pair: start(host.ports, "vm"),
    "stop-vm --force": lambda host, pair: stop(host.ports, "vm"),
    "delete-vm": lambda host, pair: delete(host.ports, "vm"),
    "set-vm": _set_owner,
    "reconcile-host": _reconcile,
    "migrate-vm": partial(_migrate, third=False),
    "migrate-vm to a third host": partial(_migrate, third=True),
    "end-migration": _settle,
    "end-migration with a third host": _settle_with_third,
    BOOT: _reboot,
}
LIBVIRT = "libvirt does not answer any more"
ENDS_GUEST = frozenset({"virsh destroy", "virsh undefine", "stop-vm --force", "delete-vm", BOOT})
"""After these the VM may be off. After some it is gone: that was asked for."""
MAY_BE_GONE = frozenset({"virsh undefine", "delete-vm", "migrate-vm to a third host"})


@dataclass(frozen=True)
class Instant:
    """A deed on one host before the n-th call of one side."""

    deed: str
    host: str
    side: str
    number: int
    call: str

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.deed} on the {self.host} before call {self.number} {self.call} of the {self.side}"


@dataclass(frozen=True)
class Met:
    """How a move ended that met another one. `effective`: that one's deed was not refused."""

    kind: str
    instant: Instant
    effective: bool
    status: int
    error: str
    owner: str
    state: str
    wrong: tuple[str, ...]

    @property
    def where(self) -> str:
        """Which trial it was."""
        return f"{self.kind}: {self.instant.text}"


UNCERTAIN = "it is not certain where"
"""What end-migration says where no host can know where the VM goes on: a person looks, and says it."""


@dataclass
class Meetings:
    """The trials of one kind of move."""

    kind: Kind
    directory: Path
    number: int = field(default=0)

    @cached_property
    def made(self) -> Pair:
        """Both hosts before each trial."""
        return made_pair(self.directory, self.kind)

    def instants(self, *, every_call: bool) -> Iterator[Instant]:
        """Yield every deed on each host before each changing call; with `every_call` before nearly all of them."""
        pair = self.made.copied("dry")
        watches = {side: Watch() for side in SIDES}
        _outcome(partial(_act, move, pair, watches))
        pair.close()
        for side in SIDES:
            for number, call in enumerate(watches[side].calls, 1):
                if call in LOOKS or call in NEVER_RAISE or not (every_call or call in CHANGING):
                    continue
                for host in SIDES:
                    yield from (Instant(deed, host, side, number, call) for deed in (*DEEDS, LIBVIRT))

    def run(self, instant: Instant) -> Met:
        """Move while another one does that; then have the move ended, and look at both hosts."""
        self.number += 1
        pair = self.made.copied(f"{self.number}")
        others = [open_sim_host(h.directory, h.scenario, clock=EagerClock()) for h in pair.hosts]
        other = replace_hosts(pair, pair.directory, others[0], others[1])
        wrong: list[str] = []
        effective: list[bool] = []

        def before(number: int, call: str, args: tuple[Any, ...]) -> None:
            if number == instant.number and not effective:
                effective.append(_do(instant, other, wrong))
                wrong.extend(f"after it: {text}" for text in _at_any_time(instant, other))

        def after(number: int, call: str, args: tuple[Any, ...]) -> None:
            if call in CHANGING and effective:
                wrong.extend(f"after call {number} {call}: {text}" for text in _at_any_time(instant, other))

        watches = {side: Watch(after=after) for side in SIDES}
        watches[instant.side] = Watch(before=before, after=after)
        error, bare = _outcome(partial(self._move, pair, watches, instant, effective))
        wrong += bare + _of_error(error)
        wrong += [] if error is None or error.status in STATUSES else [f"status {error.status} is not documented"]
        for host in (*others, *pair.hosts):
            kill_operation(host.ports)
            host.sim.close()
        later = pair.again()
        wrong += [f"at the end: {text}" for text in _at_any_time(instant, later)]
        wrong += _end(instant, later, was_done=bool(effective and effective[0]), reconciles=self.number % 2 == 1)
        owners = later.defined_on()
        owner = ["gone", "source" if owners == [later.source] else "target"][len(owners)] if len(owners) < 2 else "both"
        state = "runs" if later.running_on() else "off"
        later.close()
        rmtree(later.directory)
        status, text = (0, "") if error is None else (error.status, str(error))
        return Met(self.kind.name, instant, bool(effective and effective[0]), status, text, owner, state, tuple(wrong))

    def _move(self, pair: Pair, watches: dict[str, Watch], instant: Instant, effective: list[bool]) -> None:
        ports = [h.ports for h in pair.hosts]
        at = SIDES.index(instant.host)
        if instant.deed == LIBVIRT:
            ports[at] = _without_libvirt(ports[at], effective)
        if instant.deed == BOOT and instant.side == instant.host:
            ports[at] = _booted(ports[at], effective)
        ports = [watched(one, watches[side]) for side, one in zip(SIDES, ports, strict=True)]
        move(ports[0], ports[1], pair)


def _without_libvirt(ports: Host, gone: Sequence[bool]) -> Host:
    """Return the host whose libvirt does not answer once `gone` has something."""

    def fail(number: int, call: str, args: tuple[Any, ...]) -> None:
        if gone and call.startswith(("hypervisor.", "storage.")) and call not in NEVER_RAISE:
            raise error_of(call)

    return watched(ports, Watch(before=fail))


def _booted(ports: Host, gone: Sequence[bool]) -> Host:
    """Return the host on which the call of the library dies that runs when it boots; the next one is made."""
    began: list[bool] = []

    def fail(number: int, call: str, args: tuple[Any, ...]) -> None:
        began.extend([True] if gone and call == "operations.another" else [])
        if gone and not began and call not in NEVER_RAISE:
            raise error_of(call)

    return watched(ports, Watch(before=fail, after=fail))


def _do(instant: Instant, other: Pair, wrong: list[str]) -> bool:
    if instant.deed == LIBVIRT:
        return True
    host = other.source if instant.host == "source" else other.target
    if other.uuid not in host.sim._core.read_state().domains and instant.deed.startswith("virsh"):
        return False
    try:
        done = DEEDS[instant.deed](host, other)
    except VgpuctlError as error:
        wrong += [f"{instant.deed}: {text}" for text in _of_error(error)]
        return False
    except Exception as error:  # noqa: BLE001 - the trial reports any error that is not vgpuctl's
        wrong.append(f"{instant.deed}: a bare {type(error).__name__}: {error}")
        return False
    finally:
        host.ports.operations.end()
    return done is not False


def _say(pair: Pair) -> None:
    """Do what a person does who has looked at both hosts: the VM goes on on the target if that has it."""
    has_come = pair.target in pair.defined_on()
    ends = ((pair.target, RUNS_HERE), (pair.source, RUNS_THERE)) if has_come else ((pair.source, RUNS_HERE),)
    for host, outcome in ends:
        calls = library_host(host.ports)
        if calls.show_migration(pair.uuid).data.id is not None:
            settle_alone(calls, pair.uuid, outcome, confirm=yes)
        host.ports.operations.end()


def _at_any_time(instant: Instant, pair: Pair) -> list[str]:
    """Return what is wrong; the deed itself may have taken something that was whole before."""
    wrong = invariants(pair)
    if instant.deed in MAY_BE_GONE - {"virsh undefine"}:
        wrong = [text for text in wrong if "no host has the data" not in text and "was deleted" not in text]
    return wrong


def _end(instant: Instant, pair: Pair, *, was_done: bool, reconciles: bool) -> list[str]:
    """Have the move ended as a person would: end-migration, and reconcile-host before it or after it."""
    wrong: list[str] = []
    may_be_gone = was_done and instant.deed in MAY_BE_GONE
    third = pair.directory / "third"
    if third.exists():
        with suppress(VgpuctlError):
            host = open_sim_host(third, str(third / "scenario.yaml"))
            run_reconcile(host.ports)
    order = ["reconcile", "settle"] if reconciles else ["settle", "reconcile", "settle"]
    for what in order:
        errors = []
        for host in pair.hosts if what == "reconcile" else pair.hosts[:1]:
            error, bare = _outcome(
                partial(run_reconcile, host.ports)
                if what == "reconcile"
                else partial(settled, pair.source.ports, pair.target.ports)
            )
            is_open = error is not None and UNCERTAIN in error.message
            if is_open and not may_be_gone:
                error, bare = _outcome(partial(_say, pair))
            is_gone = may_be_gone and error is not None and (is_open or "has no VM" in error.message)
            errors += bare + ([] if error is None or is_gone else [f"{what}: {error.code} {error}"])
        if what == "settle" or not may_be_gone:
            wrong += errors
        wrong += [f"after {what}: {text}" for text in _at_any_time(instant, pair)]
    if may_be_gone:
        return wrong
    may_be_off = instant.deed in ENDS_GUEST or instant.deed == LIBVIRT or pair.kind.offline
    owners = pair.defined_on()
    if may_be_off and len(owners) == 1 and not pair.running_on():
        error, bare = _outcome(partial(start, owners[0].ports, "vm"))
        wrong += bare + ([] if error is None else [f"it does not start: {error}"])
    return wrong + final(pair, may_be_off=False)
