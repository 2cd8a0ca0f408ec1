# SPDX-License-Identifier: Apache-2.0
"""Writing a registry word to a file of modprobe's, as a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import Busy
from vgpuctl.steps.system import PutFile, system_of

if TYPE_CHECKING:
    from vgpuctl.model.world import World


class PutModprobeFile(PutFile):
    """Put a file of modprobe's in place of `was`. `what` is in it now, in words."""

    what: str = ""

    def describe(self) -> str:
        """Say what is written where."""
        return f"write {self.what} to {self.path}"

    def perform(self, world: World) -> None:
        """Put it there.

        Raises:
            Busy: somebody else changed the file meanwhile.
            Failed: it cannot be written.
        """
        if system_of(world).read(self.path) != self.was:
            raise Busy(f"{self.path} was changed by somebody else meanwhile", hint="run the command again")
        super().perform(world)
