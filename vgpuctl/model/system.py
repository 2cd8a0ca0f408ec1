# SPDX-License-Identifier: Apache-2.0
"""The seam to the files and services that install-host puts in place; the real half is `vgpuctl.host.system`."""

from __future__ import annotations

from typing import Protocol


class System(Protocol):
    """Configuration files below the host's root, and systemd where there is one. Every method raises OSError."""

    @property
    def has_services(self) -> bool:
        """Whether systemctl can be run here: not on a simulated host, and not without systemd."""

    def read(self, path: str) -> str | None:
        """Return a file's text, or None when there is none."""

    def readlink(self, path: str) -> str | None:
        """Return a symbolic link's text, or None when there is no link."""

    def is_directory(self, path: str) -> bool:
        """Say whether there is a directory of that path."""

    def is_empty(self, path: str) -> bool:
        """Say whether a directory has nothing in it."""

    def put(self, path: str, text: str, mode: int | None) -> None:
        """Put a whole file there at once, making its directory; nobody sees half of it.

        `mode` None: a file of somebody else's keeps its mode and owner, and a link stays one; a new one gets 0644.
        """

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link, and its directory."""

    def make_directory(self, path: str) -> None:
        """Make a directory; one that is there is no error."""

    def remove(self, path: str) -> None:
        """Remove a file or link; one that is gone is no error."""

    def remove_directory(self, path: str) -> bool:
        """Remove a directory if it is empty; False when it is not, or is not there."""

    def active(self, unit: str) -> bool:
        """Say whether a systemd unit runs."""

    def notify_ready(self, status: str) -> bool:
        """Tell systemd that the unit that runs this process is ready, as sd_notify(3); False: no unit waits for it."""

    def systemctl(self, *words: str) -> None:
        """Run systemctl.

        Raises:
            Failed: with the last line it wrote.
        """
