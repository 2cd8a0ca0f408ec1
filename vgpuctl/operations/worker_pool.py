# SPDX-License-Identifier: Apache-2.0
"""Do the same work for several VMs in parallel; where it fails, it is undone without affecting the others.

Only the main thread receives signals: the first signal stops the work on further VMs and undoes what is half done; the
second stops that undo.

The workers of `WorkerPool`, which creates VMs, are threads of one operation: they share its claims, which name it, and
one libvirt connection, which libvirt lets threads share. The caller has written the claims, so no worker takes the host
lock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from signal import SIGINT
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vgpuctl.errors import Interrupted, VgpuctlError, named_message
from vgpuctl.model.outcome import NoProgress, Progress
from vgpuctl.operations.execute import execute_plan
from vgpuctl.operations.steps.claims import TakeClaim
from vgpuctl.ports.step import Plan
from vgpuctl.value import Value

if TYPE_CHECKING:
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


AnyJob = TypeVar("AnyJob")


class Workers(Generic[AnyJob]):
    """The worker threads. After `run`, `failed` is complete. A subclass says what `perform` does for one job.

    `done_word`: what the progress says of a finished job. `interruption`: the first signal, as an exception, or None.
    `abort_undo`: the second signal came, and the workers stop their undo. `copies`: the copies of images that are
    running, each with the percentage that is done.

    The threads write their results themselves: a signal may make the main thread lose a result that arrives at that
    moment.
    """

    def __init__(self, jobs: Sequence[AnyJob], parallel: int, progress: Progress, done_word: str) -> None:
        self.failed: dict[str, VgpuctlError] = {}
        self.copies: dict[str, float] = {}
        self.interruption: Interrupted | None = None
        self.abort_undo = False
        self._done_word = done_word
        self._total, self._done_count, self._failed_count = len(jobs), 0, 0
        self._pending = deque(jobs)
        self._results: SimpleQueue[tuple[str, VgpuctlError | None]] = SimpleQueue()
        self._progress = progress
        self._threads = [Thread(target=self._run_jobs, name=f"vm-{n}") for n in range(min(parallel, len(jobs)))]

    def perform(self, job: AnyJob) -> None:
        """Do the work for one job; runs in a worker thread."""
        raise NotImplementedError

    def drop(self, job: AnyJob) -> None:
        """Clean up after a job that never began."""

    def name_of(self, job: AnyJob) -> str:
        """Return the name of a job's VM."""
        raise NotImplementedError

    def run(self, steps: tuple[str, ...] = ()) -> None:
        """Do all jobs; return when all threads have ended. `steps`: the plan, for the progress."""
        try:
            self._progress.on_plan(steps)
            while not self._run_until_signal():
                pass
        finally:
            if self._has_live_threads():  # an unexpected exception: the workers stop at their next step
                self.interruption = self.interruption or Interrupted("stopped", signal_number=SIGINT)
            while (job := self._next_job()) is not None:
                self.drop(job)

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
        skipped = error is not None and self.is_skipped(error)
        self._failed_count += error is not None and not skipped
        word = "skipped" if skipped else "failed"
        text = f"{name}: {self._done_word}" if error is None else f"{word}: {named_message(name, error.message)}"
        self._progress.on_vm_finish(self._done_count, self._total, self._failed_count, text)

    def is_skipped(self, error: VgpuctlError) -> bool:
        """Return whether an error is no failure: the target is left out because it cannot have what is asked for."""
        return False

    def _next_job(self) -> AnyJob | None:
        try:
            return self._pending.popleft()
        except IndexError:
            return None

    def _run_jobs(self) -> None:
        """Do one job after the other; runs in each worker thread."""
        while self.interruption is None:
            job = self._next_job()
            if job is None:
                return
            failure: VgpuctlError | None = None
            try:
                self.perform(job)
            except VgpuctlError as error:
                failure = error
            except BaseException as error:  # noqa: BLE001 - the main thread must report any failure of this VM
                failure = VgpuctlError(f"{type(error).__name__}: {error}")
            if failure is not None:
                self.failed[self.name_of(job)] = failure
            self._results.put((self.name_of(job), failure))


class WorkerPool(Workers[VmJob]):
    """Creates VMs. After `run`, `created` and `failed` are complete.

    `warnings`: those of the VMs' plans, such as that another program started the VM.
    """

    def __init__(self, host: Host, jobs: tuple[VmJob, ...], parallel: int, progress: Progress) -> None:
        super().__init__(jobs, parallel, progress, "created")
        self.created: list[str] = []
        self.warnings: list[str] = []
        self._host = host

    def name_of(self, job: VmJob) -> str:
        """Return the name of the VM."""
        return job.name

    def perform(self, job: VmJob) -> None:
        """Create a VM."""
        self.warnings += execute_plan(self._host, job.plan, self.job_progress(), job.claim_steps)
        self.created.append(job.name)

    def drop(self, job: VmJob) -> None:
        """Release the claims of a VM whose creation never began."""
        for step in reversed(job.claim_steps):
            step.undo(self._host)


class _JobProgress(NoProgress):
    """The progress of one VM's steps. It only notes copies; after a signal its methods raise: the worker stops."""

    def __init__(self, pool: Workers[Any]) -> None:
        self._pool = pool

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
