# SPDX-License-Identifier: Apache-2.0
"""The program's start: whatever happens becomes text or JSON and an exit status.

Signals are handled before click is imported, and before this is: `vgpuctl/_program/vgpuctl` sees to Ctrl-C meanwhile.
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
"""Objects made before the first search for garbage: a command that is over in a second needs none, neither while it
imports nor when it ends (a tenth of create-vm's own time)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status; without arguments, the process's own."""
    if arguments is not None:
        with signals.handled() as guard:
            return _run(list(arguments), guard)
    gc.set_threshold(GARBAGE_THRESHOLD)
    status = _run(sys.argv[1:], signals.install())
    gc.freeze()
    return status


def _run(words: list[str], guard: signals.Guard) -> int:
    settings: Settings | None = None
    try:
        with signals.held():
            from vgpuctl.cli import app
            from vgpuctl.cli.settings import Settings

        settings = Settings()
        settings.words = tuple(words)
        return app.run(settings, words)
    except BaseException as exc:  # noqa: BLE001
        guard.close()
        return _report(exc, settings, words, guard)


def _report(exc: BaseException, settings: Settings | None, words: list[str], guard: signals.Guard) -> int:
    try:
        from vgpuctl.cli import failures
        from vgpuctl.cli.settings import Settings
    except ImportError as without:
        return _report_without_click(without, words)

    settings = settings or Settings()
    settings.json = settings.json or _wants_json(words)
    return failures.report(exc, settings, signal_status=guard.status)


def _report_without_click(exc: ImportError, words: list[str]) -> int:
    """Say which library is missing where it is the one that reads the command line."""
    from vgpuctl.cli import document, streams
    from vgpuctl.errors import missing_library

    lacks = missing_library(exc)
    if lacks is None:
        raise exc
    if _wants_json(words):
        error: dict[str, object] = {
            "code": lacks.code, "message": lacks.message, "hint": lacks.hint, "facts": lacks.facts,
            "exit_status": lacks.status, "undone": [], "left": [],
        }  # fmt: skip
        streams.write_out(document.failure("vgpuctl", error, changed=False))
    else:
        streams.write_err(f"vgpuctl: {lacks.message}   [{lacks.code}]\n  hint: {lacks.hint}")
    return lacks.status


def _wants_json(words: list[str]) -> bool:
    """Say whether --json was typed, also when the line could not be parsed."""
    return "--json" in (words[: words.index("--")] if "--" in words else words)
