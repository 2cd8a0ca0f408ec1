# SPDX-License-Identifier: Apache-2.0
"""Read mediated devices: parents, existing devices, types and how many can still be created.

A type's name, description and API are the same on all functions of a card and are read once; only
available_instances is read per function, but not of a VF with an mdev: a VF carries one vGPU, so the driver has 0 there
for each type (NVIDIA's kernel module, kvgpumgrGetAvailableInstances). A full card has thousands of those files, and
each makes the driver take its lock. Type directories start with the bound driver's name: a half-initialised
NVIDIA VF shows `pci-NNN`, which is not a type; the function then gets a `problem`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from vgpuctl.gpu.profiles import matches_type
from vgpuctl.makers import maker_of_type
from vgpuctl.model.gpu import Gpu, GpuFunction, Mdev, VgpuType
from vgpuctl.model.numbers import parse_integer
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.observe.scope import ReadScope
    from vgpuctl.ports.devices import Sysfs

MDEV_BUS = "/sys/class/mdev_bus"
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


def list_parents(sysfs: Sysfs) -> tuple[str, ...]:
    """Return the kernel's name of every device that is registered as an mdev parent."""
    try:
        return sysfs.listdir(MDEV_BUS)
    except FileNotFoundError:
        return ()


def _mdevs(sysfs: Sysfs, function: GpuFunction, entries: Iterable[str]) -> Iterator[Mdev]:
    """Yield a function's mdevs with their types; each is a directory in the function's, named by its UUID."""
    for uuid in sorted(entry for entry in entries if _UUID.fullmatch(entry)):
        try:
            type_id = sysfs.readlink(f"{function.path}/{uuid}/mdev_type").rpartition("/")[2]
        except FileNotFoundError:
            continue
        yield Mdev(uuid.lower(), type_id)


def add_types(
    sysfs: Sysfs, gpu: Gpu, functions: tuple[GpuFunction, ...], entries: Sequence[Iterable[str]], scope: ReadScope
) -> Gpu:
    """Return the GPU with its functions' mdevs, and with its types if `scope` includes them.

    `entries`: the names in the directory of each function.
    """
    with_mdevs = tuple(
        replace(f, mdevs=tuple(_mdevs(sysfs, f, names))) for f, names in zip(functions, entries, strict=True)
    )
    in_use = frozenset(mdev.type_id for f in with_mdevs for mdev in f.mdevs)
    if not scope.types:
        types = tuple(_read_type(sysfs, with_mdevs, type_id, name_only=True) for type_id in sorted(in_use))
        return replace(gpu, functions=with_mdevs, types=types)
    types_by_id = {
        type_id.type_id: type_id
        for cached in scope.cached_gpus
        if cached.address == gpu.address
        for type_id in cached.types
    }
    completed: list[GpuFunction] = []
    for function in with_mdevs:
        completed.append(function if function.problem else _read_function(sysfs, gpu, function, types_by_id, scope))
    return replace(
        gpu,
        functions=tuple(completed),
        types=tuple(types_by_id[type_id] for type_id in sorted(types_by_id, key=_type_key)),
    )


def _read_function(
    sysfs: Sysfs, gpu: Gpu, function: GpuFunction, types_by_id: dict[str, VgpuType], scope: ReadScope
) -> GpuFunction:
    base = f"{function.path}/mdev_supported_types"
    available: dict[str, int] = {}
    is_taken = bool(function.mdevs) and function.address != gpu.address
    try:
        for type_id in sysfs.listdir(base):
            if type_id.startswith(("pci-", "vfio-pci-")):
                continue
            if scope.type_ids is not None and type_id not in scope.type_ids:
                continue
            if type_id not in types_by_id:
                types_by_id[type_id] = _read_type(sysfs, (function,), type_id)
            is_requested = scope.profiles is None or any(matches_type(types_by_id[type_id], p) for p in scope.profiles)
            if not is_requested and types_by_id[type_id].pool_units is None:
                continue
            number = 0 if is_taken else parse_integer(sysfs.read(f"{base}/{type_id}/available_instances"))
            if number is None:
                return replace(
                    function, problem=f"its vGPU types cannot be read: {type_id}/available_instances is not a number"
                )
            available[type_id] = number
    except OSError as error:
        return replace(function, problem=f"its vGPU types cannot be read: {error.strerror or error}")
    if not available and gpu.driver == "nvidia" and scope.type_ids is None and scope.profiles is None:
        return replace(function, problem="no nvidia-* vGPU types yet (the driver is still initializing it)")
    return replace(function, available_instances=available)


def _read_type(sysfs: Sysfs, functions: tuple[GpuFunction, ...], type_id: str, *, name_only: bool = False) -> VgpuType:
    """Read a type's constants from the first function that has it; name and description are optional files."""
    name, description = type_id, ""
    for function in functions:
        base = f"{function.path}/mdev_supported_types/{type_id}"
        name = _read_optional(sysfs, f"{base}/name") or type_id
        description = "" if name_only else _read_optional(sysfs, f"{base}/description")
        if name != type_id or description:
            break
    return maker_of_type(type_id).read_type(type_id, name, description)


def _type_key(type_id: str) -> tuple[str, int, str]:
    stem, _, number = type_id.rpartition("-")
    index = parse_integer(number)
    return (type_id, 0, "") if index is None else (stem, index, "")


def _read_optional(sysfs: Sysfs, path: str) -> str:
    try:
        return sysfs.read(path).strip()
    except FileNotFoundError:
        return ""
