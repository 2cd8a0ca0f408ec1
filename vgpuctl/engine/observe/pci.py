# SPDX-License-Identifier: Apache-2.0
"""Find the GPUs of a host in /sys and say what each one offers.

A directory listing tells which files exist, so that nothing is opened in vain and no file is read twice. The
files of a PF are never read by pattern: some drivers act when one is read (AMD's reset_gpu resets the card).
Sources: Linux Documentation/ABI/testing/sysfs-bus-pci, sysfs-bus-vfio-mdev; NVIDIA's VF attributes
`nvidia/creatable_vgpu_types` and `nvidia/current_vgpu_type`, `nvidia/placement_id` and `nvidia/gpu_instance_id`.
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from vgpuctl.engine.observe import mdev, names, vendor
from vgpuctl.engine.observe.places import add_places
from vgpuctl.model.address import address_key, is_pci, normal_pci
from vgpuctl.model.digits import whole
from vgpuctl.model.gpu import Backend, Function, Gpu, GroupMember, Mode
from vgpuctl.model.records import NvmlStatus
from vgpuctl.model.world import World
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.engine.observe import Want
    from vgpuctl.model.seams import Sysfs

PCI = "/sys/bus/pci/devices"
MDEV_BUS = "/sys/class/mdev_bus"
_GPU_CLASSES = ("0x03", "0x12")
_BRIDGE_CLASS = "0x06"
_IDENTITY = re.compile(r"0x[0-9a-f]{4,6}", re.ASCII)
_VIRTFN = re.compile(r"virtfn([0-9]{1,5})", re.ASCII)


class Found(Value):
    """The GPUs, and what could not be seen."""

    gpus: tuple[Gpu, ...]
    nvml: NvmlStatus
    warnings: tuple[str, ...]


def read_gpus(world: World, want: Want) -> Found:
    """Read every GPU that `want` asks for, sorted by address."""
    sysfs = world.sysfs
    warnings: list[str] = []
    gpus: list[Gpu] = []
    parents = mdev.parents(sysfs)
    for address in _candidates(sysfs, want, warnings):
        try:
            gpu = _read_pci(sysfs, address, want, parents)
        except OSError as error:
            warnings.append(_left_out(address, error, PCI))
            continue
        if gpu is not None:
            gpus.append(gpu)
    gpus += _other_parents(sysfs, want, parents, warnings)
    named, status = names.add_names(world, tuple(gpus), want)
    placed = [add_places(sysfs, gpu) for gpu in named]
    return Found(tuple(sorted(placed, key=lambda g: address_key(g.address))), status, tuple(warnings))


def _left_out(name: str, error: OSError, path: str) -> str:
    return f"{name} is left out: {error.strerror or error} ({error.filename or path})"


def _candidates(sysfs: Sysfs, want: Want, warnings: list[str]) -> tuple[str, ...]:
    """Return the PCI functions worth a look."""
    if want.only is not None:
        return tuple(a for a in sorted(want.only) if normal_pci(a) == a)
    try:
        return sysfs.listdir(PCI)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            warnings.append(f"PCI devices cannot be listed: {error}")
        return ()


def _read_again(sysfs: Sysfs, address: str, want: Want) -> Gpu | None:
    """Return a GPU seen a moment ago with those of its VFs read that are asked for; None when all are to be read."""
    known = next((g for g in want.known if g.address == address and g.backend is Backend.VENDOR_VF), None)
    if known is None or want.functions is None:
        return None
    try:
        functions = tuple(
            _offered(sysfs, f.address, want) if f.address in want.functions else f for f in known.functions
        )
    except OSError:
        return None  # a VF is gone: how many there are is to be read again
    return replace(known, functions=functions)


def _offered(sysfs: Sysfs, address: str, want: Want) -> Function:
    function, entries = _read_vf(sysfs, address)
    return vendor.read_function(sysfs, function, {}, want, offers="nvidia" in entries)


def _read_pci(sysfs: Sysfs, address: str, want: Want, parents: tuple[str, ...]) -> Gpu | None:
    again = _read_again(sysfs, address, want)
    if again is not None:
        return again
    path = f"{PCI}/{address}"
    pci_class = _identity(sysfs, f"{path}/class")
    display = pci_class.startswith(_GPU_CLASSES)
    if not (display or want.every_function or want.only or address in parents):
        return None
    if pci_class.startswith(_BRIDGE_CLASS):
        return None
    entries = frozenset(sysfs.listdir(path))
    if "physfn" in entries:
        return None
    driver = _link(sysfs, f"{path}/driver") if "driver" in entries else None
    parent = "mdev_supported_types" in entries
    if not display and not parent and not want.only:
        listed = "sriov_totalvfs" in entries or driver in (None, "vfio-pci")
        if not listed:
            return None
    return _gpu(sysfs, address, entries, driver, want, display=display)


def _gpu(
    sysfs: Sysfs,
    address: str,
    entries: frozenset[str],
    driver: str | None,
    want: Want,
    *,
    display: bool,
) -> Gpu:
    path = f"{PCI}/{address}"
    vendor_id = _identity(sysfs, f"{path}/vendor").removeprefix("0x")
    device_id = _identity(sysfs, f"{path}/device").removeprefix("0x")
    numa = whole(sysfs.read(f"{path}/numa_node")) if "numa_node" in entries else None
    total = (
        _number(f"{path}/sriov_totalvfs", sysfs.read(f"{path}/sriov_totalvfs")) if "sriov_totalvfs" in entries else 0
    )
    group = _group(sysfs, path, entries)
    own = _function(address, entries, driver, group)
    vfs, vf_entries, problems = _read_vfs(sysfs, path, entries)
    gpu = Gpu(
        address=address,
        path=path,
        model=f"{vendor_id}:{device_id}",
        driver=driver,
        backend=None,
        mode=Mode.UNMANAGED,
        vendor_id=vendor_id,
        device_id=device_id,
        numa_node=None if numa is None or numa < 0 else numa,
        iommu_group=group,
        vfs_total=total,
        vfs_enabled=len(vfs) + len(problems),
        display_class=display,
        console=_console(sysfs, path, entries),
        group_members=_group_members(sysfs, address, group) if not vfs else (),
        problems=problems,
    )
    return _with_backend(sysfs, gpu, own, vfs, entries, vf_entries, want)


def _with_backend(
    sysfs: Sysfs,
    gpu: Gpu,
    own: Function,
    vfs: tuple[Function, ...],
    entries: frozenset[str],
    vf_entries: tuple[frozenset[str], ...],
    want: Want,
) -> Gpu:
    """Decide what the GPU offers from the directories that exist, per card and never per host."""
    if "mdev_supported_types" in entries:
        gpu = replace(gpu, backend=Backend.MDEV_PF, mode=Mode.VGPU)
        return mdev.add_types(sysfs, gpu, (own,), (entries,), want)
    if any("nvidia" in e for e in vf_entries):
        gpu = replace(gpu, backend=Backend.VENDOR_VF, mode=Mode.VGPU)
        offering = tuple((f, "nvidia" in e) for f, e in zip(vfs, vf_entries, strict=True))
        return vendor.add_types(sysfs, gpu, offering, want)
    if any("mdev_supported_types" in e for e in vf_entries):
        gpu = replace(gpu, backend=Backend.MDEV_VF, mode=Mode.VGPU)
        marked = tuple(
            f if "mdev_supported_types" in e else replace(f, problem="offers no vGPU types (no mdev_supported_types)")
            for f, e in zip(vfs, vf_entries, strict=True)
        )
        return mdev.add_types(sysfs, gpu, marked, vf_entries, want)
    if vfs:
        return replace(gpu, backend=Backend.SRIOV_VF, mode=Mode.SRIOV, functions=vfs)
    if gpu.driver == "vfio-pci" or gpu.vfs_total == 0:
        mode = Mode.PASSTHROUGH if gpu.driver == "vfio-pci" else Mode.UNMANAGED
        return replace(gpu, backend=Backend.PASSTHROUGH, mode=mode, functions=(own,))
    return replace(gpu, functions=(own,))


def _read_vfs(
    sysfs: Sysfs, path: str, entries: frozenset[str]
) -> tuple[tuple[Function, ...], tuple[frozenset[str], ...], tuple[str, ...]]:
    """Read the VFs in the order of the virtfnN links; with 48 of them they do not share the PF's slot."""
    numbers = sorted(int(number[1]) for number in map(_VIRTFN.fullmatch, entries) if number is not None)
    functions: list[Function] = []
    listings: list[frozenset[str]] = []
    problems: list[str] = []
    for number in numbers:
        try:
            address = _link(sysfs, f"{path}/virtfn{number}")
            if not is_pci(address):
                raise _malformed(f"{path}/virtfn{number}", address)
            function, names_ = _read_vf(sysfs, address)
            functions.append(function)
            listings.append(names_)
        except OSError as error:
            problems.append(f"virtfn{number} is left out: {error.strerror or error} ({error.filename or path})")
    return tuple(functions), tuple(listings), tuple(problems)


def _read_vf(sysfs: Sysfs, address: str) -> tuple[Function, frozenset[str]]:
    """Return a VF and the names in its directory."""
    path = f"{PCI}/{address}"
    entries = frozenset(sysfs.listdir(path))
    driver = _link(sysfs, f"{path}/driver") if "driver" in entries else None
    return _function(address, entries, driver, _group(sysfs, path, entries)), entries


def _function(address: str, entries: frozenset[str], driver: str | None, group: int | None) -> Function:
    return Function(
        address=address,
        path=f"{PCI}/{address}",
        driver=driver,
        iommu_group=group,
        vfio_dev="vfio-dev" in entries,
    )


def _console(sysfs: Sysfs, path: str, entries: frozenset[str]) -> tuple[str, ...]:
    """Return why the host's console may be on this GPU: it is the boot display."""
    if "boot_vga" in entries and sysfs.read(f"{path}/boot_vga").strip() == "1":
        return ("it is the boot display (boot_vga)",)
    return ()


def _group_members(sysfs: Sysfs, address: str, group: int | None) -> tuple[GroupMember, ...]:
    """Return the other endpoints of the IOMMU group; bridges do not matter (kernel vfio.rst)."""
    if group is None:
        return ()
    members = []
    for other in sysfs.listdir(f"/sys/kernel/iommu_groups/{group}/devices"):
        if other == address:
            continue
        entries = sysfs.listdir(f"{PCI}/{other}")
        if sysfs.read(f"{PCI}/{other}/class").startswith(_BRIDGE_CLASS):
            continue
        driver = _link(sysfs, f"{PCI}/{other}/driver") if "driver" in entries else None
        members.append(GroupMember(other, driver, other.rpartition(".")[0] == address.rpartition(".")[0]))
    return tuple(members)


def _other_parents(sysfs: Sysfs, want: Want, parents: tuple[str, ...], warnings: list[str]) -> list[Gpu]:
    """Return the mdev parents that are no PCI function, such as the kernel's mtty."""
    gpus = []
    for name in parents:
        if normal_pci(name) is not None or (want.only is not None and name not in want.only):
            continue
        path = f"{MDEV_BUS}/{name}"
        gpu = Gpu(
            address=name,
            path=path,
            model=name,
            driver=name,
            backend=Backend.MDEV_PF,
            mode=Mode.VGPU,
            display_class=True,
        )
        try:
            entries = sysfs.listdir(path)
            gpus.append(mdev.add_types(sysfs, gpu, (Function(address=name, path=path),), (entries,), want))
        except OSError as error:
            warnings.append(_left_out(name, error, path))
    return gpus


def _group(sysfs: Sysfs, path: str, entries: frozenset[str]) -> int | None:
    if "iommu_group" not in entries:
        return None
    return _number(f"{path}/iommu_group", _link(sysfs, f"{path}/iommu_group"))


def _link(sysfs: Sysfs, path: str) -> str:
    return sysfs.readlink(path).rpartition("/")[2]


def _identity(sysfs: Sysfs, path: str) -> str:
    """Return a class, vendor or device id as the kernel writes it: 0x and hexadecimal digits (pci-sysfs.c)."""
    text = sysfs.read(path).strip()
    if _IDENTITY.fullmatch(text) is None:
        raise _malformed(path, text)
    return text


def _number(path: str, text: str) -> int:
    number = whole(text)
    if number is None or number < 0:
        raise _malformed(path, text)
    return number


def _malformed(path: str, text: str) -> OSError:
    """Return the error that leaves one device out, as for a file that cannot be read."""
    return OSError(errno.EINVAL, f"it says {text.strip()[:40]!a}, which the kernel does not write there", path)
