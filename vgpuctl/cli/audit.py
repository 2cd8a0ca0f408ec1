# SPDX-License-Identifier: Apache-2.0
"""Collects what a changing command did, and writes one entry to the host's audit journal. It never fails a command."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from vgpuctl.cli.failures import Failure
    from vgpuctl.cli.progress import SilentProgress
    from vgpuctl.cli.settings import Settings
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.port_values import AuditEntry
    from vgpuctl.ports.host import Host

UNSET_LOGIN_UID = 2**32 - 1
"""What /proc/self/loginuid contains for a process without a login user (proc(5))."""


class CommandAudit:
    """What is known of a running command. A dry run, or a command without an open host, writes no entry."""

    def __init__(self, settings: Settings, kind: str) -> None:
        context = click.get_current_context(silent=True)
        self.dry_run = context is not None and bool(context.params.get("dry_run"))
        self.host: Host | None = None
        self.progress: SilentProgress | None = None
        self.outcome: Outcome | None = None
        self._failure: Failure | None = None
        self._settings = settings
        self._kind = kind
        self._started_at = time.monotonic()

    def set_failure(self, failure: Failure) -> None:
        """Remember why the command failed."""
        self._failure = failure

    def write_entry(self, status: int) -> None:
        """Write the entry to the host's journal, if the host has one."""
        if self.dry_run or self.host is None or self.host.audit_log is None:
            return
        with suppress(Exception):  # the command is over: a failure to write the entry must not change its result
            self.host.audit_log.write_entry(self._entry(self.host, status))

    def _entry(self, host: Host, status: int) -> AuditEntry:
        from vgpuctl.host.processes import redact_command
        from vgpuctl.model.port_values import AuditEntry

        outcome, failure = self.outcome, self._failure
        planned = self.progress.steps if self.progress is not None else ()
        return AuditEntry(
            command=self._kind,
            arguments=redact_command(["vgpuctl", *self._settings.args], MAX_TEXT_LENGTH),
            host=host.name,
            uid=os.getuid(),
            login_uid=_login_uid(),
            sudo_user=os.environ.get("SUDO_USER"),
            result=failure.code if failure is not None else "ok",
            exit_status=status,
            changed=failure.changed or bool(failure.left) if failure is not None else bool(outcome and outcome.changed),
            duration_seconds=round(time.monotonic() - self._started_at, 3),
            message=redact_command(failure.message.split(" "), MAX_TEXT_LENGTH) if failure is not None else None,
            plan=outcome.steps if outcome is not None else planned,
            undone=tuple(failure.undone) if failure is not None else (),
            left=tuple(failure.left) if failure is not None else (),
        )


MAX_TEXT_LENGTH = 4000


def _login_uid() -> int | None:
    try:
        with open("/proc/self/loginuid", encoding="ascii") as file:
            uid = int(file.read())
    except (OSError, ValueError):
        return None
    return None if uid == UNSET_LOGIN_UID else uid
