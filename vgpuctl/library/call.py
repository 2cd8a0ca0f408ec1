# SPDX-License-Identifier: Apache-2.0
"""What every call of the library shares: the host, waiting, progress, confirmation, cancellation, its audit entry."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar

from vgpuctl.errors import Interrupted, InvalidInput, VgpuctlError, explain_exception
from vgpuctl.model.outcome import CallSettings, Context, Outcome, Subjects
from vgpuctl.ports.host import for_another_operation
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.host.processes import HostClock
    from vgpuctl.library.batch import BatchRequest
    from vgpuctl.model.outcome import Confirm
    from vgpuctl.model.results import TargetsResult
    from vgpuctl.ports.host import Host

P = ParamSpec("P")
AnyCalls = TypeVar("AnyCalls", bound="Calls")
Result = TypeVar("Result")
Data = TypeVar("Data")


def _without_empty(confirm: Confirm) -> Confirm:
    """Return the confirmation that gets only questions."""

    def ask(question: str, details: tuple[str, ...]) -> None:
        if question:
            confirm(question, details)

    return ask


class _OpenState:
    """Whether a host is open. Its calls run in any number of threads; the last one closes a host that was closed."""

    def __init__(self, ports: Host) -> None:
        self._ports = ports
        self._lock = Lock()
        self._running_calls = 0
        self._is_open = True

    @contextmanager
    def call(self) -> Iterator[None]:
        """Keep the host open for one call.

        Raises:
            InvalidInput: it is closed.
        """
        with self._lock:
            if not self._is_open:
                raise InvalidInput(f"host {self._ports.name} is closed", hint="open it again with vgpuctl.open_host")
            self._running_calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._running_calls -= 1
                self._close_unless_used()

    def close(self) -> None:
        """Let no further call begin, and close the host when none runs."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._close_unless_used()

    def _close_unless_used(self) -> None:
        if not self._is_open and not self._running_calls and self._ports.close is not None:
            self._ports.close()


class Calls:
    """The host that calls work on. Threads may share it: each call has its own operation and its own audit entry."""

    def __init__(
        self,
        ports: Host,
        settings: CallSettings,
        captured_root: str | None = None,
        open_again: Callable[[CallSettings, HostClock], Self] | None = None,
    ) -> None:
        """`open_again` opens the same host with other settings, for a worker thread."""
        self._ports = ports
        self._open_state = _OpenState(ports)
        self._open_again = open_again
        self._settings = settings
        self._captured_root = captured_root
        self._confirm = settings.confirm if settings.batch_subjects is not None else _without_empty(settings.confirm)
        self._begin_call()

    _about: Literal["vm", "gpu"] | None = None
    """What the running change's first argument names."""

    def _begin_call(self) -> None:
        """Create what a call does not share with another one."""
        self._subjects = self._settings.batch_subjects or Subjects()
        self._progress = _WatchedProgress(self._settings)

    @contextmanager
    def _one_call(self: AnyCalls) -> Iterator[AnyCalls]:
        """Yield this host for one call, with an operation of its own.

        Raises:
            InvalidInput: it is closed.
        """
        with self._open_state.call():
            call = copy(self)
            call._begin_call()
            call._ports = for_another_operation(self._ports)
            yield call

    def with_settings(self: AnyCalls, settings: CallSettings) -> AnyCalls:
        """Return this host for calls with other settings; both are closed together."""
        other = copy(self)
        other._settings = settings
        other._confirm = _without_empty(settings.confirm)
        other._ports = replace(self._ports, given_files=settings.files)
        return other

    def close(self) -> None:
        """Close the host's files and its connection to libvirt. Running calls come to their end; no other one begins.

        `with vgpuctl.open_host() as host:` closes it at the end of the block.
        """
        self._open_state.close()

    def __enter__(self: AnyCalls) -> AnyCalls:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _context(self, *, dry_run: bool = False) -> Context:
        """Return how an operation of this call works."""
        return Context(
            self._progress,
            self._settings.wait_seconds,
            self._subjects,
            dry_run,
            self._confirm,
            self._settings.caller,
            self._settings.if_generation,
            self._settings.fleet,
            self._settings.fence,
            self._about == "vm" and not self._settings.override_controller,
        )

    @property
    def name(self) -> str:
        """The name that opened the host."""
        return self._ports.name

    def _carry_out(self, command: str, named: Named, act: Callable[[], Outcome[Data]]) -> Outcome[Data]:
        """Carry out a change and write its entry to the host's audit journal. `named`: what its caller named."""
        from vgpuctl.library import audit

        if self._settings.batch_subjects is not None:
            return self._end_with(act)
        self._subjects.add_vms(named.vms)
        for gpu in named.gpus:
            self._subjects.add_gpu(gpu)
        words = self._settings.command_line
        call = audit.Call(
            command,
            self._ports.operations.current().command if words is None else audit.join(words),
            self._subjects,
            self._settings.caller,
        )
        try:
            outcome = self._end_with(act)
        except BaseException as exc:
            call.failed(self._ports, exc, self._progress.steps)
            raise
        call.succeeded(self._ports, outcome)
        return outcome

    def _query(self, method: Callable[..., Result], args: tuple[Any, ...], named: Mapping[str, Any]) -> Result:
        """Make a call that changes nothing. `SentCalls` sends it instead."""
        with self._one_call() as host:
            return host._end_with(lambda: method(host, *args, **named))

    def _change(
        self,
        command: str,
        about: Literal["vm", "gpu"] | None,
        method: Callable[..., Outcome[Data]],
        args: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> Outcome[Data]:
        """Make a call that changes the host, or a dry run of it. `SentCalls` sends it instead."""
        self._refuse_captured()
        with self._one_call() as host:
            host._about = about
            if named.get("dry_run"):
                return host._end_with(lambda: method(host, *args, **named))
            return host._carry_out(command, _named(about, args, named), lambda: method(host, *args, **named))

    def _end_with(self, act: Callable[[], Result]) -> Result:
        """Return what `act` returns, and end the operation of this call.

        Raises:
            VgpuctlError: it failed, also for a library that is missing or a system error.
        """
        try:
            return act()
        except BaseException as exc:
            error = explain_exception(exc)
            if error is exc:
                raise
            raise error from exc
        finally:
            self._ports.operations.end()

    def _run_batch(
        self, request: BatchRequest[Self, Data], earlier_steps: tuple[str, ...] = ()
    ) -> Outcome[TargetsResult[Data]]:
        """Make a change for each name, each in a worker thread with a host of its own.

        Raises:
            SomeTargetsFailed: some failed; the audit entry names `earlier_steps` and the steps of the others.
        """
        from vgpuctl.library import batch

        if self._open_again is None:
            raise TypeError("open this host with vgpuctl.open_host")
        settings = replace(self._settings, batch_subjects=self._subjects)
        try:
            result = batch.run(self._open_again, settings, self._progress, request)
        except VgpuctlError as error:
            self._progress.steps = (*earlier_steps, *getattr(error.result, "steps", ()))
            raise
        steps = result.steps if isinstance(result, Outcome) else ()
        return Outcome(result.changed, result.data, steps, result.warnings, result.notes, request.dry_run)

    def _refuse_captured(self) -> None:
        if self._captured_root is not None:
            raise InvalidInput(
                f"--root {self._captured_root}: a command that changes the host works only on /",
                hint="omit --root, or try it on a simulated host: --host sim:a100-40",
            )


def query(method: Callable[Concatenate[AnyCalls, P], Result]) -> Callable[Concatenate[AnyCalls, P], Result]:
    """Make a method of `Calls` a call that changes nothing."""

    @wraps(method)
    def call(self: AnyCalls, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return self._query(method, args, kwargs)

    call.changes = False  # type: ignore[attr-defined]  # read by library/call_table.py
    call.about = None  # type: ignore[attr-defined]
    return call


def change(
    command: str, about: Literal["vm", "gpu"] | None = None
) -> Callable[[Callable[Concatenate[AnyCalls, P], Outcome[Data]]], Callable[Concatenate[AnyCalls, P], Outcome[Data]]]:
    """Make a method of `Calls` a call that changes the host, unless its argument `dry_run` is true.

    `command`: what the audit journal calls it. `about`: what its first argument names, a VM or a GPU.
    """

    def decorate(
        method: Callable[Concatenate[AnyCalls, P], Outcome[Data]],
    ) -> Callable[Concatenate[AnyCalls, P], Outcome[Data]]:
        @wraps(method)
        def call(self: AnyCalls, /, *args: P.args, **kwargs: P.kwargs) -> Outcome[Data]:
            return self._change(command, about, method, args, kwargs)

        call.changes = True  # type: ignore[attr-defined]  # read by library/call_table.py
        call.about = about  # type: ignore[attr-defined]
        return call

    return decorate


def _named(about: Literal["vm", "gpu"] | None, args: tuple[object, ...], named: Mapping[str, object]) -> Named:
    """Return what the arguments of a call name: the first one, if it is the VM or the GPU that the call is about."""
    value = args[0] if args else named.get("gpu" if about == "gpu" else "name")
    if about is None or not isinstance(value, str):
        return Named()
    return Named(gpus=(value,)) if about == "gpu" else Named((value,))


class Named(Value):
    """The VMs and GPUs that the arguments of a call name."""

    vms: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()


class _WatchedProgress:
    """Passes progress on, remembers the plan for the audit entry, and stops before a step if the call is cancelled."""

    def __init__(self, settings: CallSettings) -> None:
        self._inner = settings.progress
        self._cancelled = settings.cancelled
        self.steps: tuple[str, ...] = ()

    def on_plan(self, steps: tuple[str, ...]) -> None:
        """Remember the steps and pass them on."""
        self.steps = steps
        self._inner.on_plan(steps)

    def on_step_start(self, number: int, text: str) -> None:
        """Pass it on, unless the call is cancelled.

        Raises:
            Interrupted: it is.
        """
        self._check()
        self._inner.on_step_start(number, text)

    def on_step_progress(self, number: int, text: str, percent: float) -> None:
        """Pass it on, unless the call is cancelled.

        Raises:
            Interrupted: it is.
        """
        self._check()
        self._inner.on_step_progress(number, text, percent)

    def on_step_finish(self, number: int, text: str) -> None:
        """Pass it on."""
        self._inner.on_step_finish(number, text)

    def on_step_undo(self, text: str) -> None:
        """Pass it on."""
        self._inner.on_step_undo(text)

    def on_vm_finish(self, done: int, total: int, failed: int, text: str) -> None:
        """Pass it on, unless the call is cancelled.

        Raises:
            Interrupted: it is.
        """
        self._inner.on_vm_finish(done, total, failed, text)
        self._check()

    def on_wait(self) -> None:
        """Stop here if the call is cancelled.

        Raises:
            Interrupted: it is.
        """
        self._check()

    def _check(self) -> None:
        if self._cancelled():
            raise Interrupted("the caller cancelled it", signal_number=signal.SIGINT)
