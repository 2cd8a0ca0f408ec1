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
    mig = gpu.mig is not None and gpu.mig.enabled
    if not (gpu.mixed_size or mig) or (mig and gpu.backend is not Backend.VENDOR_VF):
        return gpu
    look = _Look(sysfs)
    functions = tuple(look.in_instance(f) if mig else look.function(f) for f in gpu.functions)
    return replace(gpu, functions=functions, fixed_places=look.no_file)


class _Look:
    """One look at where a GPU's vGPUs are. `no_file`: the driver has none that tells it for one that is there."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self.no_file = False

    def function(self, function: Function) -> Function:
        """Return a function with the placements of what it carries."""
        if function.current_type is not None:
            return replace(function, placement_id=self._number(f"{function.path}/nvidia/placement_id"))
        if not function.mdevs:
            return function
        return replace(function, mdevs=tuple(self._mdev(function, m) for m in function.mdevs))

    def in_instance(self, function: Function) -> Function:
        """Return a VF with the GPU instance of the vGPU that it carries."""
        if function.current_type is None:
            return function
        return replace(function, gi_id=self._number(f"{function.path}/nvidia/gpu_instance_id"))

    def _mdev(self, function: Function, mdev: Mdev) -> Mdev:
        return replace(mdev, placement_id=self._number(f"{function.path}/{mdev.uuid}/nvidia/placement_id"))

    def _number(self, path: str) -> int | None:
        try:
            return shown_number(self._sysfs.read(path))
        except FileNotFoundError:
            self.no_file = True
        except OSError:
            pass
        return None
