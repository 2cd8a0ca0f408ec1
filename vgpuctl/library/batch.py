# SPDX-License-Identifier: Apache-2.0
"""Calls one change for several VMs, vGPUs or GPUs. Each is a transaction of its own, with its own undo.

Each worker thread opens the host once more, with a clock that its signal ends. The batch is one
command for the user: one confirmation, one audit entry, one result.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from vgpuctl.config.name_patterns import natural_key
from vgpuctl.errors import (
    HostCannot,
    Interrupted,
    InUse,
    Refused,
    SomeTargetsFailed,
    VgpuctlError,
    explain_exception,
    named_message,
    worst_status,
)
from vgpuctl.host.processes import HostClock
from vgpuctl.library.failure_lines import failure_lines
from vgpuctl.model.numbers import count_text
from vgpuctl.model.outcome import CallSettings, NoProgress, Outcome, QueryResult, confirm_everything
from vgpuctl.model.results import TallyResult, TargetErrorResult, TargetResult, TargetsResult
from vgpuctl.operations.worker_pool import Workers
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Confirm, Progress


class WorkerHost(Protocol):
    """The host of one worker thread."""

    def close(self) -> None:
        """Close it: no further call begins."""


WorkerT = TypeVar("WorkerT", bound=WorkerHost)
Data = TypeVar("Data")
AnyResult = Outcome[Data] | QueryResult[Data]
Call = Callable[[WorkerT, str], AnyResult[Data]]
OpenWorker = Callable[[CallSettings, HostClock], WorkerT]
MAX_NAMES_IN_FULL = 3
"""Before the user confirms, the steps of at most this many are shown; of more, how much is deleted or stopped."""

CANNOT_HAVE_CHECKS = ("mode", "partition", "scheduler", "adopt-device", "adopted")
"""The `check` facts of errors which say that a GPU cannot have a setting at all, with its model or its driver; or that
a VM has nothing to adopt or to let go, or was adopted and cannot be deleted."""


class Preview(Value):
    """What the user confirms about one of them: the call's own question, and its steps."""

    question: str
    steps: tuple[str, ...]


class _Planned(Exception):
    """Ends a call when it needs confirmation: everything is checked then, and nothing is changed."""

    def __init__(self, preview: Preview) -> None:
        super().__init__(preview.question)
        self.preview = preview


class Batch(Workers[str], Generic[WorkerT, Data]):
    """Worker threads that make one call for each name. After `run`, `results` and `failed` are complete."""

    def __init__(
        self,
        open_worker: OpenWorker[WorkerT],
        names: Sequence[str],
        call: Call[WorkerT, Data],
        parallel: int,
        progress: Progress,
        settings: CallSettings,
        confirm: Callable[[str], Confirm],
        skips: bool = False,
    ) -> None:
        super().__init__(names, parallel, progress, "done")
        self._skips = skips
        self.results: dict[str, AnyResult[Data]] = {}
        self.previews: dict[str, Preview] = {}
        self._open_worker = open_worker
        self._call = call
        self._settings = settings
        self._confirm = confirm
        self._local = threading.local()
        self._hosts: list[WorkerT] = []

    def run(self, steps: tuple[str, ...] = ()) -> None:
        """Make all calls, and close the hosts of the threads."""
        try:
            super().run(steps)
        finally:
            for host in self._hosts:
                host.close()

    def name_of(self, job: str) -> str:
        """Return the name."""
        return job

    def perform(self, job: str) -> None:
        """Make the call for one name."""
        self._local.seen = None
        self._local.name = job
        host = getattr(self._local, "host", None)
        if host is None:
            host = self._local.host = self._open_worker(self._worker_settings(), HostClock(self._stop_wait))
            self._hosts.append(host)
        try:
            self.results[job] = self._call(host, job)
        except _Planned as planned:
            self.previews[job] = planned.preview

    def is_skipped(self, error: VgpuctlError) -> bool:
        """Return whether the target cannot have what every one that can have it gets."""
        return self._skips and _is_impossible(error)

    def _worker_settings(self) -> CallSettings:
        return replace(self._settings, progress=self.job_progress(), confirm=self._ask, cancelled=self._is_stopped)

    def _ask(self, question: str, details: tuple[str, ...]) -> None:
        self._confirm(self._local.name)(question, details)

    def _is_stopped(self) -> bool:
        """Return False: the work goes on.

        Raises:
            Interrupted: a signal came, which the main thread received.
        """
        if self.interruption is not None:
            raise Interrupted(self.interruption.message, signal_number=self.interruption.signal_number)
        return False

    def _stop_wait(self) -> None:
        """End a wait once after the first signal and once after the second, as in the main thread."""
        signals = (self.interruption is not None) + self.abort_undo
        if signals > (self._local.seen or 0):
            self._local.seen = signals
            if self.abort_undo:
                raise KeyboardInterrupt
            if self.interruption is not None:
                raise Interrupted(self.interruption.message, signal_number=self.interruption.signal_number)


class BatchRequest(Value, Generic[WorkerT, Data]):
    """Which call is made for which names, and how many at a time.

    `question`: makes the one question from the names to ask about; None: the call asks nothing. `skips`: what cannot
    have the change is skipped with a note, if another one can. `may_skip_all`: also if none can, which is a success.
    """

    names: tuple[str, ...]
    call: Call[WorkerT, Data]
    parallel: int
    question: Callable[[Sequence[str]], str] | None = None
    notes: tuple[str, ...] = ()
    dry_run: bool = False
    skips: bool = False
    may_skip_all: bool = False


def run(
    open_worker: OpenWorker[WorkerT], settings: CallSettings, progress: Progress, request: BatchRequest[WorkerT, Data]
) -> AnyResult[Any]:
    """Make the call for each name, and return the result of all.

    Raises:
        SomeTargetsFailed: it failed for some; `result` has all of them, and `status` is the worst.
        VgpuctlError: it failed for the only one; `result` has it, too.
        Interrupted: a signal came, or the caller cancelled it; `result` has all of them.
        NeedsConfirmation: the answer was no; nothing was changed.
    """
    make_batch = partial(
        Batch[WorkerT, Data],
        open_worker,
        call=request.call,
        parallel=request.parallel,
        settings=settings,
        skips=request.skips,
    )
    if request.question is None:
        batch = make_batch(
            names=request.names,
            progress=QuietProgress(progress) if request.dry_run else progress,
            confirm=lambda _: confirm_everything,
        )
        batch.run()
        return _report(request, (batch,))
    plans = make_batch(names=request.names, progress=QuietProgress(progress), confirm=lambda _: _plan)
    plans.run()
    if not plans.previews or plans.interruption is not None:
        return _report(request, (plans,))
    names = [name for name in request.names if name in plans.previews]
    asked = [name for name in names if plans.previews[name].question]
    if asked:
        settings.confirm(request.question(asked), _details(asked, plans))
    batch = make_batch(names=names, progress=progress, confirm=lambda name: _as_confirmed(name, plans.previews[name]))
    batch.run()
    return _report(request, (plans, batch))


class QuietProgress(NoProgress):
    """Passes on only that the work waits, so that it can be cancelled."""

    def __init__(self, inner: Progress) -> None:
        self._inner = inner

    def on_wait(self) -> None:
        """Pass it on."""
        self._inner.on_wait()


def _plan(question: str, details: tuple[str, ...]) -> None:
    raise _Planned(Preview(question, details))


def _as_confirmed(name: str, preview: Preview) -> Confirm:
    """Return the answer yes for what the user confirmed, and for nothing else."""

    def confirm(question: str, details: tuple[str, ...]) -> None:
        if Preview(question, details) != preview:
            raise InUse(
                f"{name} was changed since you confirmed: {question}", hint="check it, then run the command again"
            )

    return confirm


def _details(names: Sequence[str], plans: Batch[Any, Any]) -> tuple[str, ...]:
    """Return what the user reads before the one question: every step, or of many how much is deleted or stopped.

    Every name is among them, because a pattern may have selected more than was meant.
    """
    steps = [(name, step) for name in names for step in plans.previews[name].steps]
    if len(names) <= MAX_NAMES_IN_FULL:
        lines = [f"{name}: {step}" for name, step in steps]
    else:
        deletions = [(name, step.split()[1]) for name, step in steps if step.startswith("delete ")]
        stops = [(name, step) for name, step in steps if step.startswith("VM ")]
        lines = [f"{name}: {step}" for name, step in stops]
        if deletions:
            kinds = Counter(kind for _, kind in deletions)
            what = " and ".join(count_text(number, kind) for kind, number in kinds.items())
            lines.append(f"delete {what} of {', '.join(dict.fromkeys(name for name, _ in deletions))}")
        without_line = sorted({*names} - {name for name, _ in (*deletions, *stops)}, key=natural_key)
        if without_line:
            lines.append(f"also: {', '.join(without_line)}")
        if len(stops) + len(deletions) < len(steps):
            lines.append("--dry-run shows every step, with the paths")
    return (*lines, *(_skipped_text(name, error) for name, error in plans.failed.items()))


def _is_impossible(error: VgpuctlError) -> bool:
    return isinstance(error, HostCannot | Refused) and error.facts.get("check") in CANNOT_HAVE_CHECKS


def _skipped_text(name: str, error: VgpuctlError) -> str:
    return f"skipped: {named_message(name, error.message)}"


def _report(request: BatchRequest[WorkerT, Data], batches: Sequence[Batch[WorkerT, Data]]) -> AnyResult[Any]:
    results: dict[str, AnyResult[Data]] = {}
    failed: dict[str, VgpuctlError] = {}
    for batch in batches:
        results |= batch.results
        failed |= batch.failed
    interruption = next((batch.interruption for batch in batches if batch.interruption is not None), None)
    if interruption is not None:
        not_begun = partial(Interrupted, "not begun", signal_number=interruption.signal_number)
        failed |= {name: not_begun() for name in request.names if name not in results and name not in failed}
    skipped = {n: failed.pop(n) for n in request.names if n in failed and request.skips and _is_impossible(failed[n])}
    if not results and not request.may_skip_all:
        failed, skipped = failed | skipped, {}
    names = [name for name in request.names if name not in skipped]
    rows = tuple(_failed_row(name, failed[name]) if name in failed else _row(name, results[name]) for name in names)
    notes = (*request.notes, *(_skipped_text(name, error) for name, error in skipped.items()))
    result = combine(rows, tuple(results[name] for name in names if name in results), notes)
    raise_failures(result, {name: failed[name] for name in names if name in failed}, interruption)
    return result


def combine(
    rows: tuple[TargetResult[Data], ...], results: Sequence[AnyResult[Data]], notes: tuple[str, ...] = ()
) -> AnyResult[Any]:
    """Return the result of all rows: warnings and notes once each, the steps with the name in front."""
    failures = sum(not row.ok for row in rows)
    changes = sum(row.changed for row in rows)
    tally = TallyResult(changes, len(rows) - failures - changes, failures)
    data = TargetsResult(rows, tally)
    warnings = tuple(dict.fromkeys(warning for result in results for warning in result.warnings))
    all_notes = tuple(dict.fromkeys((*notes, *(note for result in results for note in result.notes))))
    outcomes = [result for result in results if isinstance(result, Outcome)]
    if results and not outcomes:
        return QueryResult(data, warnings, notes=all_notes)
    steps = tuple(f"{row.name}: {step}" for row in rows for step in row.steps)
    return Outcome(changes > 0, data, steps, warnings, all_notes, dry_run=any(o.dry_run for o in outcomes))


def raise_failures(
    result: AnyResult[Any], failed: dict[str, VgpuctlError], interruption: Interrupted | None = None
) -> None:
    """Raise the one error for all that failed, if any did; of a single target, its own.

    Raises:
        SomeTargetsFailed, Interrupted: as `run`.
    """
    if not failed and interruption is None:
        return
    total = len(result.data.targets)
    if total == 1 and interruption is None:
        (own,) = failed.values()
        own.result = result
        raise own
    facts: dict[str, Any] = {"failed": list(failed), "details": failure_lines(failed)}
    message = f"{len(failed)} of {total} failed"
    error: VgpuctlError
    if interruption is not None:
        message = f"{interruption.message}; {total - len(failed)} of {total} are done"
        error = Interrupted(message, signal_number=interruption.signal_number, **facts)
    else:
        error = SomeTargetsFailed(message, **facts)
        error.status = worst_status(e.status for e in failed.values())
    error.undone = [f"{name}: {step}" for name, e in failed.items() for step in e.undone]
    error.left = [f"{name}: {step}" for name, e in failed.items() for step in e.left]
    error.changed = result.changed or any(e.changed for e in failed.values())
    error.result = result
    if error.left:
        error.hint = "vgpuctl reconcile-host finishes or undoes what is left"
    raise error


def _row(name: str, result: AnyResult[Data]) -> TargetResult[Data]:
    steps = result.steps if isinstance(result, Outcome) else ()
    return TargetResult(name, True, result.changed, steps, result.data, None)


def _failed_row(name: str, error: VgpuctlError) -> TargetResult[Data]:
    status = 128 + error.signal_number if isinstance(error, Interrupted) else error.status
    failure = TargetErrorResult(error.code, error.message, error.hint, status, tuple(error.undone), tuple(error.left))
    return TargetResult(name, False, bool(error.changed or error.left), (), None, failure)


def query(names: Sequence[str], call: Callable[[str], QueryResult[Data]], notes: tuple[str, ...]) -> QueryResult[Any]:
    """Return what a call that changes nothing reports for each name, one after the other.

    Raises:
        SomeTargetsFailed: it failed for some.
    """
    results: dict[str, QueryResult[Data]] = {}
    failed: dict[str, VgpuctlError] = {}
    for name in names:
        try:
            results[name] = call(name)
        except Interrupted:
            raise
        except (VgpuctlError, OSError) as error:
            explained = explain_exception(error)
            if not isinstance(explained, VgpuctlError):
                raise
            failed[name] = explained
    rows = tuple(_failed_row(name, failed[name]) if name in failed else _row(name, results[name]) for name in names)
    combined = combine(rows, tuple(results.values()), notes)
    result = QueryResult(combined.data, combined.warnings, notes=combined.notes)
    raise_failures(result, failed)
    return result
