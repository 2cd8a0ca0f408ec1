# SPDX-License-Identifier: Apache-2.0
"""Carry out the plans of several VMs, some at a time, each undone alone when it fails.

Threads of this process: they share its claims, which name the process, and one libvirt connection, which libvirt lets
threads share. None of them takes the host lock. Signals reach the main thread alone: the first one
keeps further VMs from being begun and has those that are half made undone; the second one stops that undo.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from vgpuctl.engine.run import carry_out
from vgpuctl.errors import Interrupted, VgpuctlError
from vgpuctl.model.step import Plan
from vgpuctl.steps.claims import HoldClaim
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.outcome import ManyProgress, Progress
    from vgpuctl.model.world import World

LOOK_SECONDS = 0.5
"""How long the main thread waits for an answer before it looks whether anybody is left to give one."""


class Job(Value):
    """One VM to make: the claims that are held for it, and the steps after them."""

    name: str
    held: tuple[HoldClaim, ...]
    plan: Plan


def lines(jobs: Sequence[Job]) -> tuple[str, ...]:
    """Return the steps for people, each with its VM's name; what several VMs need alike is told once, before them."""
    steps = [(job.name, step) for job in jobs for step in (*job.held, *job.plan.steps)]
    times = Counter(step for _, step in steps)
    shared = [step.describe() for step, count in times.items() if count > 1]
    return (*shared, *(f"{name}: {step.describe()}" for name, step in steps if times[step] == 1))


class Crew:
    """The threads at work. When `work` returns, `made` and `failed` are complete; `stopped` is the signal that came.

    `told`: which VMs came about otherwise than by this.

    Threads write both themselves: a signal may take an answer from the main thread just as it arrives.
    """

    def __init__(self, world: World, jobs: tuple[Job, ...], parallel: int, progress: ManyProgress) -> None:
        self.made: list[str] = []
        self.failed: dict[str, VgpuctlError] = {}
        self.told: list[str] = []
        self.stopped: Interrupted | None = None
        self.halted = False
        self._world = world
        self._total, self._done, self._bad = len(jobs), 0, 0
        self._waiting = deque(jobs)
        self._answers: SimpleQueue[tuple[str, VgpuctlError | None]] = SimpleQueue()
        self._progress = progress
        self._threads = [Thread(target=self._serve, name=f"vm-{n}") for n in range(min(parallel, len(jobs)))]

    def work(self) -> None:
        """Make the VMs; returns when no thread works any more. The claims of those not begun are given back."""
        try:
            self._progress.planned(lines(tuple(self._waiting)))
            while not self._finished():
                pass
        finally:
            if self._busy():
                self.stopped = self.stopped or Interrupted("stopped", signal_number=2)
            while (job := self._next()) is not None:
                for step in reversed(job.held):
                    step.undo(self._world)

    def watch(self) -> Progress:
        """Return what one VM's steps are told: it stops them after a signal."""
        return _Watch(self)

    def _finished(self) -> bool:
        """Listen until nobody works; a signal is noted, and the caller comes back."""
        try:
            for thread in self._threads:
                if thread.ident is None and self.stopped is None:
                    thread.start()
            while self._busy() or not self._answers.empty():
                self._listen()
        except Interrupted as signal:
            self.stopped = self.stopped or signal
            return False
        except KeyboardInterrupt:
            self.halted = self.stopped is not None
            self.stopped = self.stopped or Interrupted("stopped", signal_number=2)
            return False
        return True

    def _busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _listen(self) -> None:
        try:
            name, error = self._answers.get(timeout=LOOK_SECONDS)
        except Empty:
            return
        self._done += 1
        self._bad += error is not None
        what = "made" if error is None else f"failed: {error.message}"
        self._progress.tallied(self._done, self._total, self._bad, f"{name}: {what}")

    def _next(self) -> Job | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _serve(self) -> None:
        """Make one VM after the other, in a thread of its own."""
        while self.stopped is None:
            job = self._next()
            if job is None:
                return
            failure: VgpuctlError | None = None
            try:
                self.told += carry_out(self._world, job.plan, self.watch(), job.held)
            except VgpuctlError as error:
                failure = error
            except BaseException as error:  # noqa: BLE001 - who waits for this VM must hear of it
                failure = VgpuctlError(f"{type(error).__name__}: {error}")
            if failure is None:
                self.made.append(job.name)
            else:
                self.failed[job.name] = failure
            self._answers.put((job.name, failure))


class _Watch:
    """The progress of one VM's steps: nobody reads it, and it is where a signal reaches the thread."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def planned(self, steps: tuple[str, ...]) -> None:
        """Say nothing."""

    def started(self, number: int, text: str) -> None:
        """Stop here after a signal; what was done is undone.

        Raises:
            Interrupted: a signal came.
        """
        came = self._crew.stopped
        if came is not None:
            raise Interrupted(came.message, signal_number=came.signal_number)

    def finished(self, number: int, text: str) -> None:
        """Say nothing."""

    def undoing(self, text: str) -> None:
        """Stop the undo after the second signal.

        Raises:
            KeyboardInterrupt: it came.
        """
        if self._crew.halted:
            raise KeyboardInterrupt
