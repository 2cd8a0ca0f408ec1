# SPDX-License-Identifier: Apache-2.0
"""Read where NVIDIA's vGPUs are on a GPU with mixed sizes or MIG, which matters and is read there alone.

A VF has `nvidia/placement_id` and `nvidia/gpu_instance_id`, an mdev the first of them; drivers before 580 have neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.model.gpu import Backend, Function, Gpu, Mdev
from vgpuctl.model.partition import shown_number
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.seams import Sysfs


def add_places(sysfs: Sysfs, gpu: Gpu) -> Gpu:
    """Return the GPU with where its vGPUs are.

    What a driver has no file for, or does not tell, stays unknown.
    """
    if gpu.mig is not None and gpu.mig.enabled:
        if gpu.backend is not Backend.VENDOR_VF:
            return gpu
        return replace(gpu, functions=tuple(_in_instance(sysfs, f) for f in gpu.functions))
    if not gpu.mixed_size:
        return gpu
    look = _Look(sysfs)
    functions = tuple(look.function(f) for f in gpu.functions)
    return replace(gpu, functions=functions, fixed_places=look.no_file)


def _in_instance(sysfs: Sysfs, function: Function) -> Function:
    if function.current_type is None:
        return function
    try:
        return replace(function, gi_id=shown_number(sysfs.read(f"{function.path}/nvidia/gpu_instance_id")))
    except OSError:
        return function


class _Look:
    """One look at the placements of a GPU's vGPUs. `no_file`: the driver has none for one that is there."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self.no_file = False

    def function(self, function: Function) -> Function:
        """Return a function with the placements of what it carries."""
        if function.current_type is not None:
            return replace(function, placement_id=self._place(function.path))
        if not function.mdevs:
            return function
        return replace(function, mdevs=tuple(self._mdev(function, m) for m in function.mdevs))

    def _mdev(self, function: Function, mdev: Mdev) -> Mdev:
        return replace(mdev, placement_id=self._place(f"{function.path}/{mdev.uuid}"))

    def _place(self, directory: str) -> int | None:
        try:
            return shown_number(self._sysfs.read(f"{directory}/nvidia/placement_id"))
        except FileNotFoundError:
            self.no_file = True
        except OSError:
            pass
        return None
