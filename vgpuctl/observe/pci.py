# SPDX-License-Identifier: Apache-2.0
"""Find the GPUs of a host in /sys and determine what each one offers.

A directory listing shows which files exist, so the code opens no missing file and reads no file twice. It never reads
the files of a PF by pattern: some drivers act when a file is read (AMD's reset_gpu resets the card).
A GPU has the class "display controller" or "processing accelerator"; some of Hygon's have "co-processor" (0b40), as
Intel's QAT cards do, so there the id decides. An NVSwitch is a PCI device of NVIDIA with the class "bridge, other"
(0680; pci.ids: 10de 1af1 and 22a3).
Sources: Linux Documentation/ABI/testing/sysfs-bus-pci, sysfs-bus-vfio-mdev; NVIDIA's VF attributes
`nvidia/creatable_vgpu_types` and `nvidia/current_vgpu_type`, `nvidia/placement_id` and `nvidia/gpu_instance_id`.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vgpuctl.makers import is_gpu_model
from vgpuctl.model.gpu import NVIDIA_VENDOR_ID, Backend, Gpu, GpuFunction, GpuMode, IommuGroupMember
from vgpuctl.model.names import address_sort_key, is_pci_address, normalize_pci
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.port_values import NvmlStatus
from vgpuctl.observe import gim, mdev, nvml_facts, render_nodes, vendor_vf, xe_profiles
from vgpuctl.observe.vendor_vf import add_placements
from vgpuctl.ports.host import Host
from vgpuctl.scheduler.xe import ADMIN_DIRECTORY
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.observe.scope import ReadScope
    from vgpuctl.ports.devices import Sysfs

PCI_DEVICES = "/sys/bus/pci/devices"
MDEV_BUS = "/sys/class/mdev_bus"
_GPU_CLASSES = ("0x03", "0x12")
_COPROCESSOR_CLASS = "0x0b40"
_BRIDGE_CLASS = "0x06"
_OTHER_BRIDGE_CLASS = "0x0680"
_PCI_ID = re.compile(r"0x[0-9a-f]{4,6}", re.ASCII)
_VIRTFN = re.compile(r"virtfn([0-9]{1,5})", re.ASCII)


class GpusRead(Value):
    """The GPUs, the NVSwitches if all devices were listed, and warnings for what could not be read.

    `addresses`: every PCI function of the host, if all devices were listed.
    """

    gpus: tuple[Gpu, ...]
    nvml: NvmlStatus
    warnings: tuple[str, ...]
    nvswitches: tuple[str, ...] | None = None
    addresses: frozenset[str] = frozenset()


def read_gpus(host: Host, scope: ReadScope) -> GpusRead:
    """Read every GPU in `scope`, sorted by address."""
    sysfs = host.sysfs
    warnings: list[str] = []
    gpus: list[Gpu] = []
    nvswitches: list[str] = []
    parents = mdev.list_parents(sysfs)
    candidates = _candidates(sysfs, scope, warnings)
    for address in candidates:
        try:
            gpu = _read_pci(sysfs, address, scope, parents, nvswitches)
        except OSError as error:
            if not find_absent(sysfs, (address,)):
                warnings.append(_left_out_warning(address, error, PCI_DEVICES))
            continue
        if gpu is not None:
            gpus.append(gpu)
    gpus += _other_parents(sysfs, scope, parents, warnings)
    if scope.every_function:
        gpus += render_nodes.read_other_gpus(sysfs)
    with_facts, status = nvml_facts.add_nvml_facts(host, tuple(gpus), scope)
    with_placements = [add_placements(sysfs, gpu) for gpu in with_facts]
    by_address = tuple(sorted(with_placements, key=lambda g: address_sort_key(g.address)))
    if scope.gpu_addresses is not None:
        return GpusRead(by_address, status, tuple(warnings))
    return GpusRead(by_address, status, tuple(warnings), tuple(nvswitches), frozenset(candidates))


def find_absent(sysfs: Sysfs, addresses: Iterable[str]) -> frozenset[str]:
    """Return those of these PCI addresses that are on no bus or belong to a bridge now; none if that is unreadable."""
    requested = frozenset(a for a in addresses if is_pci_address(a))
    try:
        present = frozenset(sysfs.listdir(PCI_DEVICES)) if requested else requested
    except OSError:
        return frozenset()
    return frozenset(a for a in requested if a not in present or _is_bridge(sysfs, a))


def _is_bridge(sysfs: Sysfs, address: str) -> bool:
    try:
        return _read_pci_id(sysfs, f"{PCI_DEVICES}/{address}/class").startswith(_BRIDGE_CLASS)
    except OSError:
        return False


def find_gpus(sysfs: Sysfs, functions: Iterable[str]) -> frozenset[str]:
    """Return the GPUs of PCI functions: themselves, or those of which they are VFs; leave others out."""
    gpus: set[str] = set()
    for address in (a for a in functions if is_pci_address(a)):
        path = f"{PCI_DEVICES}/{address}"
        try:
            if _is_gpu_class(sysfs, path, _read_pci_id(sysfs, f"{path}/class")):
                is_vf = "physfn" in sysfs.listdir(path)
                gpus.add(_read_link_name(sysfs, f"{path}/physfn") or address if is_vf else address)
        except OSError:
            continue  # it is gone: a record or a claim may still name its GPU
    return frozenset(gpus)


def _is_gpu_class(sysfs: Sysfs, path: str, pci_class: str) -> bool:
    """Return whether a function is a GPU by its class, or a co-processor that is known to be one by its id."""
    if not pci_class.startswith(_COPROCESSOR_CLASS):
        return pci_class.startswith(_GPU_CLASSES)
    vendor, device = (_read_pci_id(sysfs, f"{path}/{name}").removeprefix("0x") for name in ("vendor", "device"))
    return is_gpu_model(f"{vendor}:{device}")


def _left_out_warning(name: str, error: OSError, path: str) -> str:
    return f"{name} is ignored: {error.strerror or error} ({error.filename or path})"


def _candidates(sysfs: Sysfs, scope: ReadScope, warnings: list[str]) -> tuple[str, ...]:
    """Return the addresses of PCI functions that may be GPUs."""
    if scope.gpu_addresses is not None:
        return tuple(a for a in sorted(scope.gpu_addresses) if normalize_pci(a) == a)
    try:
        return sysfs.listdir(PCI_DEVICES)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            warnings.append(f"PCI devices cannot be listed: {error}")
        return ()


def _read_again(sysfs: Sysfs, address: str, scope: ReadScope) -> Gpu | None:
    """Return a cached GPU with only the requested VFs read again; None if the whole GPU must be read.

    With mixed sizes or MIG every VF is read again: a claim does not say where the driver put a vGPU.
    """
    cached = next((g for g in scope.cached_gpus if g.address == address and g.backend is Backend.VENDOR_VF), None)
    if cached is None or scope.functions is None:
        return None
    reads_all = cached.mixed_size or (cached.mig is not None and cached.mig.enabled)
    try:
        functions = tuple(
            _read_vendor_vf(sysfs, f.address, scope) if reads_all or f.address in scope.functions else f
            for f in cached.functions
        )
    except OSError:
        return None  # a VF is gone: the number of VFs must be read again
    return replace(cached, functions=functions)


def _read_vendor_vf(sysfs: Sysfs, address: str, scope: ReadScope) -> GpuFunction:
    function, entries = _read_vf(sysfs, address)
    return vendor_vf.read_function(sysfs, function, {}, scope, offers="nvidia" in entries)


def _read_pci(
    sysfs: Sysfs, address: str, scope: ReadScope, parents: tuple[str, ...], nvswitches: list[str]
) -> Gpu | None:
    """Read one device: a GPU is returned, and the address of an NVSwitch goes to `nvswitches`."""
    cached = _read_again(sysfs, address, scope)
    if cached is not None:
        return cached
    path = f"{PCI_DEVICES}/{address}"
    pci_class = _read_pci_id(sysfs, f"{path}/class")
    is_display = _is_gpu_class(sysfs, path, pci_class)
    if pci_class.startswith(_OTHER_BRIDGE_CLASS) and _read_pci_id(sysfs, f"{path}/vendor") == f"0x{NVIDIA_VENDOR_ID}":
        nvswitches.append(address)
    if not (is_display or scope.every_function or scope.gpu_addresses or address in parents):
        return None
    if pci_class.startswith(_BRIDGE_CLASS):
        return None
    entries = frozenset(sysfs.listdir(path))
    if "physfn" in entries:
        return None
    driver = _read_link_name(sysfs, f"{path}/driver") if "driver" in entries else None
    is_parent = "mdev_supported_types" in entries
    if not is_display and not is_parent and not scope.gpu_addresses:
        listed = "sriov_totalvfs" in entries or driver in (None, "vfio-pci")
        if not listed:
            return None
    return _build_gpu(sysfs, address, entries, driver, scope, is_display_class=is_display)


def _build_gpu(
    sysfs: Sysfs,
    address: str,
    entries: frozenset[str],
    driver: str | None,
    scope: ReadScope,
    *,
    is_display_class: bool,
) -> Gpu:
    path = f"{PCI_DEVICES}/{address}"
    vendor_id = _read_pci_id(sysfs, f"{path}/vendor").removeprefix("0x")
    device_id = _read_pci_id(sysfs, f"{path}/device").removeprefix("0x")
    numa = parse_integer(sysfs.read(f"{path}/numa_node")) if "numa_node" in entries else None
    total = (
        _parse_number(f"{path}/sriov_totalvfs", sysfs.read(f"{path}/sriov_totalvfs"))
        if "sriov_totalvfs" in entries
        else 0
    )
    group = _read_iommu_group(sysfs, path, entries)
    own = _build_function(address, entries, driver, group)
    vfs, vf_entries, problems = _read_vfs(sysfs, path, entries)
    gpu = Gpu(
        address=address,
        path=path,
        model=f"{vendor_id}:{device_id}",
        driver=driver,
        backend=None,
        mode=GpuMode.UNMANAGED,
        vendor_id=vendor_id,
        device_id=device_id,
        numa_node=None if numa is None or numa < 0 else numa,
        iommu_group=group,
        vfs_total=total,
        vfs_enabled=len(vfs) + len(problems),
        is_display_class=is_display_class,
        console_reasons=_console_reasons(sysfs, path, entries),
        group_members=_group_members(sysfs, address, group) if not vfs else (),
        problems=problems,
        pci_path=_read_pci_path(sysfs, path),
        render_node=render_nodes.read_node(sysfs, path) if "drm" in entries else None,
    )
    gpu = gim.add_partition_modes(sysfs, gpu, entries)
    gpu = _with_backend(sysfs, gpu, own, vfs, entries, vf_entries, scope)
    return xe_profiles.add_profiles(sysfs, gpu) if ADMIN_DIRECTORY in entries else gpu


def _with_backend(
    sysfs: Sysfs,
    gpu: Gpu,
    own: GpuFunction,
    vfs: tuple[GpuFunction, ...],
    entries: frozenset[str],
    vf_entries: tuple[frozenset[str], ...],
    scope: ReadScope,
) -> Gpu:
    """Determine what the GPU offers from the directories that exist, for each card and never for the host."""
    if "mdev_supported_types" in entries:
        gpu = replace(gpu, backend=Backend.MDEV_PF, mode=GpuMode.VGPU)
        return mdev.add_types(sysfs, gpu, (own,), (entries,), scope)
    if any("nvidia" in e for e in vf_entries):
        gpu = replace(gpu, backend=Backend.VENDOR_VF, mode=GpuMode.VGPU)
        offering = tuple((f, "nvidia" in e) for f, e in zip(vfs, vf_entries, strict=True))
        return vendor_vf.add_types(sysfs, gpu, offering, scope)
    if any("mdev_supported_types" in e for e in vf_entries):
        gpu = replace(gpu, backend=Backend.MDEV_VF, mode=GpuMode.VGPU)
        functions = tuple(
            f if "mdev_supported_types" in e else replace(f, problem="offers no vGPU types (no mdev_supported_types)")
            for f, e in zip(vfs, vf_entries, strict=True)
        )
        return mdev.add_types(sysfs, gpu, functions, vf_entries, scope)
    if vfs:
        return replace(gpu, backend=Backend.SRIOV_VF, mode=GpuMode.SRIOV, functions=vfs)
    if gpu.driver == "vfio-pci" or gpu.vfs_total == 0:
        mode = GpuMode.PASSTHROUGH if gpu.driver == "vfio-pci" else GpuMode.UNMANAGED
        return replace(gpu, backend=Backend.PASSTHROUGH, mode=mode, functions=(own,))
    return replace(gpu, functions=(own,))


def _read_vfs(
    sysfs: Sysfs, path: str, entries: frozenset[str]
) -> tuple[tuple[GpuFunction, ...], tuple[frozenset[str], ...], tuple[str, ...]]:
    """Read the VFs in the order of the virtfnN links; with 48 VFs, not all share the PF's PCI slot."""
    numbers = sorted(int(number[1]) for number in map(_VIRTFN.fullmatch, entries) if number is not None)
    functions: list[GpuFunction] = []
    listings: list[frozenset[str]] = []
    problems: list[str] = []
    for number in numbers:
        try:
            address = _read_link_name(sysfs, f"{path}/virtfn{number}")
            if not is_pci_address(address):
                raise _malformed_error(f"{path}/virtfn{number}", address)
            function, vf_entries = _read_vf(sysfs, address)
            functions.append(function)
            listings.append(vf_entries)
        except OSError as error:
            problems.append(f"virtfn{number} is ignored: {error.strerror or error} ({error.filename or path})")
    return tuple(functions), tuple(listings), tuple(problems)


def _read_vf(sysfs: Sysfs, address: str) -> tuple[GpuFunction, frozenset[str]]:
    """Return a VF and the names in its directory."""
    path = f"{PCI_DEVICES}/{address}"
    entries = frozenset(sysfs.listdir(path))
    driver = _read_link_name(sysfs, f"{path}/driver") if "driver" in entries else None
    return _build_function(address, entries, driver, _read_iommu_group(sysfs, path, entries)), entries


def _build_function(address: str, entries: frozenset[str], driver: str | None, group: int | None) -> GpuFunction:
    return GpuFunction(
        address=address,
        path=f"{PCI_DEVICES}/{address}",
        driver=driver,
        iommu_group=group,
        has_vfio_dev="vfio-dev" in entries,
    )


def _console_reasons(sysfs: Sysfs, path: str, entries: frozenset[str]) -> tuple[str, ...]:
    """Return why the host's console may be on this GPU: it is the boot display."""
    if "boot_vga" in entries and sysfs.read(f"{path}/boot_vga").strip() == "1":
        return ("it is the boot display (boot_vga)",)
    return ()


def _group_members(sysfs: Sysfs, address: str, group: int | None) -> tuple[IommuGroupMember, ...]:
    """Return the other endpoints of the IOMMU group; bridges do not matter (kernel vfio.rst)."""
    if group is None:
        return ()
    members = []
    for other in sysfs.listdir(f"/sys/kernel/iommu_groups/{group}/devices"):
        if other == address:
            continue
        entries = sysfs.listdir(f"{PCI_DEVICES}/{other}")
        if sysfs.read(f"{PCI_DEVICES}/{other}/class").startswith(_BRIDGE_CLASS):
            continue
        driver = _read_link_name(sysfs, f"{PCI_DEVICES}/{other}/driver") if "driver" in entries else None
        members.append(IommuGroupMember(other, driver, other.rpartition(".")[0] == address.rpartition(".")[0]))
    return tuple(members)


def _other_parents(sysfs: Sysfs, scope: ReadScope, parents: tuple[str, ...], warnings: list[str]) -> list[Gpu]:
    """Return the mdev parents that are not PCI functions, such as the kernel's mtty."""
    gpus = []
    for name in parents:
        if normalize_pci(name) is not None or (scope.gpu_addresses is not None and name not in scope.gpu_addresses):
            continue
        path = f"{MDEV_BUS}/{name}"
        gpu = Gpu(
            address=name,
            path=path,
            model=name,
            driver=name,
            backend=Backend.MDEV_PF,
            mode=GpuMode.VGPU,
            is_display_class=True,
        )
        try:
            entries = sysfs.listdir(path)
            gpus.append(mdev.add_types(sysfs, gpu, (GpuFunction(address=name, path=path),), (entries,), scope))
        except OSError as error:
            warnings.append(_left_out_warning(name, error, path))
    return gpus


def _read_pci_path(sysfs: Sysfs, path: str) -> tuple[str, ...]:
    """Return the root bus and the bridges above a device; empty where its directory is not a link, as in a copy."""
    try:
        target = sysfs.readlink(path)
    except OSError:
        return ()
    return tuple(target.rpartition("/devices/")[2].split("/")[:-1])


def _read_iommu_group(sysfs: Sysfs, path: str, entries: frozenset[str]) -> int | None:
    if "iommu_group" not in entries:
        return None
    return _parse_number(f"{path}/iommu_group", _read_link_name(sysfs, f"{path}/iommu_group"))


def _read_link_name(sysfs: Sysfs, path: str) -> str:
    return sysfs.readlink(path).rpartition("/")[2]


def _read_pci_id(sysfs: Sysfs, path: str) -> str:
    """Return a class, vendor or device id as the kernel writes it: 0x and hexadecimal digits (pci-sysfs.c)."""
    text = sysfs.read(path).strip()
    if _PCI_ID.fullmatch(text) is None:
        raise _malformed_error(path, text)
    return text


def _parse_number(path: str, text: str) -> int:
    number = parse_integer(text)
    if number is None or number < 0:
        raise _malformed_error(path, text)
    return number


def _malformed_error(path: str, text: str) -> OSError:
    """Return an error that leaves out one device, as an unreadable file does."""
    return OSError(errno.EINVAL, f"unexpected content: {text.strip()[:40]!a}", path)
