# SPDX-License-Identifier: Apache-2.0
"""Asks many hosts the same at once, each on its own: none waits for another, and none stops another.

One thread a host, at most so many at a time. Python gives signals to the main thread alone, which only waits here
and counts them; each host's own thread passes a stop on to the command there.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vgpuctl.errors import HostCannot, Interrupted, TooSlow, VgpuctlError
from vgpuctl.remote import answer as answers
from vgpuctl.remote.answer import Answer
from vgpuctl.remote.channel import STOPS_TO_LEAVE
from vgpuctl.remote.ran import Asked, Connect, Session, Watch
from vgpuctl.remote.target import Target
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.remote.bringing import Bring

AT_A_TIME = 32
DEADLINE_SECONDS = 600.0
_LOOK_SECONDS = 0.1
_LAST_SECONDS = 1.0
"""How long threads have to notice that nobody waits for them any longer."""


class Reply(Value):
    """What became of one host: its answer, or the reason why there is none."""

    target: Target
    seconds: float
    answer: Answer | None = None
    error: BaseException | None = None


class Task(Value):
    """What all hosts are asked. `here` is this vgpuctl's version; `told` gets a host's name and a line of stderr.

    With `bring` a host gets vgpuctl first, unless it is there.
    """

    asked: Asked
    changes: bool
    here: str
    told: Callable[[str, str], None]
    deadline_seconds: float = DEADLINE_SECONDS
    at_a_time: int = AT_A_TIME
    bring: Bring | None = None


def ask(targets: Sequence[Target], task: Task, connect: Connect, stops: Callable[[], int]) -> tuple[Reply, ...]:
    """Ask every host and return the replies in the order of the hosts. `stops` counts the signals that came so far.

    After the first stop no further host is asked, and those that work take back what they began; after the third
    nobody is waited for.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(targets)):
        waiting.put(number)
    found: dict[int, Reply] = {}
    over = threading.Event()

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                number = waiting.get_nowait()
                found[number] = _one(targets[number], task, connect, stops)
                if len(found) == len(targets):
                    over.set()

    for _ in range(min(task.at_a_time, len(targets))):
        threading.Thread(target=work, daemon=True).start()
    _wait(over, stops)
    return tuple(found.get(number) or _abandoned(target, changes=task.changes) for number, target in enumerate(targets))


def _wait(over: threading.Event, stops: Callable[[], int]) -> None:
    while True:
        try:
            while not over.is_set() and stops() < STOPS_TO_LEAVE:
                over.wait(_LOOK_SECONDS)
            over.wait(_LAST_SECONDS)
            return
        except (Interrupted, KeyboardInterrupt):  # counted by `stops`
            continue


def _one(target: Target, task: Task, connect: Connect, stops: Callable[[], int]) -> Reply:
    begun = time.monotonic()
    try:
        if stops():
            raise Interrupted(f"{target.name}: not asked", signal_number=2)
        found = _answer(target, task, connect, stops, begun + task.deadline_seconds)
    except Exception as exc:  # noqa: BLE001 - a bug met on one host must not keep the others' answers
        return Reply(target, _since(begun), error=_named(exc, target, task, begun))
    return Reply(target, _since(begun), found)


def _answer(target: Target, task: Task, connect: Connect, stops: Callable[[], int], until: float) -> Answer:
    session = connect(target, until)
    try:
        if stops():
            raise Interrupted(f"{target.name}: logged in, and nothing was begun", signal_number=2)
        watch = Watch(until, lambda line: task.told(target.name, line), stops)
        if task.bring is not None:
            from vgpuctl.remote import bringing

            brought = bringing.brought(session, target.name, watch, task.bring)
            if brought is not None:
                return brought
        found = answers.judge(session.run(task.asked, watch), target.name, changes=task.changes)
        if answers.unknown_word(found):
            raise_other_version(session, found, target, task, watch)
        return found
    finally:
        session.close()


def raise_other_version(session: Session, found: Answer, target: Target, task: Task, watch: Watch) -> None:
    """Raise HostCannot when a line was not understood because the vgpuctl there is another one."""
    quiet = Watch(watch.until, lambda line: None, watch.stops)
    there = answers.version_of(session.run(Asked(("--version",)), quiet))
    other = answers.other_version(found, target.name, there, task.here)
    if other is not None:
        raise other


def _named(exc: Exception, target: Target, task: Task, begun: float) -> Exception:
    """Return the error with the deadline's number, when that is why the host was left."""
    if isinstance(exc, TooSlow):
        exc.facts["host_deadline_seconds"] = task.deadline_seconds
    elif _since(begun) >= task.deadline_seconds and isinstance(exc, VgpuctlError) and not isinstance(exc, HostCannot):
        exc.facts.setdefault("host_deadline_seconds", task.deadline_seconds)
    return exc


def _abandoned(target: Target, *, changes: bool) -> Reply:
    exc = Interrupted(f"{target.name}: not waited for any longer", signal_number=2)
    if changes:
        exc.left = [f"{target.name}: whatever the command did there; it goes on without us"]
    return Reply(target, 0.0, error=exc)


def _since(begun: float) -> float:
    return round(time.monotonic() - begun, 3)
