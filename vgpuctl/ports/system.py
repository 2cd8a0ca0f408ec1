# SPDX-License-Identifier: Apache-2.0
"""The port to configuration files and systemd, mostly for install-host; `vgpuctl.host.system_files` implements it."""

from __future__ import annotations

from typing import Protocol


class System(Protocol):
    """Configuration files below the root directory of the host, and systemd if it has it.

    Every method may raise OSError. A simulated host has a root directory of its own.
    """

    @property
    def has_systemd(self) -> bool:
        """Whether systemctl works here; False on a simulated host."""

    def read(self, path: str) -> str | None:
        """Return a file's text, or None when there is none."""

    def readlink(self, path: str) -> str | None:
        """Return a symbolic link's target, or None when there is no link."""

    def is_directory(self, path: str) -> bool:
        """Return whether the path is a directory."""

    def is_empty(self, path: str) -> bool:
        """Return whether a directory is empty."""

    def put(self, path: str, text: str, mode: int | None) -> None:
        """Write a whole file atomically and create its directory; no reader sees half of the file.

        `mode` None is for files that the admin owns: an existing one keeps its mode and owner, and a link stays a link;
        a new file gets 0644.
        """

    def link(self, path: str, target: str) -> None:
        """Create a symbolic link, and its directory."""

    def make_directory(self, path: str) -> None:
        """Create a directory; an existing one is no error."""

    def remove(self, path: str) -> None:
        """Remove a file or link; a missing one is no error."""

    def remove_directory(self, path: str) -> bool:
        """Remove a directory if it is empty; False when it is not empty or does not exist."""

    def is_active(self, unit: str) -> bool:
        """Return whether a systemd unit is active."""

    def notify_ready(self, status: str) -> bool:
        """Send READY=1 and `status` to systemd (sd_notify(3)); False if this process's unit does not wait for it."""

    def systemctl(self, *words: str) -> None:
        """Run systemctl.

        Raises:
            Failed: systemctl failed; the message has the last line of its stderr.
        """
