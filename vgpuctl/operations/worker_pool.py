# SPDX-License-Identifier: Apache-2.0
"""Carry out the plans of several VMs in parallel; a plan that fails is undone without affecting the others.

The workers are threads of one operation: they share its claims, which name it, and one libvirt connection, which
libvirt lets threads share. The caller has written the claims, so no worker takes the host lock. Only the main thread
receives signals: the first signal stops the creation of further VMs and undoes the half-created ones; the second stops
that undo.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from signal import SIGINT
from threading import Thread
from typing import TYPE_CHECKING

from vgpuctl.errors import Interrupted, VgpuctlError
from vgpuctl.operations.execute import execute_plan
from vgpuctl.operations.steps.claims import TakeClaim
from vgpuctl.ports.step import Plan
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.outcome import BatchProgress, Progress
    from vgpuctl.ports.host import Host

POLL_SECONDS = 0.5
"""How long the main thread waits for a result before it checks whether any worker is still alive."""


class VmJob(Value):
    """One VM to create. `claim_steps`: performed already; `plan`: the steps still to perform."""

    name: str
    claim_steps: tuple[TakeClaim, ...]
    plan: Plan


def describe_jobs(jobs: Sequence[VmJob]) -> tuple[str, ...]:
    """Return the steps as text, each with its VM's name; steps that several VMs share come first, once each."""
    steps = [(job.name, step) for job in jobs for step in (*job.claim_steps, *job.plan.steps)]
    counts = Counter(step for _, step in steps)
    shared = [step.describe() for step, count in counts.items() if count > 1]
    return (*shared, *(f"{name}: {step.describe()}" for name, step in steps if counts[step] == 1))


class WorkerPool:
    """The worker threads. After `run`, `created` and `failed` are complete.

    `interruption`: the first signal, as an exception, or None. `abort_undo`: the second signal came, and the workers
    stop their undo. `warnings`: those of the VMs' plans, such as that another program started the VM. `copies`: the
    copies of images that are running, each with the percentage that is done.

    The threads write `created` and `failed` themselves: a signal may make the main thread lose a result that arrives
    at that moment.
    """

    def __init__(self, host: Host, jobs: tuple[VmJob, ...], parallel: int, progress: BatchProgress) -> None:
        self.created: list[str] = []
        self.failed: dict[str, VgpuctlError] = {}
        self.warnings: list[str] = []
        self.copies: dict[str, float] = {}
        self.interruption: Interrupted | None = None
        self.abort_undo = False
        self._host = host
        self._total, self._done_count, self._failed_count = len(jobs), 0, 0
        self._pending = deque(jobs)
        self._results: SimpleQueue[tuple[str, VgpuctlError | None]] = SimpleQueue()
        self._progress = progress
        self._threads = [Thread(target=self._run_jobs, name=f"vm-{n}") for n in range(min(parallel, len(jobs)))]

    def run(self) -> None:
        """Create the VMs; return when all threads have ended. Release the claims of VMs whose creation never began."""
        try:
            self._progress.on_plan(describe_jobs(tuple(self._pending)))
            while not self._run_until_signal():
                pass
        finally:
            if self._has_live_threads():  # an unexpected exception: the workers stop at their next step
                self.interruption = self.interruption or Interrupted("stopped", signal_number=SIGINT)
            while (job := self._next_job()) is not None:
                for step in reversed(job.claim_steps):
                    step.undo(self._host)

    def job_progress(self) -> Progress:
        """Return the progress object for one VM's steps; it stops them after a signal."""
        return _JobProgress(self)

    def _run_until_signal(self) -> bool:
        """Receive results. Return True when all threads have ended, False after a signal: then call it again."""
        try:
            if self.interruption is None:
                self._progress.on_wait()
            for thread in self._threads:
                if thread.ident is None and self.interruption is None:
                    thread.start()
            while self._has_live_threads() or not self._results.empty():
                self._receive_result()
        except Interrupted as interruption:
            self.interruption = self.interruption or interruption
            return False
        except KeyboardInterrupt:
            self.abort_undo = self.interruption is not None
            self.interruption = self.interruption or Interrupted("stopped", signal_number=SIGINT)
            return False
        return True

    def _has_live_threads(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _receive_result(self) -> None:
        try:
            name, error = self._results.get(timeout=POLL_SECONDS)
        except Empty:
            if self.interruption is None:
                self._progress.on_wait()
                for text, percent in sorted(self.copies.items()):
                    self._progress.on_step_progress(self._done_count, text, percent)
            return
        self._done_count += 1
        self._failed_count += error is not None
        result = "made" if error is None else f"failed: {error.message}"
        self._progress.on_vm_finish(self._done_count, self._total, self._failed_count, f"{name}: {result}")

    def _next_job(self) -> VmJob | None:
        try:
            return self._pending.popleft()
        except IndexError:
            return None

    def _run_jobs(self) -> None:
        """Create VMs one after the other; runs in each worker thread."""
        while self.interruption is None:
            job = self._next_job()
            if job is None:
                return
            failure: VgpuctlError | None = None
            try:
                self.warnings += execute_plan(self._host, job.plan, self.job_progress(), job.claim_steps)
            except VgpuctlError as error:
                failure = error
            except BaseException as error:  # noqa: BLE001 - the main thread must report any failure of this VM
                failure = VgpuctlError(f"{type(error).__name__}: {error}")
            if failure is None:
                self.created.append(job.name)
            else:
                self.failed[job.name] = failure
            self._results.put((job.name, failure))


class _JobProgress:
    """The progress of one VM's steps. It only notes copies; after a signal its methods raise: the worker stops."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    def on_plan(self, steps: tuple[str, ...]) -> None:
        """Do nothing."""

    def on_step_start(self, number: int, text: str) -> None:
        """Stop here after a signal; the steps done are then undone.

        Raises:
            Interrupted: a signal came.
        """
        interruption = self._pool.interruption
        if interruption is not None:
            raise Interrupted(interruption.message, signal_number=interruption.signal_number)

    def on_step_progress(self, number: int, text: str, percent: float) -> None:
        """Note it for the main thread, or stop the copy after a signal; the steps done are then undone.

        Raises:
            Interrupted: a signal came.
        """
        self.on_step_start(number, text)
        self._pool.copies[text] = percent

    def on_step_finish(self, number: int, text: str) -> None:
        """Forget the copy that it was."""
        self._pool.copies.pop(text, None)

    def on_step_undo(self, text: str) -> None:
        """Stop the undo after the second signal.

        Raises:
            KeyboardInterrupt: the second signal came.
        """
        if self._pool.abort_undo:
            raise KeyboardInterrupt
