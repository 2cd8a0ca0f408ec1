# SPDX-License-Identifier: Apache-2.0
"""A move of which one call of a port fails or is the last one, and its end by those who come then."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from shutil import rmtree
from typing import Any

from tests import EVERYTHING
from tests.faults import CHANGING, NEVER_RAISE, Watch, error_of
from tests.meanwhile import with_calls
from tests.moves.pairs import (
    Act,
    Kind,
    Pair,
    final,
    invariants,
    library_host,
    made_pair,
    move,
    move_again,
    reconcile_quietly,
    settled,
    watched,
)
from vgpuctl.errors import Exists, VgpuctlError
from vgpuctl.library.move_between import move_vm
from vgpuctl.ports.host import Host

SIDES = ("source", "target")
LOOKS = ("sysfs.read", "sysfs.readlink", "sysfs.listdir")
SENDS = ("hypervisor.migrate", "storage.send_volume")
"""Calls that last, so that they also fail, and the process dies, in the middle of them."""
ENDINGS: dict[str, tuple[str, ...]] = {
    "settle": (),
    "reconcile source": ("source",),
    "reconcile target": ("target",),
    "reconcile both": ("source", "target"),
    "reconcile both, target first": ("target", "source"),
    "migrate": (),
}
"""Who ends it: reconcile-host on these hosts, then end-migration; or migrate-vm itself."""
LAST_ONE = -signal.SIGKILL
MIGRATE, SEND, RECORD = "hypervisor.migrate", "storage.send_volume", "hypervisor.set_record"
LEFT_BY: dict[str, tuple[str, tuple[str, str, str]]] = {
    "a move that died while it was sent": ("live, disks copied", ("source", MIGRATE, "killed in the middle")),
    "a move that died when it had come": ("live, disks copied", ("source", MIGRATE, "killed after")),
    "a move that died when libvirt had": ("live, libvirt dies", ("source", MIGRATE, "killed on failure")),
    "a move that died with its disks sent": ("offline, disks copied", ("source", SEND, "killed after")),
    "a move that died when it was recorded": ("offline, disks copied", ("target", RECORD, "killed before")),
}
"""What a move has left that is to be ended: of which kind, and in which call of which side it died."""


@dataclass(frozen=True)
class Point:
    """The n-th call of one side, and how it ends: it fails, also for good or after it was done; the process dies."""

    side: str
    number: int
    call: str
    how: str

    @property
    def kills(self) -> bool:
        """Whether the process dies."""
        return self.how.startswith("killed")

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.how} in call {self.number} {self.call} of the {self.side}"


@dataclass(frozen=True)
class Result:
    """Where the VM is in the end, and what was wrong on the way."""

    kind: str
    what: str
    how: str
    ending: str
    owner: str
    state: str
    wrong: tuple[str, ...]

    @property
    def where(self) -> str:
        """Which trial it was."""
        return f"{self.kind}: {self.what}; {self.ending}"


@dataclass
class Moves:
    """The trials of one kind of move. `before`: side, call and how another process was killed in it; None: nothing was.

    `act`: what is tried: the move, or its end after that.
    """

    kind: Kind
    directory: Path
    act: Act = move
    before: tuple[str, str, str] | None = None

    @cached_property
    def made(self) -> Pair:
        """Both hosts as they are before each trial."""
        pair = made_pair(self.directory, self.kind)
        if self.before is None:
            return pair
        side, call, how = self.before
        calls = Moves(self.kind, self.directory / "earlier").calls[side]
        point = Point(side, len(calls) - calls[::-1].index(call), call, how)
        left = pair.copied("interrupted")
        assert _died(left, partial(_interrupted, left, move, point)), point.text
        return left.again()

    @cached_property
    def calls(self) -> dict[str, list[str]]:
        """The calls of each side when none fails."""
        pair = self.made.copied("dry")
        watches = {side: Watch() for side in SIDES}
        _outcome(partial(_act, self.act, pair, watches))
        pair.close()
        return {side: watch.calls for side, watch in watches.items()}

    def failures(self) -> Iterator[Point]:
        """Yield where a call fails; most are reads of sysfs, which are all alike."""
        for side, calls in self.calls.items():
            for number, call in enumerate(calls, 1):
                if call in NEVER_RAISE or call in LOOKS:
                    continue
                hows = ["fails", "for good", *(["done"] if call in CHANGING else [])]
                hows += ["fails in the middle"] if call in SENDS else []
                yield from (Point(side, number, call, how) for how in hows)

    def deaths(self) -> Iterator[Point]:
        """Yield where the process is killed: before and after each change, and while it lasts."""
        for side, calls in self.calls.items():
            for number, call in enumerate(calls, 1):
                last = "on failure" if self.kind.libvirt_dies and call == MIGRATE and self.before is None else "after"
                hows = ["killed before", f"killed {last}"] if call in CHANGING else []
                hows += ["killed in the middle"] if call in SENDS else []
                yield from (Point(side, number, call, how) for how in hows)

    def run(self, point: Point, endings: Sequence[str] = tuple(ENDINGS)) -> list[Result]:
        """Make the move end at this point; return what each of these endings makes of it."""
        name = f"{point.side}-{point.number}-{point.how.replace(' ', '-')}"
        pair = self.made.copied(name)
        earlier = "" if self.before is None else f" (after {' '.join(self.before)})"
        what = f"{self.act.__name__}{earlier} {point.text}"
        wrong: list[str] = []
        error: VgpuctlError | None = None
        if point.kills:
            wrong += [] if _died(pair, partial(_interrupted, pair, self.act, point)) else ["it was not killed"]
        else:
            error, wrong = _outcome(partial(_interrupted, pair, self.act, point))
            wrong += _of_error(error)
        wrong += [f"at once: {text}" for text in invariants(pair)]
        pair.close()
        says_off = error is not None and any("and off" in line for line in error.left)
        may_be_off = self.kind.offline and (
            self.before is not None or point.kills or point.how == "for good" or says_off
        )
        results = [
            end(pair.copied(f"{name}-{e}".replace(" ", "-")), e, what, point.how, wrong, may_be_off=may_be_off)
            for e in endings
        ]
        rmtree(pair.directory)
        return results


def tried(moves: Moves, points: Sequence[Point]) -> list[Result]:
    """Return how each point ends: with every ending after a change, and else with one ending after the other."""
    results: list[Result] = []
    for number, point in enumerate(points):
        every = EVERYTHING and point.call in CHANGING
        results += moves.run(point, tuple(ENDINGS) if every else [list(ENDINGS)[number % len(ENDINGS)]])
    return results


def end(pair: Pair, ending: str, what: str, how: str, wrong: Sequence[str], *, may_be_off: bool) -> Result:
    """Have others come to a move that ended somehow: the VM is on one host then, and can move again."""
    wrong = list(wrong)
    runs_before = pair.running_on()
    for side in ENDINGS[ending]:
        host = pair.source if side == "source" else pair.target
        error = reconcile_quietly(host)
        wrong += [] if error is None else [f"reconcile on the {side}: {error}"]
        wrong += [f"after reconcile on the {side}: {text}" for text in invariants(pair)]
    later = pair.again()
    wrong += _migrated(later) if ending == "migrate" else _settled(later)
    wrong += final(later, may_be_off=may_be_off)
    if runs_before and not later.running_on():
        wrong.append("it ran, and does not run any more")
    owners = later.defined_on()
    owner = "source" if owners == [later.source] else "target" if owners == [later.target] else "?"
    state = "runs" if later.running_on() else "off"
    if not wrong:
        wrong += [f"then: {text}" for text in move_again(later)]
    later.close()
    rmtree(later.directory)
    return Result(pair.kind.name, what, how, ending, owner, state, tuple(wrong))


def _settled(pair: Pair) -> list[str]:
    try:
        settled(pair.source.ports, pair.target.ports)
        if settled(pair.source.ports, pair.target.ports).changed:
            return ["a second settle changes something"]
    except VgpuctlError as error:
        return [f"settle: {error.code} {error}"]
    return []


def _migrated(pair: Pair) -> list[str]:
    """Run the same migrate-vm again: it ends what was interrupted, and then moves the VM unless it has come."""
    asked = pair.kind.request(pair.target, offline=pair.kind.offline)
    try:
        move_vm(library_host(pair.source.ports), library_host(pair.target.ports), "vm", asked)
    except Exists:
        return []
    except VgpuctlError as error:
        if "reconcile-host, then run the command again" in str(error):  # a claim is left of a VM that is not there
            problems = [p for p in map(reconcile_quietly, pair.hosts) if p is not None]
            return problems or _migrated(pair)
        is_there = error.code == "not-found" and pair.defined_on() == [pair.target]
        return [] if is_there else [f"migrate: {error.code} {error} {error.left}"]
    return []


def _act(act: Act, pair: Pair, watches: dict[str, Watch], change: Callable[[Host], Host] | None = None) -> object:
    source, target = (watched(h.ports, watches[side]) for side, h in zip(SIDES, pair.hosts, strict=True))
    source = source if change is None else change(source)
    return act(source, target, pair)


def _in_the_middle(ports: Host, act: Callable[[], None]) -> Host:
    """Return the host where something happens while memory or a disk is sent."""

    def migrate(uuid: str, request: Any, report: Callable[[Any], Any]) -> None:
        def reported(progress: Any) -> Any:
            act()
            return report(progress)

        ports.hypervisor.migrate(uuid, request, reported)

    def send_volume(pool: str, name: str, uri: str, report: Callable[[float], None]) -> None:
        def reported(percent: float) -> None:
            act()
            report(percent)

        ports.storage.send_volume(pool, name, uri, reported)

    return with_calls(with_calls(ports, "hypervisor", migrate=migrate), "storage", send_volume=send_volume)


def _on_failure(ports: Host, act: Callable[[], None]) -> Host:
    """Return the host where something happens when libvirt fails to send memory, before anybody hears of it."""

    def migrate(*args: Any) -> None:
        try:
            ports.hypervisor.migrate(*args)
        except VgpuctlError:
            act()
            raise

    return with_calls(ports, "hypervisor", migrate=migrate)


def _happen(point: Point) -> None:
    if point.kills:
        os.kill(os.getpid(), signal.SIGKILL)
    raise error_of(point.call)


def _interrupted(pair: Pair, act: Act, point: Point) -> None:
    """Do it until the point."""
    broken: set[object] = set()
    here: list[str] = []
    happen = partial(_happen, point)

    def meet(number: int, call: str, args: tuple[Any, ...]) -> None:
        same = (call, args[0] if args and isinstance(args[0], str) else None)
        if number == point.number or same in broken:
            if point.how == "for good":
                broken.add(same)
            happen()

    def enter(number: int, call: str, args: tuple[Any, ...]) -> None:
        here[:] = [call] if number == point.number else []

    def middle() -> None:
        if here:
            happen()

    watches = {side: Watch() for side in SIDES}
    if "middle" in point.how:
        watches[point.side] = Watch(before=enter)
        _act(act, pair, watches, partial(_in_the_middle, act=middle))
        return
    if point.how == "killed on failure":
        _act(act, pair, watches, partial(_on_failure, act=happen))
        return
    is_late = point.how in ("done", "killed after")
    watches[point.side] = Watch(after=meet) if is_late else Watch(before=meet)
    _act(act, pair, watches)


def _died(pair: Pair, work: Callable[[], object]) -> bool:
    """Do it in a process of its own, and return whether it was killed."""
    pid = os.fork()
    if not pid:
        try:
            pair.source, pair.target = pair.again().hosts
            work()
        except BaseException:  # noqa: BLE001 - no exception may leave the child
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == LAST_ONE


def _outcome(act: Callable[[], object]) -> tuple[VgpuctlError | None, list[str]]:
    try:
        act()
    except VgpuctlError as error:
        return error, []
    except Exception as error:  # noqa: BLE001 - the trial reports any error that is not vgpuctl's
        return None, [f"a bare {type(error).__name__}: {error}"]
    return None, []


def _of_error(error: VgpuctlError | None) -> list[str]:
    if error is None:
        return []
    if "bug in vgpuctl" in (error.hint or "") or not error.message:
        return [f"an internal error: {error}"]
    if error.status == 5 and not (error.left and error.hint):
        return [f"status 5 does not say what is left, or what helps: {error}"]
    return []
