# SPDX-License-Identifier: Apache-2.0
"""What every call of the library shares: the host, who is told and asked, cancellation, and the audit entry."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from vgpuctl.errors import Interrupted, InvalidInput, explain_exception
from vgpuctl.lazy_module import LazyModule
from vgpuctl.model.outcome import NoProgress
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.host.clock import HostClock
    from vgpuctl.library import GpuHost, audit
    from vgpuctl.model.outcome import BatchProgress, Confirm, Outcome
    from vgpuctl.ports.host import Host
else:
    audit = LazyModule("vgpuctl.library.audit")

P = ParamSpec("P")
Self = TypeVar("Self", bound="Calls")
Result = TypeVar("Result")
Data = TypeVar("Data")
DEFAULT_WAIT_SECONDS = 60.0


def confirm_everything(question: str, details: tuple[str, ...]) -> None:
    """Answer yes: a program that calls the library means what it calls."""


def never_cancelled() -> bool:
    """Return False."""
    return False


class CallSettings(Value):
    """How calls work. `wait_seconds`: for another vgpuctl, a busy device, a guest that shuts down.

    `confirm` is asked before something is lost. `cancelled` is asked before each step; True stops the work, and what
    was done is undone. `command_line` is written to the audit journal; None: the process's own. `audited` False: the
    call is part of a batch, which has one entry.
    """

    wait_seconds: float = DEFAULT_WAIT_SECONDS
    progress: BatchProgress = NoProgress()
    confirm: Confirm = confirm_everything
    cancelled: Callable[[], bool] = never_cancelled
    command_line: tuple[str, ...] | None = None
    audited: bool = True


class Calls:
    """The host that calls work on. One call at a time: open the host once more for another thread."""

    def __init__(
        self,
        ports: Host,
        settings: CallSettings,
        captured_root: str | None = None,
        open_again: Callable[[CallSettings, HostClock], GpuHost] | None = None,
    ) -> None:
        """`open_again` opens the same host for another thread."""
        self._ports = ports
        self._open_again = open_again
        self._settings = settings
        self._captured_root = captured_root
        self._wait = settings.wait_seconds
        self._confirm = settings.confirm
        self._progress = _WatchedProgress(settings)

    @property
    def name(self) -> str:
        """The name by which the host was opened."""
        return self._ports.name

    def _carry_out(self, command: str, act: Callable[[], Outcome[Data]]) -> Outcome[Data]:
        """Carry out a change and write its entry to the host's audit journal."""
        if not self._settings.audited:
            return call_library(self._ports, act)
        self._progress.steps = ()
        words = self._settings.command_line
        call = audit.Call(command, self._ports.operations.current().command if words is None else audit.join(words))
        try:
            outcome = call_library(self._ports, act)
        except BaseException as exc:
            call.failed(self._ports, exc, self._progress.steps)
            raise
        call.succeeded(self._ports, outcome)
        return outcome

    def _refuse_captured(self) -> None:
        if self._captured_root is not None:
            raise InvalidInput(
                f"--root {self._captured_root}: a command that changes the host works on / only",
                hint="leave --root out, or try it on a simulated host: --host sim:a100-40",
            )


def query(method: Callable[Concatenate[Self, P], Result]) -> Callable[Concatenate[Self, P], Result]:
    """Make a method of `Calls` a call that changes nothing."""

    @wraps(method)
    def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return call_library(self._ports, lambda: method(self, *args, **kwargs))

    return call


def change(
    command: str,
) -> Callable[[Callable[Concatenate[Self, P], Outcome[Data]]], Callable[Concatenate[Self, P], Outcome[Data]]]:
    """Make a method of `Calls` a call that changes the host, unless its argument `dry_run` is true.

    `command`: what the audit journal calls it.
    """

    def decorate(
        method: Callable[Concatenate[Self, P], Outcome[Data]],
    ) -> Callable[Concatenate[Self, P], Outcome[Data]]:
        @wraps(method)
        def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> Outcome[Data]:
            self._refuse_captured()
            if kwargs.get("dry_run"):
                return call_library(self._ports, lambda: method(self, *args, **kwargs))
            return self._carry_out(command, lambda: method(self, *args, **kwargs))

        return call

    return decorate


def call_library(ports: Host, act: Callable[[], Result]) -> Result:
    """Return what `act` returns, and end its operation.

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
        ports.operations.end()


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
