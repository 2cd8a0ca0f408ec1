# SPDX-License-Identifier: Apache-2.0
"""What Intel's driver xe reports in `sriov_admin`: the scheduler of the host and its VFs, and each VF's memory.

The directory exists from kernel 6.19 on, and `vram_quota` in it from 7.0 on, on cards with memory of their own. A read
fails with EUCLEAN if parts of the card have different values. Only files of functions that are on are read.
Source: Documentation/ABI/testing/sysfs-driver-intel-xe-sriov.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.model.gpu import Gpu
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerInterface, SchedulerState
from vgpuctl.scheduler import xe
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.devices import Sysfs

_MIB = 1 << 20


def add_profiles(sysfs: Sysfs, gpu: Gpu) -> Gpu:
    """Return a GPU that has the directory `sriov_admin` with its scheduler and its VFs' memory."""
    quotas = [_read_quota(sysfs, gpu.path, vf) for vf in range(max(gpu.vfs_enabled, 1))]
    functions = gpu.functions
    if gpu.vfs_enabled == len(functions) and quotas[0] is not None:
        functions = tuple(replace(f, framebuffer_mib=quota) for f, quota in zip(functions, quotas, strict=True))
    state = read_state(sysfs, gpu.path, gpu.vfs_enabled) if gpu.vfs_enabled else None
    return replace(
        gpu,
        functions=functions,
        has_vf_memory=quotas[0] is not None,
        scheduler=GpuScheduler(xe.LIMITS, state, interface=SchedulerInterface.SRIOV_ADMIN),
    )


def read_state(sysfs: Sysfs, gpu_path: str, vfs: int) -> SchedulerState:
    """Return the scheduler that runs. `gpu_path`: the card's directory; `vfs`: how many VFs are on."""
    functions: list[Mapping[str, str]] = []
    for vf in (None, *range(vfs)):
        folder = f"{gpu_path}/{xe.profile_directory(vf)}"
        try:
            functions.append({name: sysfs.read(f"{folder}/{name}") for name in (xe.QUANTUM, xe.TIMEOUT, xe.PRIORITY)})
        except OSError as error:
            where = error.filename or folder
            if error.errno == errno.EUCLEAN:
                return xe.unreadable_state(f"parts of the card have different values ({where})")
            return xe.unreadable_state(f"{where} cannot be read: {error.strerror or error}")
    return xe.parse_state(functions)


def _read_quota(sysfs: Sysfs, gpu_path: str, vf: int) -> int | None:
    """Return a VF's memory in MiB, None if the driver has no such file or it cannot be read."""
    try:
        number = parse_integer(sysfs.read(f"{gpu_path}/{xe.profile_directory(vf)}/{xe.MEMORY_QUOTA}"))
    except OSError:
        return None
    return None if number is None or number < 0 else number // _MIB
