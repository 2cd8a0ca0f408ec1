# SPDX-License-Identifier: Apache-2.0
"""Read NVIDIA's VFs: the current type of each with vendor-specific VFIO, the types it lists; placements of vGPUs.

`creatable_vgpu_types` has a header line on some drivers and none on others, and names may contain spaces. A VF
with a type set lists no other type. The list shows only what can be created now: it is not a catalogue. Sizes and
maxima come from NVML (see `nvml_facts`), so they stay unknown without it.

Placements are read on GPUs with mixed sizes or MIG, also of mdevs; on other GPUs they do not matter. A VF has
`nvidia/placement_id` and `nvidia/gpu_instance_id`, an mdev only the first; drivers before 580 have neither.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vgpuctl.model.gpu import Backend, Gpu, GpuFunction, Mdev, VgpuType, parse_driver_id
from vgpuctl.model.names import profile_of_type
from vgpuctl.model.numbers import parse_integer
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.observe.scope import ReadScope
    from vgpuctl.ports.devices import Sysfs

_LINE = re.compile(r"^\s*([0-9]{1,9})\s*:\s*(\S.*?)\s*$", re.MULTILINE)


def add_types(sysfs: Sysfs, gpu: Gpu, vfs: tuple[tuple[GpuFunction, bool], ...], scope: ReadScope) -> Gpu:
    """Return the GPU with its VFs' current types, and with the types they list if `scope` includes types."""
    names: dict[str, str] = {}
    functions = tuple(read_function(sysfs, f, names, scope, offers=offers) for f, offers in vfs)
    types = tuple(
        VgpuType(type_id=t, name=n, profile=profile_of_type(n))
        for t, n in sorted(names.items(), key=lambda x: int(x[0]))
    )
    return replace(gpu, functions=functions, types=types)


def read_function(
    sysfs: Sysfs, function: GpuFunction, names: dict[str, str], scope: ReadScope, *, offers: bool
) -> GpuFunction:
    """Return a VF with its current type; the types that it lists are added to `names`."""
    if not offers:
        return replace(function, problem="no nvidia directory: the vGPU driver is not bound to this VF")
    base = f"{function.path}/nvidia"
    active_type: str | None = None
    try:
        current = sysfs.read(f"{base}/current_vgpu_type").strip()
        number = parse_integer(current)
        if number is None:
            return replace(function, problem=f"current_vgpu_type says {current[:40]!a}, which is not a number")
        active_type = str(number) if number else None
        if not scope.types:
            return replace(function, current_type=active_type)
        listed = parse_creatable_types(sysfs.read(f"{base}/creatable_vgpu_types"))
    except OSError as error:
        reason = error.strerror or str(error)
        return replace(function, current_type=active_type, problem=f"its vGPU types cannot be read: {reason}")
    names.update(listed)
    available = {} if active_type is not None else dict.fromkeys(listed, 1)
    return replace(function, current_type=active_type, available_instances=available)


def parse_creatable_types(text: str) -> dict[str, str]:
    """Return type id -> full name from the lines of the form `<number> : <name>`; header lines do not match."""
    return {number: name for number, name in _LINE.findall(text)}


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
