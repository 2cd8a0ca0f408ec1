# SPDX-License-Identifier: Apache-2.0
"""Every failure a user can meet, with the exit status and the code that programs branch on.

Library code raises one of these and never prints or exits. The message says what and where; `hint` is a
command or an action that helps; `facts` are the numbers and names seen, as JSON values.
"""

from __future__ import annotations

import sys
from typing import ClassVar


class VgpuctlError(Exception):
    """Something vgpuctl can explain. Subclasses fix `code` and `status`."""

    code: ClassVar[str] = "failed"
    status: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts: dict[str, object] = facts
        self.undone: list[str] = []
        self.left: list[str] = []
        self.changed = False


class Failed(VgpuctlError):
    """The work failed and was undone (exit 1)."""


class SomeFailed(Failed):
    """Some of several VMs could not be made, and were undone; the others are there."""

    code = "some-failed"


class LibvirtFailed(Failed):
    """libvirt refused a call; `facts` holds its error number as `libvirt_code`."""

    code = "libvirt-failed"


class NvmlFailed(Failed):
    """NVML refused a call; `facts` holds its error number as `nvml_code`, None when there is no such call."""

    code = "nvml-failed"


class DeviceFailed(Failed):
    """The kernel or the GPU's driver refused a write; `facts` holds `errno` and `path`."""

    code = "device-failed"


class FileFailed(Failed):
    """The system refused a file: full, read-only, no right; `facts` holds `errno` and `path`."""

    code = "os-error"


class VerifyFailed(Failed):
    """What was read back differs from what was written."""

    code = "verify-failed"


class InvalidInput(VgpuctlError):
    """What was typed, or what a file says, cannot be meant (exit 2)."""

    code = "invalid-input"
    status = 2


class NotFound(InvalidInput):
    """A VM, GPU, profile or file of that name is not on this host."""

    code = "not-found"


class NeedsConfirmation(InvalidInput):
    """A question that a program cannot answer: say --yes."""

    code = "needs-confirmation"


class Refused(VgpuctlError):
    """It would break something in use, or touch what vgpuctl does not own (exit 3)."""

    code = "refused"
    status = 3


class InUse(Refused):
    """A VM or a process holds the device."""

    code = "in-use"


class Foreign(Refused):
    """vgpuctl did not make it, so vgpuctl does not change it."""

    code = "foreign"


class Exists(Refused):
    """The name is taken."""

    code = "exists"


class SpecDiffers(Refused):
    """A VM or vGPU of this name exists and differs in something that is not changed in place."""

    code = "spec-differs"


class NoCapacity(VgpuctlError):
    """No GPU has room for what was asked (exit 4)."""

    code = "no-capacity"
    status = 4


class NoSpace(NoCapacity):
    """The storage pool is too full."""

    code = "no-space"


class PartlyApplied(VgpuctlError):
    """It failed and could not be undone completely; `left` says what remains (exit 5)."""

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
    """A kernel write has not come back; the pid says which process waits in it."""

    code = "stuck"


class Busy(Temporary):
    """A device or a VM is in the middle of something."""

    code = "busy"


class Unreachable(Temporary):
    """Another host does not answer, or its connection broke before anything was changed there."""

    code = "unreachable"


class TooSlow(Temporary):
    """Another host had not finished when its deadline passed."""

    code = "deadline"


class HostKeyRefused(Refused):
    """Another host's key is not the one that known_hosts has, or is in no such file."""

    code = "host-key"


class AnswerLost(PartlyApplied):
    """A change was begun on another host, and how it ended there, or what it made, is not known."""

    code = "answer-lost"


class OutputLost(PartlyApplied):
    """A change was made, and its result could not be written to stdout: the disk is full, or nobody reads the pipe."""

    code = "output-lost"


class Interrupted(VgpuctlError):
    """A signal stopped the command (exit 130 or 143)."""

    code = "interrupted"
    status = 130

    def __init__(self, message: str, *, signal_number: int, hint: str | None = None, **facts: object) -> None:
        super().__init__(message, hint=hint, **facts)
        self.signal_number = signal_number


_PACKAGES = {
    "libvirt": ("python3-libvirt", "libvirt-python"),
    "libvirtmod": ("python3-libvirt", "libvirt-python"),
    "nacl": ("python3-nacl", "PyNaCl"),
    "pynvml": ("python3-pynvml", "nvidia-ml-py"),
    "ruamel": ("python3-ruamel.yaml", "ruamel.yaml"),
}
"""A library's name in Python -> Debian's package and the one of PyPI, where they are named otherwise."""
_OF_DEBIAN = "/usr/lib/python3/dist-packages"


def missing_library(exc: ImportError) -> HostCannot | None:
    """Return what to say about a library that cannot be loaded; None for a module of our own."""
    name = (exc.name or "").partition(".")[0]
    if name in ("", "vgpuctl"):
        return None
    if name in sys.stdlib_module_names:
        debian, pip = "python3", ""
    else:
        debian, pip = _PACKAGES.get(name, (f"python3-{name}", name))
    known = f"Debian's package {debian}" + (f", pip's {pip}" if pip else "")
    apt = not pip or _OF_DEBIAN in sys.path
    return HostCannot(
        f"the Python library {name} cannot be loaded by {sys.executable}: {exc} ({known})",
        hint=f"apt install {debian}" if apt else f"{sys.executable} -m pip install {pip}",
        check="python-library",
        library=name,
    )
