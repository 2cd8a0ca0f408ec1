# SPDX-License-Identifier: Apache-2.0
"""What was done on this host: the entries of its audit journal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from vgpuctl.errors import HostCannot
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.port_values import AuditEntry, AuditQuery
from vgpuctl.model.results.host import LogEntryResult

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

MAX_SEARCHED = 2000
"""So many entries are searched for those of a user, which the journal does not index in a way that can be trusted."""


def read_log(
    host: Host, *, lines: int, vm: str | None, gpu: str | None, since: float | None, user: str | None, failed: bool
) -> QueryResult[tuple[LogEntryResult, ...]]:
    """Return the newest `lines` entries that match everything given, oldest first.

    Raises:
        HostCannot: this host keeps no log, or it cannot be read.
    """
    if host.audit_log is None:
        raise HostCannot(
            f"{host.read_only_reason or host.name}: it has no log of commands",
            hint="omit --root",
            check="journal",
        )
    limit = lines if user is None else max(lines, MAX_SEARCHED)
    read = host.audit_log.read_entries(AuditQuery(limit, vm, gpu, since, failed))
    entries = [entry for entry in read.entries if user in (None, entry.user)]
    warnings = read.warnings
    if user is not None and len(read.entries) == limit:
        warnings = (*warnings, f"only the newest {limit} entries were searched for those of {user}")
    return QueryResult(tuple(_log_entry(entry) for entry in entries[-lines:]), warnings)


def _log_entry(entry: AuditEntry) -> LogEntryResult:
    return LogEntryResult(
        time=datetime.fromtimestamp(entry.time or 0, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        user=entry.user,
        uid=entry.uid,
        command=entry.command,
        arguments=entry.arguments,
        spec=entry.spec,
        vms=entry.vms,
        gpus=entry.gpus,
        result=entry.result,
        exit_status=entry.exit_status,
        changed=entry.changed,
        duration_seconds=entry.duration_seconds,
        error=entry.message,
        left=entry.left,
    )
