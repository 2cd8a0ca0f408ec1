# SPDX-License-Identifier: Apache-2.0
"""Which programs are too old for a VM with vGPUs to move while it runs, or to be saved."""

from __future__ import annotations

from collections.abc import Iterable

from vgpuctl.backends.base import OTHER_LIVE_MOVE, GpuBackend, LiveMoveVersions
from vgpuctl.model.numbers import format_version, parse_version
from vgpuctl.model.port_values import HypervisorStatus
from vgpuctl.value import Value

_BACKPORTING = ".el"
"""In the versions of RHEL's kernels."""
_BACKPORTED_SINCE = (5, 14)
"""The kernel of RHEL 9 has what newer ones have for this, and NVIDIA lists RHEL 9 for moves."""


class OldProgram(Value):
    """A program that is too old: its version, and the least that is needed, as texts."""

    program: str
    version: str
    least: str


def is_kernel_too_old_to_move(kernel: str | None, least: tuple[int, ...]) -> bool:
    """Return whether a kernel cannot move what needs this one; unknown is not old."""
    version = parse_version(kernel)
    if version is None or (_BACKPORTING in (kernel or "") and version >= _BACKPORTED_SINCE):
        return False
    return version < least


def old_programs(
    needed: LiveMoveVersions, libvirt: str | None, qemu: str | None, kernel: str | None
) -> tuple[OldProgram, ...]:
    """Return the programs of a host that are too old for a vGPU to move while its VM runs; unknown is not old."""
    old = []
    for program, text, number in (("libvirt", libvirt, needed.libvirt), ("QEMU", qemu, needed.qemu)):
        version, least = parse_version(text), parse_version(format_version(number))
        if text is not None and version is not None and least is not None and version < least:
            old.append(OldProgram(program, text, format_version(number)))
    if kernel is not None and is_kernel_too_old_to_move(kernel, needed.kernel):
        old.append(OldProgram("the kernel", kernel, ".".join(map(str, needed.kernel))))
    return tuple(old)


def programs_too_old_to_move(backends: Iterable[GpuBackend], status: HypervisorStatus) -> tuple[str, ...]:
    """Return a clause for each program that is older than the vGPUs of these backends need; unknown is not old."""
    needs = [backend.live_move or OTHER_LIVE_MOVE for backend in backends]
    programs = (
        ("libvirt", status.libvirt_version, max((need.libvirt for need in needs), default=0)),
        ("QEMU", status.qemu_version, max((need.qemu for need in needs), default=0)),
    )
    return tuple(
        f"{name} {format_version(least)} or newer is needed, and this is {format_version(version)}"
        for name, version, least in programs
        if version is not None and version < least
    )
