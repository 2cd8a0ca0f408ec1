# SPDX-License-Identifier: Apache-2.0
"""The program's entry point: every outcome, signals too, becomes text or JSON and an exit status.

Signals are handled before click is imported. Until this module is imported, `vgpuctl/__main__.py` handles Ctrl-C.

What SIGINT, SIGTERM and SIGHUP (a lost terminal) do while a command runs: the first raises Interrupted in the main
thread, and the operation undoes the steps done so far. The second raises KeyboardInterrupt, which stops the undo. Once
the result is being printed, signals have no effect, so that the JSON document is complete.

Python loses an exception that a handler raises inside a weak reference's callback or a finaliser. Code that catches
VgpuctlError to try an alternative may swallow Interrupted, which is one. So `SignalGuard.check` is called before every
step: it raises Interrupted again if a signal came.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from vgpuctl.errors import Interrupted

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

    from vgpuctl.cli.global_options import Settings

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_active: list[SignalGuard] = []
GARBAGE_THRESHOLD = 200_000
"""Objects allocated before the first garbage collection. A command that ends within a second needs none, neither while
it imports nor when it ends (a tenth of create-vm's own time)."""


class SignalGuard:
    """The handlers of this process. `received` lists the signals that came."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.handled_signals: tuple[signal.Signals, ...] = ()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise Interrupted for the first signal and KeyboardInterrupt for later ones."""
        self.received.append(number)
        if len(self.received) == 1:
            raise self._interrupted()
        raise KeyboardInterrupt(f"stopped again by {signal.Signals(number).name}")

    def check(self) -> bool:
        """Return False: the work goes on. The library asks before each step.

        Raises:
            Interrupted: a signal came earlier, and its exception was lost.
        """
        if self.received:
            raise self._interrupted()
        return False

    def restore_handlers(self) -> None:
        """Leave the signals to what runs from here on, which handles them itself."""
        for number in self.handled_signals:
            signal.signal(number, signal.SIG_DFL)
        self.handled_signals = ()

    def ignore_signals(self) -> None:
        """Ignore signals from here on, even while the interpreter exits."""
        for number in self.handled_signals:
            signal.signal(number, signal.SIG_IGN)
        self.handled_signals = ()

    @property
    def exit_status(self) -> int:
        """The exit status of a command that the first signal stopped; SIGINT's where no signal was received."""
        return 128 + (self.received[0] if self.received else int(signal.SIGINT))

    def _interrupted(self) -> Interrupted:
        first = self.received[0]
        return Interrupted(f"stopped by {signal.Signals(first).name}", signal_number=first)


def _install_handlers() -> SignalGuard:
    """Install the handlers, in the main thread; in another thread, return a guard that handles nothing."""
    guard = SignalGuard()
    if threading.current_thread() is threading.main_thread():
        handled = tuple(n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN)
        guard.handled_signals = handled
        for number in handled:
            signal.signal(number, guard.handle)
        sys.unraisablehook = _ignore_lost_interrupt
        _active.append(guard)
    return guard


@contextmanager
def handle_signals() -> Iterator[SignalGuard]:
    """Handle signals inside the block, with the active guard if there is one."""
    if _active and threading.current_thread() is threading.main_thread():
        yield _active[-1]
        return
    old_handlers = [(number, signal.getsignal(number)) for number in SIGNALS]
    old_hook = sys.unraisablehook
    guard = _install_handlers()
    try:
        yield guard
    finally:
        if guard in _active:
            _active.remove(guard)
            sys.unraisablehook = old_hook
            for number, handler in old_handlers:
                signal.signal(number, handler)


@contextmanager
def block_signals() -> Iterator[None]:
    """Delay signals inside the block. Use it around imports.

    After an interrupted import, loaded submodules stay in `sys.modules`, and importing their package again does not set
    them as its attributes.
    """
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def _ignore_lost_interrupt(lost: UnraisableHookArgs) -> None:
    """Print nothing about an interruption that Python lost: `SignalGuard.check` raises it again."""
    if not isinstance(lost.exc_value, (Interrupted, KeyboardInterrupt)):
        sys.__unraisablehook__(lost)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, by default the process's own, and return its exit status."""
    if arguments is not None:
        with handle_signals() as guard:
            return _run(list(arguments), guard)
    gc.set_threshold(GARBAGE_THRESHOLD)
    status = _run(sys.argv[1:], _install_handlers())
    gc.freeze()
    return status


def _run(args: list[str], guard: SignalGuard) -> int:
    settings: Settings | None = None
    try:
        with block_signals():
            from vgpuctl.cli import command
            from vgpuctl.cli.global_options import Settings

        settings = Settings()
        settings.args = tuple(args)
        return command.run(settings, args)
    except BaseException as exc:  # noqa: BLE001
        guard.ignore_signals()
        return _report(exc, settings, args, guard)


def _report(exc: BaseException, settings: Settings | None, args: list[str], guard: SignalGuard) -> int:
    try:
        from vgpuctl.cli import failures
        from vgpuctl.cli.global_options import Settings
    except ImportError as import_error:
        return _report_without_click(import_error, args)

    settings = settings or Settings()
    if not settings.json:
        settings.output = _document_output(args) or settings.output
    return failures.report(exc, settings, signal_status=guard.exit_status)


def _report_without_click(exc: ImportError, args: list[str]) -> int:
    """Report that a library is missing which is needed to read the command line."""
    from vgpuctl.cli import document, streams
    from vgpuctl.errors import missing_library_error
    from vgpuctl.model import documents

    missing = missing_library_error(exc)
    if missing is None:
        raise exc
    if _document_output(args) is not None:
        error: dict[str, object] = {
            "code": missing.code, "message": missing.message, "hint": missing.hint, "facts": missing.facts,
            "exit_status": missing.status, "undone": [], "left": [],
        }  # fmt: skip
        streams.write_out(document.text(documents.failure_body("vgpuctl", error, changed=False)))
    else:
        streams.write_err(f"vgpuctl: {missing.message}   [{missing.code}]\n  hint: {missing.hint}")
    return missing.status


def _document_output(args: list[str]) -> str | None:
    """Return the form of the document that was asked for, even if the command line could not be parsed."""
    options = args[: args.index("--")] if "--" in args else args
    words = " ".join(options).replace("--output=", "-o ").replace("--output ", "-o ").replace("-o ", "-o").split(" ")
    return next((name for name in ("json", "yaml") if f"-o{name}" in words or f"--{name}" in options), None)
