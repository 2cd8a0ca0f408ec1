# SPDX-License-Identifier: Apache-2.0
"""The audit journal of a simulated host: a file of JSON lines in its state directory. A reset empties it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vgpuctl.value import as_dict

if TYPE_CHECKING:
    from vgpuctl.model.port_values import AuditEntry

FILE_NAME = "audit.jsonl"


class SimAudit:
    """The journal file behind the port `ports.Audit`."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME

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
