# SPDX-License-Identifier: Apache-2.0
"""The logs of a simulated host: its drivers' messages since the boot, and its audit journal, a file of JSON lines."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from vgpuctl.errors import HostCannot
from vgpuctl.model.json_yaml import parse_json
from vgpuctl.model.numbers import count_text
from vgpuctl.model.port_values import AuditEntries, AuditEntry, AuditQuery
from vgpuctl.sim import vgpu_scheduler
from vgpuctl.sim.core import Core, serialize_calls
from vgpuctl.value import as_dict, field_names

AUDIT_FILE = "audit.jsonl"
_MAX_READ_BYTES = 16 << 20


@serialize_calls
class SimKernelLog:
    """The drivers' messages since the last boot, as far as vgpuctl reads them."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def kernel_lines(self, *containing: str) -> tuple[str, ...]:
        """Return the lines that contain one of these texts."""
        return tuple(
            line
            for line in vgpu_scheduler.kernel_log_lines(self._core.read_state())
            if any(t in line for t in containing)
        )

    def service_lines(self, service: str) -> tuple[str, ...]:
        """Return what a service logged: nothing, because simulated services have no problems."""
        return ()


class SimAudit:
    """The journal file behind the port `ports.Audit`. A reset empties it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / AUDIT_FILE

    def write_entry(self, entry: AuditEntry) -> None:
        """Append one line in a single write. If the write fails, ignore it."""
        line = json.dumps(as_dict(entry)).encode() + b"\n"
        with suppress(OSError):
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)

    def read_entries(self, query: AuditQuery) -> AuditEntries:
        """Read the newest entries that match; a line that is no entry is left out, and counted in a warning."""
        matches: list[AuditEntry] = []
        damaged = 0
        for line in _last_lines(self.path):
            entry = _parse_entry(line)
            damaged += entry is None
            if entry is not None and _matches(entry, query):
                matches.append(entry)
        warnings = (f"{count_text(damaged, 'line')} of {self.path} cannot be read as entries",) if damaged else ()
        return AuditEntries(tuple(matches[-query.limit :]), warnings)

    def clear(self) -> None:
        """Delete every entry."""
        self.path.unlink(missing_ok=True)


def _last_lines(path: Path) -> list[bytes]:
    """Return the lines at the end of the journal, up to a limit of bytes."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - _MAX_READ_BYTES)
            file.seek(start)
            lines = file.read(_MAX_READ_BYTES).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HostCannot(f"{path} cannot be read: {error.strerror}", hint=f"ls -l {path}", check="journal") from error
    return lines[1:] if start else lines


def _parse_entry(line: bytes) -> AuditEntry | None:
    data = parse_json(line)
    if not isinstance(data, dict):
        return None
    names = set(field_names(AuditEntry))
    fields: dict[str, Any] = {
        name: tuple(map(str, value)) if isinstance(value, list) else value for name, value in data.items()
    }
    try:
        entry = AuditEntry(**{name: value for name, value in fields.items() if name in names})
    except TypeError:
        return None
    return entry if isinstance(entry.time, float) and isinstance(entry.vms, tuple) else None


def _matches(entry: AuditEntry, query: AuditQuery) -> bool:
    return (
        (query.vm is None or query.vm in entry.vms)
        and (query.gpu is None or query.gpu in entry.gpus)
        and (query.since is None or (entry.time or 0) >= query.since)
        and not (query.failed and entry.exit_status == 0)
    )
