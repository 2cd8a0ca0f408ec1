# SPDX-License-Identifier: Apache-2.0
"""The program's entry point: every outcome becomes text or JSON and an exit status.

Signals are handled before click is imported. Until this module is imported, `vgpuctl/__main__.py` handles Ctrl-C.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.cli import signals

if TYPE_CHECKING:
    from vgpuctl.cli.settings import Settings


GARBAGE_THRESHOLD = 200_000
"""Objects allocated before the first garbage collection. A command that ends within a second needs none, neither while
it imports nor when it ends (a tenth of create-vm's own time)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, by default the process's own, and return its exit status."""
    if arguments is not None:
        with signals.handle_signals() as guard:
            return _run(list(arguments), guard)
    gc.set_threshold(GARBAGE_THRESHOLD)
    status = _run(sys.argv[1:], signals.install_handlers())
    gc.freeze()
    return status


def _run(args: list[str], guard: signals.SignalGuard) -> int:
    settings: Settings | None = None
    try:
        with signals.block_signals():
            from vgpuctl.cli import app
            from vgpuctl.cli.settings import Settings

        settings = Settings()
        settings.args = tuple(args)
        return app.run(settings, args)
    except BaseException as exc:  # noqa: BLE001
        guard.ignore_signals()
        return _report(exc, settings, args, guard)


def _report(exc: BaseException, settings: Settings | None, args: list[str], guard: signals.SignalGuard) -> int:
    try:
        from vgpuctl.cli import failures
        from vgpuctl.cli.settings import Settings
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

    missing = missing_library_error(exc)
    if missing is None:
        raise exc
    if _document_output(args) is not None:
        error: dict[str, object] = {
            "code": missing.code, "message": missing.message, "hint": missing.hint, "facts": missing.facts,
            "exit_status": missing.status, "undone": [], "left": [],
        }  # fmt: skip
        streams.write_out(document.text(document.failure_body("vgpuctl", error, changed=False)))
    else:
        streams.write_err(f"vgpuctl: {missing.message}   [{missing.code}]\n  hint: {missing.hint}")
    return missing.status


def _document_output(args: list[str]) -> str | None:
    """Return the form of the document that was asked for, even if the command line could not be parsed."""
    options = args[: args.index("--")] if "--" in args else args
    words = " ".join(options).replace("--output=", "-o ").replace("--output ", "-o ").replace("-o ", "-o").split(" ")
    return next((name for name in ("json", "yaml") if f"-o{name}" in words or f"--{name}" in options), None)
