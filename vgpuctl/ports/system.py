# SPDX-License-Identifier: Apache-2.0
"""The ports to the rest of the host: configuration files and systemd, vgpuctl's own files, logs, processes, the clock.

vgpuctl's own files are host.yaml, unfinished files, and a cache that may be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from vgpuctl.model.port_values import AuditEntries, AuditEntry, AuditQuery, DeviceUser
from vgpuctl.model.vm import UnfinishedFile


class System(Protocol):
    """Configuration files below the root directory of the host, and systemd if it has it; mostly for install-host.

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

    def put(self, path: str, text: str, mode: int) -> None:
        """Write a whole file atomically and create its directory; no reader sees half of the file."""

    def link(self, path: str, target: str, *, replace: bool = False) -> None:
        """Create a symbolic link, and its directory. With `replace` an existing link gets the target atomically."""

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

    def systemctl(self, *words: str, deadline_seconds: float) -> None:
        """Run systemctl.

        Raises:
            Failed: systemctl failed; the message has the last line of its stderr.
            TimeoutError: it did not end in time; what it asked systemd for may go on.
        """

    def has_user(self, name: str) -> bool:
        """Return whether a user exists, in /etc/passwd or wherever else this host looks for users."""

    def add_user(self, name: str, home: str) -> None:
        """Create a system user, who cannot log in, with a group of that name; an existing one stays as it is.

        Raises:
            Failed: the program that creates users failed.
        """

    def has_group(self, name: str) -> bool:
        """Return whether a group exists, in /etc/group or wherever else this host looks for groups."""

    def add_group(self, name: str) -> None:
        """Create a system group without members; an existing one is no error, and stays as it is.

        Raises:
            Failed: the program that creates groups failed.
        """


EMPTY_HOST_FILE = "version: 1\n"
"""What a missing host.yaml means; it is the version before the first one."""


class HostFile(Protocol):
    """The file /etc/vgpuctl/host.yaml, always replaced as a whole. Its directory keeps the ten previous versions."""

    def read(self) -> str | None:
        """Return the file's text, None when there is no file; raises OSError."""

    def previous_version(self, number: int) -> str | None:
        """Return the text of a previous version, 1 being the newest; None when there is none; raises OSError."""

    def replace(self, text: str, expected: str | None, *, is_undo: bool = False) -> None:
        """Replace the file's text atomically, keeping its owner and mode; `expected` is the text it must still have.

        `expected` becomes the newest previous version. With `is_undo` a failed command wrote `expected`, so it is not
        kept, and `text` is removed from the previous versions.

        Raises:
            Busy: the file's text is no longer `expected`: somebody else changed it.
            OSError: the file cannot be written (EROFS: /etc is read-only).
        """


class UnfinishedFiles(Protocol):
    """The files that ended processes left unfinished, in every directory where vgpuctl writes."""

    def all(self) -> tuple[UnfinishedFile, ...]:
        """Return these files, sorted by directory and name.

        Raises:
            OSError: a directory cannot be listed.
        """

    def remove(self, file: UnfinishedFile) -> None:
        """Remove a file if it is still an unfinished file; a missing one is no error.

        Raises:
            OSError: with the kernel's errno.
        """


class Scratch(Protocol):
    """Bytes that may be lost at any time. No method raises."""

    def read(self, name: str) -> bytes | None:
        """Return the bytes stored under a name, or None."""

    def write(self, name: str, data: bytes) -> None:
        """Store bytes under a name if possible."""


class AuditLog(Protocol):
    """The host's log of who changed it and with what result."""

    def write_entry(self, entry: AuditEntry) -> None:
        """Write one entry if possible. Never raises."""

    def read_entries(self, query: AuditQuery) -> AuditEntries:
        """Read entries, as far as this user may.

        Raises:
            HostCannot: the log cannot be read.
        """


class SystemLog(Protocol):
    """What the kernel, its drivers and systemd's services logged since boot. No method raises."""

    def kernel_lines(self, *containing: str) -> tuple[str, ...] | None:
        """Return the kernel's lines that contain one of these texts, oldest first; None if the log is not readable."""

    def service_lines(self, service: str) -> tuple[str, ...] | None:
        """Return the last lines by a service and by systemd about it, oldest first; None as for `kernel_lines`."""


class Watch(Protocol):
    """A thread that watches something on the host and calls functions of its caller, one call at a time."""

    def answers(self) -> bool:
        """Return whether events can arrive: the thread lives, and so does what delivers to it."""

    def close(self) -> None:
        """End the watching; when it returns, no function is called any more. Wait at most some seconds for that."""


class KernelMessages(Protocol):
    """What the kernel and its drivers log, as they log it."""

    def watch(self, containing: str, *, on_message: Callable[[str], None], on_lost: Callable[[str], None]) -> Watch:
        """Watch the messages that contain a text, from now on, in a thread of its own, until `close`.

        `on_message` gets one message without the kernel's prefix. `on_lost` gets the reason when messages are lost: the
        kernel overwrote them before they were read, or its log cannot be read (any more).
        """


class Processes(Protocol):
    """The host's processes."""

    def find_holders(self, nodes: tuple[str, ...]) -> tuple[DeviceUser, ...]:
        """Return the processes that have any of these device nodes (/dev/vfio/7, /dev/dri/card1) open.

        Raises:
            PermissionError: not every process could be inspected; never treat that as "nobody".
        """


class Clock(Protocol):
    """Time."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds of a clock that never jumps."""

    def sleep(self, seconds: float) -> None:
        """Wait a short time between two checks of a condition."""


class ImageFolders(Protocol):
    """The files of images that a controller brings to this host. Every method may raise OSError."""

    def local_path(self, path: str) -> str:
        """Return where the content of the host's file `path` is on this machine: itself, unless it is simulated."""

    def file_bytes(self, path: str) -> int | None:
        """Return the size of the host's file, None if there is none."""

    def free_bytes(self, directory: str) -> int:
        """Return how much more fits into a directory."""

    def publish(self, part: str, path: str, format_name: str, size_bytes: int) -> None:
        """Give a whole image its name, for QEMU to read; `size_bytes`: as a guest sees it.

        Raises:
            FileExistsError: there is a file of this name.
        """

    def remove(self, path: str) -> None:
        """Delete an image; a missing one is no error."""
