# SPDX-License-Identifier: Apache-2.0
"""The audit journal of a simulated host: a file of JSON lines in its state directory, until it is reset."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vgpuctl.value import as_dict

if TYPE_CHECKING:
    from vgpuctl.model.records import AuditEntry

FILE = "audit.jsonl"


class SimAudit:
    """The file, as `seams.Audit`."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE

    def record(self, entry: AuditEntry) -> None:
        """Append one line in one write; where that cannot be done, nothing happens."""
        line = json.dumps(as_dict(entry)).encode() + b"\n"
        with suppress(OSError):
            number = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(number, line)
            finally:
                os.close(number)

    def forget(self) -> None:
        """Forget every entry."""
        self.path.unlink(missing_ok=True)
