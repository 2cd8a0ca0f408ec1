# SPDX-License-Identifier: Apache-2.0
"""Files under a root, scratch directories, and systemctl; implements `ports.System`.

rename(2) replaces each file whole.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

from vgpuctl.errors import Failed
from vgpuctl.host.atomic_files import write_file
from vgpuctl.host.commands import find_command, run_command
from vgpuctl.host.file_lock import make_private_directories
from vgpuctl.regular_file import read_regular_file
from vgpuctl.sd_notify import notify

MAX_BYTES = 1 << 20
"""Units and hooks take a few pages at most."""
_DEADLINE_SECONDS = 90.0
_USERS_FILE, _GROUPS_FILE = "/etc/passwd", "/etc/group"
_SIMULATED_ID = 970
_NO_LOGIN = "/usr/sbin/nologin"


class HostSystem:
    """The files under `root`. `allow_systemctl`: whether to run systemctl, if it is installed."""

    def __init__(self, root: str | Path = "/", *, allow_systemctl: bool = True) -> None:
        self._root = Path(root)
        self._allow_systemctl = allow_systemctl

    def _real_path(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    @property
    def has_systemd(self) -> bool:
        """Whether systemd runs here (sd_booted(3)) and systemctl is installed."""
        return self._allow_systemctl and os.path.isdir("/run/systemd/system") and self._find_systemctl() is not None

    def read(self, path: str) -> str | None:
        """Return a file's text, or None."""
        try:
            data = read_regular_file(str(self._real_path(path)), MAX_BYTES, display_path=path)
            return data.decode("utf-8", "replace")  # keeps the line endings
        except (FileNotFoundError, NotADirectoryError):
            return None

    def readlink(self, path: str) -> str | None:
        """Return a link's target, or None."""
        return os.readlink(self._real_path(path)) if self._real_path(path).is_symlink() else None

    def is_directory(self, path: str) -> bool:
        """Return whether the path is a directory."""
        return self._real_path(path).is_dir()

    def is_empty(self, path: str) -> bool:
        """Return whether a directory is empty."""
        return not os.listdir(self._real_path(path))

    def put(self, path: str, text: str, mode: int) -> None:
        """Write a temporary file, then rename it."""
        real = self._real_path(path)
        real.parent.mkdir(parents=True, exist_ok=True)
        write_file(real, text.encode(), mode=mode)

    def link(self, path: str, target: str, *, replace: bool = False) -> None:
        """Create a symbolic link, or rename a new one over it."""
        real = self._real_path(path)
        real.parent.mkdir(parents=True, exist_ok=True)
        if not replace:
            real.symlink_to(target)
            return
        temporary = real.with_name(f".{real.name}.vgpuctl-link")
        temporary.unlink(missing_ok=True)  # of a run that was killed
        temporary.symlink_to(target)
        temporary.replace(real)

    def make_directory(self, path: str) -> None:
        """Create a directory that everybody can read."""
        self._real_path(path).mkdir(mode=0o755, parents=True, exist_ok=True)

    def remove(self, path: str) -> None:
        """Remove a file or link."""
        self._real_path(path).unlink(missing_ok=True)

    def remove_directory(self, path: str) -> bool:
        """Remove a directory if it is empty."""
        try:
            self._real_path(path).rmdir()
        except OSError:
            return False
        return True

    def is_active(self, unit: str) -> bool:
        """Return whether `systemctl is-active` succeeds."""
        return self.has_systemd and self._run_systemctl("is-active", "--quiet", unit)[0] == 0

    def notify_ready(self, status: str) -> bool:
        """Send READY to the socket that systemd names; False if there is none or it cannot be reached."""
        return self._allow_systemctl and notify("READY=1", f"STATUS={status}")

    def systemctl(self, *words: str, deadline_seconds: float) -> None:
        """Run systemctl; raises Failed with its error line."""
        status, error_line = self._run_systemctl(*words, deadline_seconds=deadline_seconds)
        if status != 0:
            command = f"systemctl {' '.join(words)}"
            raise Failed(f"{command} failed: {error_line}", hint=f"{command}", status=status)

    def has_group(self, name: str) -> bool:
        """Return whether getgrnam(3) finds a group; below another root only that root's /etc/group counts."""
        if self._allow_systemctl:
            with suppress(KeyError):
                return grp.getgrnam(name).gr_name == name
            return False
        return self._has_line(_GROUPS_FILE, name)

    def add_group(self, name: str) -> None:
        """Create a group with systemd-sysusers, or with groupadd where that is missing; both leave an existing one."""
        if self.has_group(name):
            return
        if not self._allow_systemctl:
            self._add_line(_GROUPS_FILE, name, "")
        else:
            _add_account(f"g {name} - -", ("groupadd", "--system", name), f"group {name}")

    def has_user(self, name: str) -> bool:
        """Return whether getpwnam(3) finds a user; below another root only that root's /etc/passwd counts."""
        if self._allow_systemctl:
            with suppress(KeyError):
                return pwd.getpwnam(name).pw_name == name
            return False
        return self._has_line(_USERS_FILE, name)

    def add_user(self, name: str, home: str) -> None:
        """Create a user with systemd-sysusers, or with useradd where that is missing; both leave an existing one."""
        if self.has_user(name):
            return
        if not self._allow_systemctl:
            self._add_line(_USERS_FILE, name, f"{_SIMULATED_ID}::{home}:{_NO_LOGIN}")
            return
        words = ("useradd", "--system", "--user-group", "--home-dir", home, "--shell", _NO_LOGIN, name)
        _add_account(f"u {name} - - {home}", words, f"user {name}")

    def _has_line(self, path: str, name: str) -> bool:
        return any(line.partition(":")[0] == name for line in (self.read(path) or "").splitlines())

    def _add_line(self, path: str, name: str, rest: str) -> None:
        text = self.read(path) or ""
        self.put(path, f"{text}{name}:x:{_SIMULATED_ID + text.count(chr(10))}:{rest}\n", 0o644)

    @staticmethod
    def _find_systemctl() -> str | None:
        return find_command("systemctl")

    def _run_systemctl(self, *words: str, deadline_seconds: float = _DEADLINE_SECONDS) -> tuple[int, str]:
        result = run_command(
            [self._find_systemctl() or "/usr/bin/systemctl", *words], deadline_seconds=deadline_seconds
        )
        return result.status, result.error_line


def _add_account(sysusers_line: str, words: tuple[str, ...], what: str) -> None:
    """Create a user or group with systemd-sysusers, or with a command where that is missing.

    Raises:
        Failed: it failed.
    """
    sysusers = find_command("systemd-sysusers")
    argv = [find_command(words[0]) or f"/usr/sbin/{words[0]}", *words[1:]]
    if sysusers is not None:
        argv = [sysusers, "--inline", sysusers_line]
    result = run_command(argv, deadline_seconds=_DEADLINE_SECONDS)
    if result.status != 0:
        text = f"the {what} cannot be created: {result.error_line}"
        raise Failed(text, hint=" ".join(words), status=result.status)


class HostScratch:
    """The directory; implements `ports.Scratch`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str) -> bytes | None:
        """Return the bytes stored under a name, or None."""
        with suppress(OSError):
            if self._is_private():
                return (self._directory / name).read_bytes()
        return None

    def write(self, name: str, data: bytes) -> None:
        """Store bytes under a name if possible; a reader sees the old file or the new one."""
        with suppress(OSError):  # also FileExistsError: another thread is storing the same
            make_private_directories(self._directory.parent, self._directory)
            if self._is_private():
                write_file(self._directory / name, data, durable=False)

    def _is_private(self) -> bool:
        status = os.lstat(self._directory)
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
