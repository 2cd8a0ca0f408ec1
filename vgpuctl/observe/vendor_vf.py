# SPDX-License-Identifier: Apache-2.0
"""Read NVIDIA's vendor-specific VFIO functions: the current type of each VF and the types it lists.

`creatable_vgpu_types` has a header line on some drivers and none on others, and names may contain spaces. A VF
with a type set lists no other type. The list shows only what can be created now: it is not a catalogue. Sizes and
maxima come from NVML (see `nvml_facts`), so they stay unknown without it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vgpuctl.model.gpu import Gpu, GpuFunction, VgpuType
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.profile_name import profile_of_type
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
