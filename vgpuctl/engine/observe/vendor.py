# SPDX-License-Identifier: Apache-2.0
"""Read NVIDIA's vendor-specific VFIO functions: what each VF carries and which types it lists.

`creatable_vgpu_types` has a header line on some drivers and none on others, and names may contain spaces. A VF
that holds a type lists no other, and the list shows only what can be made now: it is no catalogue. Sizes and
maxima come from NVML (see `names`), which is why they stay unknown without it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vgpuctl.model.digits import whole
from vgpuctl.model.gpu import Function, Gpu, VgpuType
from vgpuctl.model.profile_name import profile_of
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.engine.observe import Want
    from vgpuctl.model.seams import Sysfs

_LINE = re.compile(r"^\s*([0-9]{1,9})\s*:\s*(\S.*?)\s*$", re.MULTILINE)


def add_types(sysfs: Sysfs, gpu: Gpu, offering: tuple[tuple[Function, bool], ...], want: Want) -> Gpu:
    """Return the GPU with its VFs' current types, and with the types they list when those are wanted."""
    names: dict[str, str] = {}
    functions = tuple(read_function(sysfs, f, names, want, offers=offers) for f, offers in offering)
    types = tuple(
        VgpuType(type_id=t, name=n, profile=profile_of(n)) for t, n in sorted(names.items(), key=lambda x: int(x[0]))
    )
    return replace(gpu, functions=functions, types=types)


def read_function(sysfs: Sysfs, function: Function, names: dict[str, str], want: Want, *, offers: bool) -> Function:
    """Return a VF with what it carries; the types that it lists are added to `names`."""
    if not offers:
        return replace(function, problem="no nvidia directory: the vGPU driver does not serve this VF")
    base = f"{function.path}/nvidia"
    held: str | None = None
    try:
        current = sysfs.read(f"{base}/current_vgpu_type").strip()
        number = whole(current)
        if number is None:
            return replace(function, problem=f"current_vgpu_type says {current[:40]!a}, which is not a number")
        held = str(number) if number else None
        if not want.types:
            return replace(function, current_type=held)
        listed = parse_creatable(sysfs.read(f"{base}/creatable_vgpu_types"))
    except OSError as error:
        reason = error.strerror or str(error)
        return replace(function, current_type=held, problem=f"its vGPU types cannot be read: {reason}")
    names.update(listed)
    available = {} if held is not None else dict.fromkeys(listed, 1)
    return replace(function, current_type=held, available=available)


def parse_creatable(text: str) -> dict[str, str]:
    """Return type id -> full name of the lines that are `<number> : <name>`; a header line is none."""
    return {number: name for number, name in _LINE.findall(text)}
