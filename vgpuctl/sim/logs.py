# SPDX-License-Identifier: Apache-2.0
"""The logs of a simulated host: its drivers' messages since the boot, and its audit journal, a file of JSON lines."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vgpuctl.sim import vgpu_scheduler
from vgpuctl.sim.core import Core, serialize_calls
from vgpuctl.value import as_dict

if TYPE_CHECKING:
    from vgpuctl.model.port_values import AuditEntry

AUDIT_FILE = "audit.jsonl"


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

    def clear(self) -> None:
        """Delete every entry."""
        self.path.unlink(missing_ok=True)
