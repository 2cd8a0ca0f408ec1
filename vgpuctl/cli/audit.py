# SPDX-License-Identifier: Apache-2.0
"""Notes what a changing command did and hands one entry to the host's audit journal. It never fails a command."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from vgpuctl.cli.failures import Failure
    from vgpuctl.cli.progress import Silent
    from vgpuctl.cli.settings import Settings
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.records import AuditEntry
    from vgpuctl.model.world import World

NOBODY = 2**32 - 1
"""What /proc/self/loginuid says of a process that nobody logged in for (proc(5))."""


class Note:
    """What becomes known of one command while it runs. A dry run leaves no entry, nor does one that found no host."""

    def __init__(self, settings: Settings, kind: str) -> None:
        context = click.get_current_context(silent=True)
        self.dry_run = context is not None and bool(context.params.get("dry_run"))
        self.world: World | None = None
        self.progress: Silent | None = None
        self.outcome: Outcome | None = None
        self._failure: Failure | None = None
        self._settings = settings
        self._kind = kind
        self._begun = time.monotonic()

    def failed(self, failure: Failure) -> None:
        """Note why the command failed."""
        self._failure = failure

    def write(self, status: int) -> None:
        """Hand the entry to the host's journal; a host without one has nobody to tell."""
        if self.dry_run or self.world is None or self.world.audit is None:
            return
        with suppress(Exception):  # the command is over: an entry that cannot be made must not change how it ended
            self.world.audit.record(self._entry(self.world, status))

    def _entry(self, world: World, status: int) -> AuditEntry:
        from vgpuctl.host.processes import redacted
        from vgpuctl.model.records import AuditEntry

        outcome, failure = self.outcome, self._failure
        planned = self.progress.steps if self.progress is not None else ()
        return AuditEntry(
            command=self._kind,
            arguments=redacted(["vgpuctl", *self._settings.words], LONGEST_TEXT),
            host=world.name,
            uid=os.getuid(),
            login_uid=_login_uid(),
            sudo_user=os.environ.get("SUDO_USER"),
            result=failure.code if failure is not None else "ok",
            exit_status=status,
            changed=failure.changed or bool(failure.left) if failure is not None else bool(outcome and outcome.changed),
            duration_seconds=round(time.monotonic() - self._begun, 3),
            message=redacted(failure.message.split(" "), LONGEST_TEXT) if failure is not None else None,
            plan=outcome.steps if outcome is not None else planned,
            undone=tuple(failure.undone) if failure is not None else (),
            left=tuple(failure.left) if failure is not None else (),
        )


LONGEST_TEXT = 4000


def _login_uid() -> int | None:
    try:
        with open("/proc/self/loginuid", encoding="ascii") as file:
            uid = int(file.read())
    except (OSError, ValueError):
        return None
    return None if uid == NOBODY else uid
