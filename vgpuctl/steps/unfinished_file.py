# SPDX-License-Identifier: Apache-2.0
"""The step that removes the temporary file of a killed command, next to the file that it was writing."""

from __future__ import annotations

from vgpuctl.errors import FileFailed
from vgpuctl.model.vm import UnfinishedFile
from vgpuctl.ports.host import Host
from vgpuctl.value import Value


class RemoveUnfinishedFile(Value):
    """Remove one unfinished file."""

    file: UnfinishedFile

    def describe(self) -> str:
        """Say which file."""
        return f"remove {self.file.path}"

    def perform(self, host: Host) -> None:
        """Remove it; the port checks that its writer has ended."""
        if host.unfinished_files is None:
            return
        try:
            host.unfinished_files.remove(self.file)
        except OSError as error:
            raise FileFailed(
                f"{self.file.path} cannot be removed: {error.strerror or error}",
                hint=f"ls -l {self.file.path}",
                errno=error.errno,
                path=self.file.path,
            ) from error

    def verify(self, host: Host) -> None:
        """Nothing to read back: removing a file either worked or raised."""

    def undo(self, host: Host) -> None:
        """Nothing: the file was incomplete."""
