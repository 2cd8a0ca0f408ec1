# SPDX-License-Identifier: Apache-2.0
"""The step for /run/vgpuctl: a user who can write there can forge claims, so only root may."""

from __future__ import annotations

from vgpuctl.errors import FileFailed, VerifyFailed
from vgpuctl.ports.host import Host
from vgpuctl.value import Value

RUN_PATH = "/run/vgpuctl"
PRIVATE_MODE = 0o700


class RestrictRunDirectory(Value):
    """Remove all permissions on /run/vgpuctl but root's. `previous_mode`: its mode before."""

    previous_mode: int

    def describe(self) -> str:
        """Say the old and the new mode."""
        return f"change the mode of {RUN_PATH} from {self.previous_mode:04o} to {PRIVATE_MODE:04o}"

    def perform(self, host: Host) -> None:
        """Change it."""
        self._set(host, PRIVATE_MODE)

    def verify(self, host: Host) -> None:
        """Read it back."""
        mode = host.sysfs.permissions(RUN_PATH).mode
        if mode != PRIVATE_MODE:
            raise VerifyFailed(
                f"{RUN_PATH} has mode {mode:04o}, not {PRIVATE_MODE:04o}",
                hint=f"findmnt -T {RUN_PATH}",
                path=RUN_PATH,
                mode=f"{mode:04o}",
            )

    def undo(self, host: Host) -> None:
        """Restore the mode unless somebody else changed it meanwhile."""
        if host.sysfs.permissions(RUN_PATH).mode == PRIVATE_MODE:
            self._set(host, self.previous_mode)

    def _set(self, host: Host, mode: int) -> None:
        try:
            host.claims.set_permissions(mode)
        except OSError as error:
            raise FileFailed(
                f"the mode of {RUN_PATH} cannot be changed: {error.strerror or error}",
                hint="run it as root",
                path=RUN_PATH,
                errno=error.errno,
            ) from error
