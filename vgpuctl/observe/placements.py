# SPDX-License-Identifier: Apache-2.0
"""Read the placements of NVIDIA's vGPUs on GPUs with mixed sizes or MIG; on other GPUs they do not matter.

A VF has `nvidia/placement_id` and `nvidia/gpu_instance_id`, an mdev only the first; drivers before 580 have neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.model.gpu import Backend, Gpu, GpuFunction, Mdev
from vgpuctl.model.mig import parse_driver_id
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.devices import Sysfs


def add_placements(sysfs: Sysfs, gpu: Gpu) -> Gpu:
    """Return the GPU with the placements or GPU instances of its vGPUs.

    A placement stays unknown if the driver has no file for it or does not report it.
    """
    mig = gpu.mig is not None and gpu.mig.enabled
    if not (gpu.mixed_size or mig):
        return gpu
    if gpu.backend is not Backend.VENDOR_VF and (mig or gpu.backend is not Backend.MDEV_VF):
        return replace(gpu, has_fixed_placements=True)
    reader = _PlacementReader(sysfs)
    functions = tuple(reader.with_instance(f) if mig else reader.with_placement(f) for f in gpu.functions)
    return replace(gpu, functions=functions, has_fixed_placements=reader.file_missing)


class _PlacementReader:
    """Reads the placements of one GPU's vGPUs. `file_missing`: the driver has no such file for an existing vGPU."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self.file_missing = False

    def with_placement(self, function: GpuFunction) -> GpuFunction:
        """Return a function with the placements of its vGPUs."""
        if function.current_type is not None:
            return replace(function, placement_id=self._read_number(f"{function.path}/nvidia/placement_id"))
        if not function.mdevs:
            return function
        return replace(function, mdevs=tuple(self._mdev(function, m) for m in function.mdevs))

    def with_instance(self, function: GpuFunction) -> GpuFunction:
        """Return a VF with the GPU instance of its vGPU."""
        if function.current_type is None:
            return function
        return replace(function, gi_id=self._read_number(f"{function.path}/nvidia/gpu_instance_id"))

    def _mdev(self, function: GpuFunction, mdev: Mdev) -> Mdev:
        return replace(mdev, placement_id=self._read_number(f"{function.path}/{mdev.uuid}/nvidia/placement_id"))

    def _read_number(self, path: str) -> int | None:
        try:
            return parse_driver_id(self._sysfs.read(path))
        except FileNotFoundError:
            self.file_missing = True
        except OSError:
            pass
        return None
