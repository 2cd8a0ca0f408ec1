# SPDX-License-Identifier: Apache-2.0
"""The step that writes a registry dword to a modprobe file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import Busy
from vgpuctl.steps.system_files import WriteFile, require_system

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class WriteModprobeFile(WriteFile):
    """Write a modprobe file over `previous_text`. `summary` describes its new content."""

    summary: str = ""

    def describe(self) -> str:
        """Say what is written where."""
        return f"write {self.summary} to {self.path}"

    def perform(self, host: Host) -> None:
        """Write it.

        Raises:
            Busy: somebody else changed the file meanwhile.
            Failed: it cannot be written.
        """
        if require_system(host).read(self.path) != self.previous_text:
            raise Busy(f"{self.path} was changed by somebody else meanwhile", hint="run the command again")
        super().perform(host)
