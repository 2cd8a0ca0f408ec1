# SPDX-License-Identifier: Apache-2.0
"""The GPU memory of plain VFs, which Intel's xe takes before they are turned on.

The bulk file would give the memory to every VF that the card can have, so each VF's own file is written. Memory that
is left while VFs are off, by a killed command say, would stop the driver from dividing it by itself: it is taken away
before VFs are turned on. The driver rounds up to 2 MiB for each tile.
Source: drivers/gpu/drm/xe/xe_sriov_pf_provision.c.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from vgpuctl.errors import VerifyFailed
from vgpuctl.gpu_setup.sriov_errors import PCI_DEVICES, profile_error
from vgpuctl.model.numbers import count_text, format_size, parse_integer
from vgpuctl.scheduler.xe import ADMIN_DIRECTORY, MEMORY_QUOTA, profile_directory

if TYPE_CHECKING:
    from vgpuctl.model.gpu import Gpu
    from vgpuctl.ports.host import Host

_ROUNDING_MIB = 4


def has_vf_memory(gpu: Gpu, memory_mib: int | None) -> bool:
    """Return whether each VF that is on has this GPU memory; None: any."""
    return memory_mib is None or all(_is_rounded(f.framebuffer_mib, memory_mib) for f in gpu.functions)


def write_memory(host: Host, gpu: str, vf_count: int, memory_mib: int) -> None:
    """Give each VF that is to be turned on this memory. After a refusal the step's undo takes it away.

    Raises:
        NoCapacity, HostCannot, InvalidInput, DeviceFailed: the driver refused it; the error says why.
    """
    for vf in range(vf_count):
        try:
            host.sysfs.write(_quota_path(gpu, vf), f"{memory_mib << 20}\n")
        except OSError as error:
            text = f"{format_size(memory_mib)} of GPU memory for each of {count_text(vf_count, 'VF')}"
            raise profile_error(error, gpu, text, _quota_path(gpu, vf)) from error


def release_memory(host: Host, gpu: str) -> None:
    """Take away the memory that VFs have while they are off: all possible ones, because it is short for the others.

    What fails here, turning VFs on and off or a boot releases too.
    """
    with suppress(OSError):
        for name in host.sysfs.listdir(f"{PCI_DEVICES}/{gpu}/{ADMIN_DIRECTORY}"):
            path = f"{PCI_DEVICES}/{gpu}/{ADMIN_DIRECTORY}/{name}/profile/{MEMORY_QUOTA}"
            if name.startswith("vf") and parse_integer(host.sysfs.read(path)) != 0:
                with suppress(OSError):
                    host.sysfs.write(path, "0\n")


def verify_memory(host: Host, gpu: str, vf_count: int, memory_mib: int) -> None:
    """Read the memory of each VF back.

    Raises:
        VerifyFailed: one has another size, or it cannot be read.
    """
    for vf in range(vf_count):
        path = _quota_path(gpu, vf)
        try:
            size = parse_integer(host.sysfs.read(path))
        except OSError as error:
            raise VerifyFailed(f"{path} cannot be read: {error.strerror or error}", hint=f"cat {path}") from error
        if size is None or not _is_rounded(size >> 20, memory_mib):
            raise VerifyFailed(
                f"VF {vf + 1} of {gpu} was given {format_size(memory_mib)} of GPU memory, and {path} says {size} bytes",
                hint="journalctl -k -n 20",
                gpu=gpu,
            )


def _is_rounded(size_mib: int | None, memory_mib: int) -> bool:
    return size_mib is not None and memory_mib <= size_mib < memory_mib + _ROUNDING_MIB


def _quota_path(gpu: str, vf: int) -> str:
    return f"{PCI_DEVICES}/{gpu}/{profile_directory(vf)}/{MEMORY_QUOTA}"
