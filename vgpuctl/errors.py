# SPDX-License-Identifier: Apache-2.0
"""Every failure that a user can see, with its exit status and the code that programs branch on.

Library code raises one of these and never prints or exits. The message says what failed and where; `hint` is a
command or an action that helps; `facts` are the numbers and names involved, as JSON values.

Size: one short class for each code.
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import ClassVar

from vgpuctl import extras


class VgpuctlError(Exception):
    """A failure that vgpuctl can explain. Subclasses set `code` and `status`."""

    code: ClassVar[str] = "failed"
    status: int = 1

    def __init__(self, message: str, *, hint: str | None = None, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts: dict[str, object] = facts
        self.undone: list[str] = []
        self.left: list[str] = []
        self.changed = False
        self.result: object = None
        """What succeeded before it failed, as the result of the call; None if nothing is worth showing."""


class Failed(VgpuctlError):
    """The command failed and its changes were undone (exit 1)."""


class SomeVmsFailed(Failed):
    """Some of several VMs could not be created and were undone; the others exist."""

    code = "some-failed"


class SomeTargetsFailed(Failed):
    """A command failed for some of its VMs, vGPUs or GPUs; `status` is the worst one, `result` shows all of them."""

    code = "some-targets-failed"


class LibvirtFailed(Failed):
    """A libvirt call failed; `facts` has libvirt's error number as `libvirt_code`."""

    code = "libvirt-failed"


class NvmlFailed(Failed):
    """An NVML call failed; `facts` has NVML's error number as `nvml_code`, None when the library lacks the call."""

    code = "nvml-failed"


class DeviceFailed(Failed):
    """The kernel or the GPU's driver refused a write; `facts` has `errno` and `path`."""

    code = "device-failed"


class FileFailed(Failed):
    """A file operation failed: disk full, read-only, permission denied; `facts` has `errno` and `path`."""

    code = "os-error"


class VerifyFailed(Failed):
    """The value read back differs from the value written."""

    code = "verify-failed"


class InvalidInput(VgpuctlError):
    """The command line or a file is invalid (exit 2)."""

    code = "invalid-input"
    status = 2


class NotFound(InvalidInput):
    """This host has no VM, GPU, profile or file of that name."""

    code = "not-found"


class ClockChange(InvalidInput):
    """A local time that summer time skips or repeats in its time zone; `problems` has the dates."""

    code = "clock-change"


class FileNeeded(InvalidInput):
    """The host agent reads no file that a caller names: the caller sends its text; `facts` has the `path`."""

    code = "file-needed"


class NeedsConfirmation(InvalidInput):
    """The command needs a confirmation and nobody can answer: rerun with --yes."""

    code = "needs-confirmation"


class Refused(VgpuctlError):
    """The change would break something in use, or touch something that vgpuctl does not manage (exit 3)."""

    code = "refused"
    status = 3


class InUse(Refused):
    """A VM or a process holds the device."""

    code = "in-use"


class Unmanaged(Refused):
    """vgpuctl did not create the object, so it does not change it."""

    code = "unmanaged"


class NotYours(Refused):
    """Another account made the VM, or root did, and the caller may change only VMs of his own."""

    code = "not-yours"


class BlockedByGuest(Refused):
    """The guest's administrator blocks commands of its QEMU guest agent; `facts` has the `commands`."""

    code = "blocked-by-guest"


class Stale(Refused):
    """The VM was changed since the caller read it; `facts` has its `generation` and the one that is `expected`."""

    code = "stale"


class Controlled(Refused):
    """The VM is a desktop of a pool, about which a controller decides; `facts` has its `pool`."""

    code = "controlled"


class RecordNewer(Refused):
    """The mark in the VM's record is newer than the request's; `facts` has both. The caller's database is old."""

    code = "record-newer"


class NotShutDown(Refused):
    """The VM is off, and its guest did not shut down, as far as libvirt knows; `facts` has the `reason`."""

    code = "not-shut-down"


class NeedsBlob(Refused):
    """There is no fresh blob with which this computer joins its domain; `facts` has the `domain` and `computer`."""

    code = "needs-blob"


class NotAllowed(Refused):
    """The caller may not do this on this host; `facts["rule"]` names the key of host.yaml that would allow it."""

    code = "not-allowed"


class Exists(Refused):
    """The name is already in use."""

    code = "exists"


class SpecDiffers(Refused):
    """A VM or vGPU of this name exists and differs in a field that vgpuctl does not change in place."""

    code = "spec-differs"


class NoCapacity(VgpuctlError):
    """No GPU has room for the request (exit 4)."""

    code = "no-capacity"
    status = 4


class NoSpace(NoCapacity):
    """The storage pool has too little free space."""

    code = "no-space"


class PartlyApplied(VgpuctlError):
    """The command failed and could not be undone completely; `left` says what remains (exit 5)."""

    code = "partly-applied"
    status = 5


class HostCannot(VgpuctlError):
    """This host lacks something; `facts["check"]` names what (exit 6)."""

    code = "host-cannot"
    status = 6


class Temporary(VgpuctlError):
    """Try again later (exit 75)."""

    code = "temporary"
    status = 75


class Locked(Temporary):
    """Another vgpuctl holds the host lock."""

    code = "locked"


class Stuck(Temporary):
    """A write to the kernel has not returned; the pid names the process that waits in it."""

    code = "stuck"


class Busy(Temporary):
    """A device or a VM is in the middle of another operation."""

    code = "busy"


class NotRebooted(Busy):
    """A VM was to reboot, and has not in the time that it was given."""

    code = "not-rebooted"


class Unreachable(Temporary):
    """Another host does not answer, or the connection broke before anything changed there."""

    code = "unreachable"


class DeadlineExceeded(Temporary):
    """Another host had not finished when its deadline passed."""

    code = "deadline"


class HostKeyRefused(Refused):
    """Another host's key differs from the one in known_hosts, or no known_hosts file has it."""

    code = "host-key"


class ResultUnknown(PartlyApplied):
    """A change started on another host, and its outcome or its result there is unknown."""

    code = "answer-lost"


class OutputLost(PartlyApplied):
    """The change succeeded, but its result could not be written to stdout: disk full, or nobody reads the pipe."""

    code = "output-lost"


class Interrupted(VgpuctlError):
    """A signal stopped the command (exit 130 or 143)."""

    code = "interrupted"
    status = 130

    def __init__(self, message: str, *, signal_number: int, hint: str | None = None, **facts: object) -> None:
        super().__init__(message, hint=hint, **facts)
        self.signal_number = signal_number
        self.changed_nothing = False
        """Whether the step that it stopped knows that it had not begun."""

    @property
    def stopped_by(self) -> str:
        """What stopped it, in the words of its user: Ctrl-C, or the signal's name."""
        if self.signal_number == signal.SIGINT:
            return "Ctrl-C"
        try:
            return signal.Signals(self.signal_number).name
        except ValueError:
            return f"signal {self.signal_number}"


STATUSES_WORST_FIRST = (5, 1, 3, 6, 2, 4, 75, 7)
"""Exit statuses, the worst first: partly applied, failed, what a person has to decide or fix, what trying elsewhere or
again may solve, and a difference. A stop by the user is worse than all; any other status counts as 1."""


def worst_status(statuses: Iterable[int]) -> int:
    """Return the worst of exit statuses; 0 if there is none."""
    normalized = {
        status if status in STATUSES_WORST_FIRST or status == 0 or status >= 128 else 1 for status in statuses
    }
    stopped = [status for status in normalized if status >= 128]
    return max(stopped) if stopped else next((status for status in STATUSES_WORST_FIRST if status in normalized), 0)


def missing_library_error(exc: ImportError) -> HostCannot | None:
    """Return the error for a library that cannot be loaded; None for a module of vgpuctl's own."""
    name = (exc.name or "").partition(".")[0]
    if name in ("", "vgpuctl"):
        return None
    return HostCannot(
        f"the Python library {name} cannot be loaded by {sys.executable}: {exc} ({extras.describe_sources(name)})",
        hint=extras.install_command(name),
        check="python-library",
        library=name,
    )


def unreadable_error(path: str, error: OSError) -> FileFailed:
    """Return the error for a file or directory of the host that exists but cannot be read."""
    return FileFailed(
        f"{path} cannot be read: {error.strerror or error}",
        hint=f"run this as root; ls -ld {path}",
        path=path,
        errno=error.errno,
    )


def stale_error(vm: str, generation: int | None, expected: int) -> Stale:
    """Return the error for a VM whose `generation` is not the one that a request expects; None: it has no record."""
    if generation is None:
        text = f"{vm} has no record of vgpuctl, and so no generation"
    else:
        text = f"{vm} was changed: it is at generation {generation}"
    name = shlex.quote(vm)
    return Stale(
        f"{text}, and the request is for generation {expected}",
        hint=f"vgpuctl show-vm {name} --json shows it as it is now; vgpuctl log --vm {name} shows who changed it",
        vm=vm,
        generation=generation,
        expected=expected,
    )


def explain_exception(exc: BaseException) -> BaseException:
    """Return the error that explains an exception: a lost interruption, a missing library, a system error.

    Anything else is returned as it is: a VgpuctlError, a KeyboardInterrupt, a bug.
    """
    exc = _find_interruption(exc) or exc
    if isinstance(exc, ImportError):
        return missing_library_error(exc) or exc
    if isinstance(exc, OSError) and (exc.filename is not None or exc.errno in _ERRNO_HINTS):
        return _explain_os_error(exc)
    return exc


def _find_interruption(exc: BaseException) -> Interrupted | None:
    """Return the Interrupted that other code took for another failure, with that error's undone and left steps."""
    if not isinstance(exc, Exception) or isinstance(exc, (Interrupted, PartlyApplied)):
        return None
    interruption = next((cause for cause in exception_chain(exc) if isinstance(cause, Interrupted)), None)
    if interruption is not None and isinstance(exc, VgpuctlError):
        interruption.undone = interruption.undone or exc.undone
        interruption.left = interruption.left or exc.left
    return interruption


def exception_chain(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, each once: an exception raised from itself is its own cause."""
    visited: set[int] = set()
    current: BaseException | None = exc
    while current is not None and id(current) not in visited:
        visited.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


_PERMISSION_HINT = "run it as root; ls -ld {path} shows who has access"
_ERRNO_HINTS: dict[int | None, str] = {
    errno.ENOSPC: "{place} is full: df -h {place}; df -i {place}; free space there and run the command again",
    errno.EDQUOT: "the quota on {place} is exceeded: free space there and run the command again",
    errno.EROFS: "{place} is mounted read-only: findmnt {place}",
    errno.EACCES: _PERMISSION_HINT,
    errno.EPERM: _PERMISSION_HINT,
    errno.EIO: "the device below {place} fails: journalctl -k -n 20",
    errno.EMFILE: "too many files are open: ulimit -n",
    errno.ENFILE: "too many files are open on this host: sysctl fs.file-nr",
    errno.ENOMEM: "this host is out of memory: free -m",
}


def _explain_os_error(exc: OSError) -> FileFailed:
    """Explain a system error that no code wrapped: it is the host's state and not a bug."""
    path = os.fsdecode(exc.filename) if isinstance(exc.filename, (str, bytes)) else None
    place = mount_point(path) if path and path.startswith("/") else None
    reason = exc.strerror or os.strerror(exc.errno or 0)
    if path is None:
        message, hint = reason, "df -h; findmnt; free -m show what is exhausted"
    else:
        message, hint = f"{reason}: {path}", _ERRNO_HINTS.get(exc.errno, "ls -ld {path}")
        if hint is _PERMISSION_HINT and os.geteuid() == 0:
            hint = "lsattr -d {path}; root is denied, so SELinux, AppArmor or a file attribute forbids it"
        hint = hint.format(place=place or path, path=path)
    return FileFailed(message, hint=hint, errno=exc.errno, path=path, file_system=place)


def mount_point(path: str) -> str:
    """Return the mount point of the file system that holds a path, or would hold it."""
    directory = os.path.realpath(path)
    while directory != "/" and not os.path.ismount(directory):
        directory = os.path.dirname(directory)
    return directory


def named_message(name: str, message: str) -> str:
    """Return a message with the name that it is about in front, once."""
    return message if message.startswith(f"{name} ") else f"{name}: {message}"
