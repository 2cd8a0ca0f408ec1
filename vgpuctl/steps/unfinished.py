# SPDX-License-Identifier: Apache-2.0
"""Removing what a killed command left beside a file that it was writing."""

from __future__ import annotations

from vgpuctl.errors import FileFailed
from vgpuctl.model.vm import UnfinishedFile
from vgpuctl.model.world import World
from vgpuctl.value import Value


class RemoveUnfinished(Value):
    """Remove such a file."""

    file: UnfinishedFile

    def describe(self) -> str:
        """Say which."""
        return f"remove {self.file.path}"

    def perform(self, world: World) -> None:
        """Remove it; the port sees that its writer is gone."""
        if world.unfinished is None:
            return
        try:
            world.unfinished.remove(self.file)
        except OSError as error:
            raise FileFailed(
                f"{self.file.path} cannot be removed: {error.strerror or error}",
                hint=f"ls -l {self.file.path}",
                errno=error.errno,
                path=self.file.path,
            ) from error

    def verify(self, world: World) -> None:
        """Nothing to read back: removing a file either worked or raised."""

    def undo(self, world: World) -> None:
        """Nothing: it was half a file."""
