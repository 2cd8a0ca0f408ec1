# SPDX-License-Identifier: Apache-2.0
"""Read mediated devices: parents, existing devices, types and how many can still be made.

A type's name, description and API are the same on all functions of a card and are read once; only
available_instances is read per function. Type directories carry the bound driver's name: a half-initialised
NVIDIA VF shows `pci-NNN`, which is no type, and the function is then named in `problem`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from vgpuctl.capacity.profiles import means
from vgpuctl.model.digits import whole
from vgpuctl.model.gpu import Function, Gpu, Mdev, VgpuType
from vgpuctl.model.profile_name import profile_of
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.engine.observe import Want
    from vgpuctl.model.seams import Sysfs

PARENTS = "/sys/class/mdev_bus"
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_FRAMEBUFFER = re.compile(r"framebuffer=([0-9]{1,9})M")
_MAX_INSTANCE = re.compile(r"max_instance=([0-9]{1,9})")
_PORTS = re.compile(r"mtty-([1-9][0-9]{0,8})", re.ASCII)
_OTHER_MEMORY = re.compile(r"^(?:high_gm_size|memory size):\s*([0-9]{1,9})\s*(MB|GB)", re.MULTILINE)


def parents(sysfs: Sysfs) -> tuple[str, ...]:
    """Return the kernel's name of everything that is registered as an mdev parent."""
    try:
        return sysfs.listdir(PARENTS)
    except FileNotFoundError:
        return ()


def _mdevs(sysfs: Sysfs, function: Function, entries: Iterable[str]) -> Iterator[Mdev]:
    """Read the types of a function's mdevs, which are directories in its own, named by their UUIDs."""
    for uuid in sorted(entry for entry in entries if _UUID.fullmatch(entry)):
        try:
            type_id = sysfs.readlink(f"{function.path}/{uuid}/mdev_type").rpartition("/")[2]
        except FileNotFoundError:
            continue
        yield Mdev(uuid.lower(), type_id)


def add_types(
    sysfs: Sysfs, gpu: Gpu, functions: tuple[Function, ...], entries: Sequence[Iterable[str]], want: Want
) -> Gpu:
    """Return the GPU with its functions' mdevs, and with its types when they are wanted.

    `entries`: what is in the directory of each function.
    """
    placed = tuple(
        replace(f, mdevs=tuple(_mdevs(sysfs, f, names))) for f, names in zip(functions, entries, strict=True)
    )
    in_use = frozenset(m.type_id for f in placed for m in f.mdevs)
    if not want.types:
        types = tuple(_read_type(sysfs, placed, t, name_only=True) for t in sorted(in_use))
        return replace(gpu, functions=placed, types=types)
    read = {t.type_id: t for known in want.known if known.address == gpu.address for t in known.types}
    done: list[Function] = []
    for function in placed:
        done.append(function if function.problem else _read_function(sysfs, gpu, function, read, want))
    return replace(gpu, functions=tuple(done), types=tuple(read[t] for t in sorted(read, key=_type_key)))


def _read_function(sysfs: Sysfs, gpu: Gpu, function: Function, read: dict[str, VgpuType], want: Want) -> Function:
    base = f"{function.path}/mdev_supported_types"
    available: dict[str, int] = {}
    try:
        for type_id in sysfs.listdir(base):
            if type_id.startswith(("pci-", "vfio-pci-")):
                continue
            if want.type_ids is not None and type_id not in want.type_ids:
                continue
            if type_id not in read:
                read[type_id] = _read_type(sysfs, (function,), type_id)
            asked = want.profiles is None or any(means(read[type_id], p) for p in want.profiles)
            if not asked and read[type_id].units is None:
                continue
            number = whole(sysfs.read(f"{base}/{type_id}/available_instances"))
            if number is None:
                return replace(
                    function, problem=f"its vGPU types cannot be read: {type_id}/available_instances is no number"
                )
            available[type_id] = number
    except OSError as error:
        return replace(function, problem=f"its vGPU types cannot be read: {error.strerror or error}")
    if not available and gpu.driver == "nvidia" and want.type_ids is None and want.profiles is None:
        return replace(function, problem="no nvidia-* vGPU types yet (the driver is still setting it up)")
    return replace(function, available=available)


def _read_type(sysfs: Sysfs, functions: tuple[Function, ...], type_id: str, *, name_only: bool = False) -> VgpuType:
    """Read a type's constants from the first function that has it; name and description are optional files."""
    name, description = type_id, ""
    for function in functions:
        base = f"{function.path}/mdev_supported_types/{type_id}"
        name = _optional(sysfs, f"{base}/name") or type_id
        description = "" if name_only else _optional(sysfs, f"{base}/description")
        if name != type_id or description:
            break
    nvidia = type_id.startswith("nvidia-")
    framebuffer_mib = _framebuffer_mib(description)
    limit = _MAX_INSTANCE.search(description)
    return VgpuType(
        type_id=type_id,
        name=name,
        profile=profile_of(name.strip()) if nvidia and name.strip() else type_id,
        framebuffer_mib=framebuffer_mib,
        max_per_gpu=int(limit.group(1)) if limit else None,
        units=_units(type_id, framebuffer_mib),
    )


def _units(type_id: str, framebuffer_mib: int | None) -> int | None:
    """Return what one device takes of its parent's pool: mtty's type N has N ports, GVT-g's its part of the memory.

    samples/vfio-mdev/mtty.c (mdev_avail_ports), drivers/gpu/drm/i915/gvt/vgpu.c (high_gm_size).
    """
    ports = _PORTS.fullmatch(type_id)
    if ports is not None:
        return int(ports.group(1))
    return framebuffer_mib if type_id.startswith("i915-GVTg_") else None


def _framebuffer_mib(description: str) -> int | None:
    """Return a type's memory: NVIDIA's framebuffer, GVT-g's high_gm_size, Ascend's memory size."""
    found = _FRAMEBUFFER.search(description)
    if found:
        return int(found.group(1))
    other = _OTHER_MEMORY.search(description)
    if other is None:
        return None
    return int(other.group(1)) * (1024 if other.group(2) == "GB" else 1)


def _type_key(type_id: str) -> tuple[str, int, str]:
    stem, _, number = type_id.rpartition("-")
    known = whole(number)
    return (type_id, 0, "") if known is None else (stem, known, "")


def _optional(sysfs: Sysfs, path: str) -> str:
    try:
        return sysfs.read(path).strip()
    except FileNotFoundError:
        return ""
