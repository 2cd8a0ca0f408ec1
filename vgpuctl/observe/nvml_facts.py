# SPDX-License-Identifier: Apache-2.0
"""Facts that only NVML, the driver's /proc files, modprobe's files or pci.ids have, such as names, sizes and maxima.

Without NVML the size and maximum of a vendor-specific type stay unknown: vgpuctl does not guess them from its name or
from the number of VFs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.backends import backend_for
from vgpuctl.errors import unreadable_error
from vgpuctl.makers import PCI_MODELS, name_unknown_model, uses_nvml
from vgpuctl.model.gpu import Backend, Gpu, GpuMode, VgpuType
from vgpuctl.model.names import profile_of_type
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.port_values import NvmlGpu, NvmlStatus, NvmlVgpuType
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.scheduler.modprobe_files import DIRECTORIES, DRIVER_PARAMS_PATH, ModprobeFile
from vgpuctl.scheduler.registry_dword import MODULE_VERSION, PROC_VERSION, parse_driver_version
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.observe.scope import ReadScope
    from vgpuctl.ports.devices import Sysfs
    from vgpuctl.ports.host import Host

MIXED_TYPES_SINCE = 550
"""From this driver on a GPU takes all types of one size; before, one type (open kernel modules, kernel_vgpu_mgr.c)."""
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)
_PCI_IDS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")


def add_nvml_facts(host: Host, gpus: tuple[Gpu, ...], scope: ReadScope) -> tuple[tuple[Gpu, ...], NvmlStatus]:
    """Return the GPUs with names and NVML's facts; NVML is queried only for GPUs bound to NVIDIA's driver."""
    if scope.cached_gpus:
        cached = {g.address: g for g in scope.cached_gpus}
        return tuple(_with_mode(_with_cached(g, cached.get(g.address))) for g in gpus), NvmlStatus(available=False)
    status = host.nvml.status()
    nvidia_gpus = frozenset(g.address for g in gpus if uses_nvml(g))
    is_single_type = (
        bool(nvidia_gpus) and scope.types and _takes_one_type(status.driver_version or _loaded_version(host.sysfs))
    )
    completed: list[Gpu] = []
    for gpu in gpus:
        is_queried = status.available and gpu.address in nvidia_gpus
        nvml_gpu = host.nvml.gpu(gpu.address) if is_queried else None
        with_facts = _with_mode(_with_nvml(gpu, nvml_gpu)) if nvml_gpu else replace(gpu, is_lost=is_queried)
        if scope.nvlinks and nvml_gpu is not None:
            with_facts = replace(with_facts, nvlink_peers=host.nvml.nvlink_peers(gpu.address))
        completed.append(
            replace(with_facts, has_single_type=True) if is_single_type and gpu.address in nvidia_gpus else with_facts
        )
    return tuple(_with_names(host.sysfs if scope.models else None, completed)), status


def _loaded_version(sysfs: Sysfs) -> str:
    """Return the version of the loaded driver, "" if it is unknown."""
    module = _read_optional(sysfs, MODULE_VERSION)
    return parse_driver_version(module, None) or parse_driver_version(None, _read_optional(sysfs, PROC_VERSION)) or ""


def _read_optional(sysfs: Sysfs, path: str) -> str | None:
    try:
        return sysfs.read(path)
    except OSError:
        return None


def _takes_one_type(version: str) -> bool:
    """Return whether a driver takes only one vGPU type at a time on a GPU; False for an unknown version."""
    major = version.partition(".")[0]
    number = parse_integer(major)
    return number is not None and number < MIXED_TYPES_SINCE


def _with_cached(gpu: Gpu, cached_gpu: Gpu | None) -> Gpu:
    if cached_gpu is None:
        return gpu
    types = {t.type_id: t for t in (*gpu.types, *cached_gpu.types)}
    return replace(
        gpu,
        model=cached_gpu.model,
        framebuffer_mib=cached_gpu.framebuffer_mib,
        types=tuple(types[t] for t in sorted(types)),
        has_single_type=cached_gpu.has_single_type,
        scheduler=cached_gpu.scheduler,
        mig=cached_gpu.mig,
        mixed_size=cached_gpu.mixed_size,
        gi_schedulers=cached_gpu.gi_schedulers,
        nvlink_peers=cached_gpu.nvlink_peers,
        is_lost=cached_gpu.is_lost,
        uuid=cached_gpu.uuid,
    )


def _with_nvml(gpu: Gpu, nvml_gpu: NvmlGpu) -> Gpu:
    gpu = replace(
        gpu,
        model=nvml_gpu.model,
        framebuffer_mib=nvml_gpu.framebuffer_mib,
        scheduler=nvml_gpu.scheduler,
        mig=nvml_gpu.mig,
        mixed_size=nvml_gpu.mixed_size,
        gi_schedulers=nvml_gpu.gi_schedulers,
        uuid=nvml_gpu.uuid,
    )
    if backend_for(gpu.backend).carrier_has_uuid:
        nvml_types = {f"nvidia-{number}": nvml_type for number, nvml_type in nvml_gpu.types.items()}
        return replace(gpu, types=tuple(_with_partitioning(t, nvml_types.get(t.type_id)) for t in gpu.types))
    if gpu.backend is not Backend.VENDOR_VF:
        return gpu
    types = {t.type_id: t for t in gpu.types}
    for nvml_type in nvml_gpu.types.values():
        if not nvml_type.name.split():
            continue
        described = VgpuType(
            type_id=str(nvml_type.type_id),
            name=nvml_type.name,
            profile=profile_of_type(nvml_type.name),
            framebuffer_mib=nvml_type.framebuffer_mib,
            max_per_gpu=nvml_type.max_per_gpu,
        )
        types[described.type_id] = _with_partitioning(described, nvml_type)
    return replace(gpu, types=tuple(types[t] for t in sorted(types, key=int)))


def _with_partitioning(kind: VgpuType, nvml_type: NvmlVgpuType | None) -> VgpuType:
    """Return a type with facts only NVML has: the GPU instance it needs, and its placements on a mixed-size GPU."""
    if nvml_type is None:
        return kind
    return replace(
        kind,
        gi_profile_id=nvml_type.gi_profile_id,
        max_per_gi=nvml_type.max_per_gi,
        placement_ids=nvml_type.placement_ids,
        placement_size=nvml_type.placement_size,
    )


def _with_mode(gpu: Gpu) -> Gpu:
    """Return the GPU with the mode that follows from its VFs and MIG together."""
    mig = gpu.mig is not None and gpu.mig.enabled and gpu.backend in (Backend.MDEV_VF, Backend.VENDOR_VF)
    return replace(gpu, mode=GpuMode.MIG_VGPU) if mig and gpu.mode is GpuMode.VGPU else gpu


def _with_names(sysfs: Sysfs | None, gpus: list[Gpu]) -> list[Gpu]:
    """Name the GPUs that NVML did not name.

    From the driver's /proc file, an equal GPU, the PCI database (read once), or else our own table. A GPU that is
    passed through has no driver that reports its memory, but its model has only one size. `sysfs` None: read no file.
    """
    gpus = gpus if sysfs is None else [_from_proc(sysfs, g) for g in gpus]
    equal_gpus = {g.pci_id: g for g in gpus if g.pci_id is not None and g.model != g.pci_id}
    nameless = {g.pci_id for g in gpus if g.pci_id is not None and g.model == g.pci_id}
    names = {pci_id: gpu.model for pci_id, gpu in equal_gpus.items()}
    unnamed = nameless - names.keys()
    names |= {pci_id: PCI_MODELS[pci_id][0] for pci_id in unnamed & PCI_MODELS.keys()}
    names |= _from_pci_ids(sysfs, unnamed) if unnamed and sysfs is not None else {}
    return [_with_name(g, names, equal_gpus) for g in gpus]


def _with_name(gpu: Gpu, names: Mapping[str, str], equal_gpus: Mapping[str, Gpu]) -> Gpu:
    pci_id = gpu.pci_id or ""
    if gpu.model == pci_id:
        gpu = replace(gpu, model=names.get(pci_id) or name_unknown_model(gpu))
    if gpu.framebuffer_mib is not None or backend_for(gpu.backend).creates_devices:
        return gpu
    size_gib = PCI_MODELS.get(pci_id, ("", None))[1]
    from_equal = equal_gpus[pci_id].framebuffer_mib if pci_id in equal_gpus else None
    return replace(gpu, framebuffer_mib=from_equal or (size_gib * 1024 if size_gib is not None else None))


def _from_proc(sysfs: Sysfs, gpu: Gpu) -> Gpu:
    if gpu.driver != "nvidia" or gpu.model != gpu.pci_id:
        return gpu
    try:
        match = _MODEL.search(sysfs.read(f"/proc/driver/nvidia/gpus/{gpu.address}/information"))
    except OSError:
        return gpu
    return replace(gpu, model=match.group(1)) if match else gpu


def _from_pci_ids(sysfs: Sysfs, pci_ids: set[str]) -> dict[str, str]:
    """Return "vendor:device" -> "Vendor Device" for the requested ids, from the first database that exists."""
    text = ""
    for path in _PCI_IDS:
        try:
            text = sysfs.read(path)
            break
        except OSError:
            continue
    names: dict[str, str] = {}
    for pci_id in pci_ids:
        vendor, device = pci_id.split(":")
        block = re.search(rf"^{vendor}  (.+)\n((?:[\t#].*\n|\n)*)", text, re.MULTILINE)
        if block is None:
            continue
        line = re.search(rf"^\t{device}  (.+)$", block.group(2), re.MULTILINE)
        if line is not None:
            names[pci_id] = f"{block.group(1)} {line.group(1)}"
    return names


def read_modprobe(host: Host) -> tuple[ModprobeFile, ...]:
    """Return modprobe's files; of files with the same name, only the one in the first directory.

    Raises:
        Failed: a file exists but cannot be read, so its options are unknown.
    """
    files: dict[str, ModprobeFile] = {}
    for folder in DIRECTORIES:
        for name in _list_folder(host, folder):
            if name.endswith(".conf") and name not in files:
                files[name] = ModprobeFile(f"{folder}/{name}", _read_if_present(host, f"{folder}/{name}") or "")
    return tuple(files[name] for name in sorted(files))


def driver_version(host: Host, snapshot: Snapshot) -> str | None:
    """Return the version of the loaded NVIDIA driver, None if it is unknown."""
    if snapshot.nvml.driver_version is not None:
        return snapshot.nvml.driver_version
    module = _read_if_present(host, MODULE_VERSION)
    return parse_driver_version(module, None) or parse_driver_version(None, _read_if_present(host, PROC_VERSION))


def loaded_parameters(host: Host) -> str | None:
    """Return the text of /proc/driver/nvidia/params, None if there is no such file."""
    return _read_if_present(host, DRIVER_PARAMS_PATH)


def _list_folder(host: Host, folder: str) -> tuple[str, ...]:
    try:
        return host.sysfs.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise unreadable_error(folder, error) from error


def _read_if_present(host: Host, path: str) -> str | None:
    try:
        return host.sysfs.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable_error(path, error) from error
