# SPDX-License-Identifier: Apache-2.0
"""Add to GPUs what only NVML, the driver's /proc files or pci.ids know: names, framebuffer, sizes, maxima.

Without NVML a vendor-specific type's size and maximum stay unknown: neither is guessed from its name or from
the number of VFs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vgpuctl.model.digits import whole
from vgpuctl.model.gpu import MDEV, Backend, Gpu, Mode, VgpuType
from vgpuctl.model.profile_name import profile_of
from vgpuctl.model.records import NvmlGpu, NvmlStatus, NvmlVgpuType
from vgpuctl.model.world import World
from vgpuctl.scheduler.driver import MODULE_VERSION, PROC_VERSION, loaded_version
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.engine.observe import Want
    from vgpuctl.model.seams import Sysfs

MIXED_TYPES_SINCE = 550
"""From this driver on a GPU takes all types of one size (open kernel modules, kernel_vgpu_mgr.c); before, one type."""
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)
_PCI_IDS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")


def add_names(world: World, gpus: tuple[Gpu, ...], want: Want) -> tuple[tuple[Gpu, ...], NvmlStatus]:
    """Return the GPUs with names and NVML's facts; NVML is asked only for GPUs that NVIDIA's driver holds."""
    if want.known:
        known = {g.address: g for g in want.known}
        return tuple(_in_mode(_with_known(g, known.get(g.address))) for g in gpus), NvmlStatus(available=False)
    status = world.nvml.status()
    mine = frozenset(g.address for g in gpus if g.nvidia_driver)
    one_type = bool(mine) and want.types and _is_old(status.driver_version or _loaded_version(world.sysfs))
    done: list[Gpu] = []
    for gpu in gpus:
        seen = world.nvml.gpu(gpu.address) if status.available and gpu.address in mine else None
        named = _in_mode(_with_nvml(gpu, seen)) if seen else gpu
        done.append(replace(named, one_type=True) if one_type and gpu.address in mine else named)
    if want.models:
        done = _with_names(world.sysfs, done)
    return tuple(done), status


def _loaded_version(sysfs: Sysfs) -> str:
    """Return the version of the loaded driver, "" when it does not say."""
    module = _read(sysfs, MODULE_VERSION)
    return loaded_version(module, None) or loaded_version(None, _read(sysfs, PROC_VERSION)) or ""


def _read(sysfs: Sysfs, path: str) -> str | None:
    try:
        return sysfs.read(path)
    except OSError:
        return None


def _is_old(version: str) -> bool:
    """Say whether a driver is known to take one vGPU type at a time on a GPU; an unknown version is not."""
    major = version.partition(".")[0]
    number = whole(major)
    return number is not None and number < MIXED_TYPES_SINCE


def _with_known(gpu: Gpu, known: Gpu | None) -> Gpu:
    if known is None:
        return gpu
    types = {t.type_id: t for t in (*gpu.types, *known.types)}
    return replace(
        gpu,
        model=known.model,
        framebuffer_mib=known.framebuffer_mib,
        types=tuple(types[t] for t in sorted(types)),
        one_type=known.one_type,
        scheduler=known.scheduler,
        mig=known.mig,
        mixed_size=known.mixed_size,
        gi_schedulers=known.gi_schedulers,
    )


def _with_nvml(gpu: Gpu, seen: NvmlGpu) -> Gpu:
    gpu = replace(
        gpu,
        model=seen.model,
        framebuffer_mib=seen.framebuffer_mib,
        scheduler=seen.scheduler,
        mig=seen.mig,
        mixed_size=seen.mixed_size,
        gi_schedulers=seen.gi_schedulers,
    )
    if gpu.backend in MDEV:
        numbers = {f"nvidia-{number}": known for number, known in seen.types.items()}
        return replace(gpu, types=tuple(_divided(t, numbers.get(t.type_id)) for t in gpu.types))
    if gpu.backend is not Backend.VENDOR_VF:
        return gpu
    types = {t.type_id: t for t in gpu.types}
    for known in seen.types.values():
        if not known.name.split():
            continue
        described = VgpuType(
            type_id=str(known.type_id),
            name=known.name,
            profile=profile_of(known.name),
            framebuffer_mib=known.framebuffer_mib,
            max_per_gpu=known.max_per_gpu,
        )
        types[described.type_id] = _divided(described, known)
    return replace(gpu, types=tuple(types[t] for t in sorted(types, key=int)))


def _divided(kind: VgpuType, known: NvmlVgpuType | None) -> VgpuType:
    """Return a type with what only NVML says: the GPU instance it needs, and where it is on a mixed-size GPU."""
    if known is None:
        return kind
    return replace(
        kind,
        gi_profile_id=known.gi_profile_id,
        max_per_gi=known.max_per_gi,
        placement_ids=known.placement_ids,
        placement_size=known.placement_size,
    )


def _in_mode(gpu: Gpu) -> Gpu:
    """Return the GPU in the mode that its VFs and MIG make together."""
    mig = gpu.mig is not None and gpu.mig.enabled and gpu.backend in (Backend.MDEV_VF, Backend.VENDOR_VF)
    return replace(gpu, mode=Mode.MIG_VGPU) if mig and gpu.mode is Mode.VGPU else gpu


def _with_names(sysfs: Sysfs, gpus: list[Gpu]) -> list[Gpu]:
    """Name what NVML did not: from the driver's /proc file, else from the PCI database, read once."""
    named = [_from_proc(sysfs, g) for g in gpus]
    wanted = {g.model for g in named if g.vendor_id and g.model == f"{g.vendor_id}:{g.device_id}"}
    if not wanted:
        return named
    database = _from_pci_ids(sysfs, wanted)
    return [replace(g, model=database[g.model]) if g.model in database else g for g in named]


def _from_proc(sysfs: Sysfs, gpu: Gpu) -> Gpu:
    if gpu.driver != "nvidia" or gpu.model != f"{gpu.vendor_id}:{gpu.device_id}":
        return gpu
    try:
        found = _MODEL.search(sysfs.read(f"/proc/driver/nvidia/gpus/{gpu.address}/information"))
    except OSError:
        return gpu
    return replace(gpu, model=found.group(1)) if found else gpu


def _from_pci_ids(sysfs: Sysfs, wanted: set[str]) -> dict[str, str]:
    """Return "vendor:device" -> "Vendor Device" for the ids wanted, from the first database there is."""
    text = ""
    for path in _PCI_IDS:
        try:
            text = sysfs.read(path)
            break
        except OSError:
            continue
    found: dict[str, str] = {}
    for ids in wanted:
        vendor, device = ids.split(":")
        block = re.search(rf"^{vendor}  (.+)\n((?:[\t#].*\n|\n)*)", text, re.MULTILINE)
        if block is None:
            continue
        line = re.search(rf"^\t{device}  (.+)$", block.group(2), re.MULTILINE)
        if line is not None:
            found[ids] = f"{block.group(1)} {line.group(1)}"
    return found
