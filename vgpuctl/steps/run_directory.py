# SPDX-License-Identifier: Apache-2.0
"""/run/vgpuctl as a step: who can write there can forge claims, so it is root's alone."""

from __future__ import annotations

from vgpuctl.errors import FileFailed, VerifyFailed
from vgpuctl.model.world import World
from vgpuctl.value import Value

RUN = "/run/vgpuctl"
PRIVATE = 0o700


class MakePrivate(Value):
    """Take everybody else's permissions on /run/vgpuctl away; `was` is its mode before."""

    was: int

    def describe(self) -> str:
        """Say from what to what."""
        return f"change the mode of {RUN} from {self.was:04o} to {PRIVATE:04o}"

    def perform(self, world: World) -> None:
        """Change it."""
        self._set(world, PRIVATE)

    def verify(self, world: World) -> None:
        """Read it back."""
        seen = world.sysfs.permissions(RUN).mode
        if seen != PRIVATE:
            raise VerifyFailed(
                f"{RUN} has mode {seen:04o}, not {PRIVATE:04o}", hint=f"findmnt -T {RUN}", path=RUN, mode=f"{seen:04o}"
            )

    def undo(self, world: World) -> None:
        """Put the mode back, unless somebody else changed it meanwhile."""
        if world.sysfs.permissions(RUN).mode == PRIVATE:
            self._set(world, self.was)

    def _set(self, world: World, mode: int) -> None:
        try:
            world.claims.set_mode(mode)
        except OSError as error:
            raise FileFailed(
                f"the mode of {RUN} cannot be changed: {error.strerror or error}",
                hint="run it as root",
                path=RUN,
                errno=error.errno,
            ) from error
