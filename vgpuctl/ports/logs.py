# SPDX-License-Identifier: Apache-2.0
"""The ports to the audit log and to the kernel's log."""

from __future__ import annotations

from typing import Protocol

from vgpuctl.model.port_values import AuditEntry


class AuditLog(Protocol):
    """The host's log of who changed it and with what result. No method raises."""

    def write_entry(self, entry: AuditEntry) -> None:
        """Write one entry if possible."""


class SystemLog(Protocol):
    """What the kernel, its drivers and systemd's services logged since boot. No method raises."""

    def kernel_lines(self, *containing: str) -> tuple[str, ...] | None:
        """Return the kernel's lines that contain one of these texts, oldest first; None if the log is not readable."""

    def service_lines(self, service: str) -> tuple[str, ...] | None:
        """Return the last lines by a service and by systemd about it, oldest first; None as for `kernel_lines`."""
