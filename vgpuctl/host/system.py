# SPDX-License-Identifier: Apache-2.0
"""Configuration files below a root, and systemctl: `model.system.System`. Files are replaced whole, by rename(2)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from vgpuctl.errors import Failed
from vgpuctl.host.atomic import write
from vgpuctl.host.host_file import swap
from vgpuctl.regular_file import read_regular

MOST_BYTES = 1 << 20
"""Units and modprobe's files are a page or some."""
_DEADLINE_SECONDS = 90.0


class HostSystem:
    """The files below `root`. `services`: whether systemctl may be run; where it is missing it is not."""

    def __init__(self, root: str | Path = "/", *, services: bool = True) -> None:
        self._root = Path(root)
        self._services = services

    def _real(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    @property
    def has_services(self) -> bool:
        """Whether systemd runs here (sd_booted(3)) and systemctl is installed."""
        return self._services and os.path.isdir("/run/systemd/system") and self._command() is not None

    def read(self, path: str) -> str | None:
        """Return a file's text, or None."""
        try:
            data = read_regular(str(self._real(path)), MOST_BYTES, shown=path)
            return data.decode("utf-8", "replace")  # with the ends of lines as they are
        except (FileNotFoundError, NotADirectoryError):
            return None

    def readlink(self, path: str) -> str | None:
        """Return a link's text, or None."""
        return os.readlink(self._real(path)) if self._real(path).is_symlink() else None

    def is_directory(self, path: str) -> bool:
        """Say whether there is a directory."""
        return self._real(path).is_dir()

    def is_empty(self, path: str) -> bool:
        """Say whether a directory has nothing in it."""
        return not os.listdir(self._real(path))

    def put(self, path: str, text: str, mode: int | None) -> None:
        """Write beside the file, then rename over it; without a mode it is somebody's, and `swap` follows a link."""
        real = self._real(path)
        real.parent.mkdir(parents=True, exist_ok=True)
        if mode is None:
            swap(Path(os.path.realpath(real)), text)
            return
        write(real, text.encode(), mode=mode)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link."""
        real = self._real(path)
        real.parent.mkdir(parents=True, exist_ok=True)
        real.symlink_to(target)

    def make_directory(self, path: str) -> None:
        """Make a directory that everybody may read."""
        self._real(path).mkdir(mode=0o755, parents=True, exist_ok=True)

    def remove(self, path: str) -> None:
        """Remove a file or link."""
        self._real(path).unlink(missing_ok=True)

    def remove_directory(self, path: str) -> bool:
        """Remove a directory if it is empty."""
        try:
            self._real(path).rmdir()
        except OSError:
            return False
        return True

    def active(self, unit: str) -> bool:
        """Ask systemctl is-active."""
        return self.has_services and self._run("is-active", "--quiet", unit)[0] == 0

    def notify_ready(self, status: str) -> bool:
        """Send READY to the socket that systemd named; one that cannot be reached is nobody who waits."""
        import socket  # which most commands do without

        address = os.environ.get("NOTIFY_SOCKET", "")
        if not self._services or not address:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, suppress(OSError):
            notify.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
            notify.sendall(f"READY=1\nSTATUS={status}\n".encode())
            return True
        return False

    def systemctl(self, *words: str) -> None:
        """Run systemctl; raises Failed with what it said."""
        status, complaint = self._run(*words)
        if status != 0:
            line = f"systemctl {' '.join(words)}"
            raise Failed(f"{line} failed: {complaint}", hint=f"run it by hand: {line}", status=status)

    @staticmethod
    def _command() -> str | None:
        from vgpuctl.host.commands import find_command

        return find_command("systemctl")

    def _run(self, *words: str) -> tuple[int, str]:
        from vgpuctl.host.commands import run

        result = run([self._command() or "/usr/bin/systemctl", *words], deadline_seconds=_DEADLINE_SECONDS)
        return result.rc, result.complaint
