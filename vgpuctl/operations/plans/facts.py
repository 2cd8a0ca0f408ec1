# SPDX-License-Identifier: Apache-2.0
"""What a new VM needs from the host besides GPUs: `operations.facts` gathers it, this module checks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from vgpuctl.config.arguments import DEFAULT_DISK_GIB, WINDOWS_11
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import HostCannot, InUse, InvalidInput, NoSpace, NotFound, Refused
from vgpuctl.makers import maker_of, support_warnings
from vgpuctl.model.guest_driver import GuestDriver
from vgpuctl.model.numbers import format_bytes, format_mib
from vgpuctl.model.port_values import HypervisorCapabilities, ImageInfo, PoolInfo
from vgpuctl.model.request import ExistingDisk, NewDisk
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.operations.plans.chains import (
    NO_BACKING_CHAINS,
    BackingChains,
    copy_path,
    refuse_base_image,
    refuse_written_file,
)
from vgpuctl.operations.plans.guest_devices import (
    GuestHost,
    check_guest_devices,
    check_windows,
    refuse_bios_image,
)
from vgpuctl.operations.plans.guest_driver import check_guest_driver
from vgpuctl.operations.plans.guest_setup import check_guest_setup
from vgpuctl.operations.plans.rendering import check_rendering
from vgpuctl.value import EMPTY_MAPPING, Value

if TYPE_CHECKING:
    from vgpuctl.domain.render import DomainTemplate

DEFAULT_POOL_PATH = "/var/lib/libvirt/images"
DISK_FORMATS = ("raw", "qcow2", "directory", "unknown")
"""The formats that a disk may have; other checks refuse the last two."""


class GpuHolders(Value):
    """Processes that have a GPU open, through display nodes (/dev/dri) or compute nodes (/dev/nvidiaN)."""

    display: tuple[str, ...] = ()
    compute: tuple[str, ...] = ()


def refuse_open_gpus(holders: Mapping[str, GpuHolders], *, force_console: bool) -> None:
    """Refuse whole GPUs that a process has open: unbinding one would wait in the kernel for that process.

    Raises:
        InUse: naming the processes. `force_console` waives only those that hold the display nodes.
    """
    for gpu, its_holders in holders.items():
        processes = (*its_holders.compute, *(() if force_console else its_holders.display))
        if processes:
            hint = (
                "stop them first"
                if its_holders.compute
                else "stop them first, or take the console with --force-console"
            )
            raise InUse(f"{gpu} is held by {', '.join(processes)}", hint=hint, gpu=gpu, holders=list(processes))


class HostFacts(Value):
    """Facts of the host. `files` maps every path in the request (image, disks, cdrom) to its file, None for no file.

    `holders`: the processes that have a GPU of a passthrough request open, by GPU; `bars_mib`: the size of the BARs of
    each function.
    `chains`: who already uses which file. `image_hints`: for a path without an image, the hint that names images.
    `file_system_bytes`: the size of the file system that holds the pool, or would hold it. `guest`: what the network
    cards, CPUs and huge pages of the request need. `driver`: the one that the guest is to get. `render_links`: the
    names that udev gives the GPUs' nodes, for a request that needs one.
    """

    capabilities: HypervisorCapabilities
    pool: PoolInfo | None
    template: DomainTemplate
    files: Mapping[str, ImageInfo | None] = EMPTY_MAPPING
    holders: Mapping[str, GpuHolders] = EMPTY_MAPPING
    bars_mib: Mapping[str, int] = EMPTY_MAPPING
    chains: BackingChains = NO_BACKING_CHAINS
    image_hints: Mapping[str, str] = EMPTY_MAPPING
    host_memory_mib: int | None = None
    file_system_bytes: int | None = None
    guest: GuestHost = GuestHost()
    driver: GuestDriver | None = None
    render_links: frozenset[str] = frozenset()


def check_facts(
    snapshot: Snapshot, request: VmRequest, vgpus: tuple[AssignedVgpu, ...], facts: HostFacts, *, vms: int = 1
) -> tuple[str, ...]:
    """Check everything that new VMs need before the first write, and return warnings. `vms`: how many there are.

    Raises:
        HostCannot, InvalidInput, NotFound, NoSpace, InUse: as the message says.
    """
    check_windows(request, facts.capabilities)
    check_rendering(request, facts.capabilities)
    refuse_excess_memory(request.memory_mib, facts.host_memory_mib)
    check_guest_devices(snapshot, request, vgpus, facts.guest, vms)
    _check_cloud_init(request)
    setup_warnings = check_guest_setup(snapshot, request, vgpus)
    if facts.driver is not None:
        setup_warnings += check_guest_driver(snapshot, facts.driver, vgpus, facts.capabilities.arch, request.os)
    disks = [d.path for d in request.disks if isinstance(d, ExistingDisk)]
    warnings = check_files(
        facts.chains, facts.files, facts.image_hints, bases=[request.image] if request.image else [], disks=disks
    )
    refuse_open_gpus(facts.holders, force_console=request.force_console)
    if needs_pool(request):
        check_pool(request.storage_pool, facts.pool)
        check_full_size(facts.pool, _disk_sizes(request, facts), vms=vms)
    _check_sizes(request, facts)
    return (*warnings, *setup_warnings, *_maker_warnings(snapshot, vgpus, facts.capabilities))


def _maker_warnings(
    snapshot: Snapshot, vgpus: tuple[AssignedVgpu, ...], capabilities: HypervisorCapabilities
) -> tuple[str, ...]:
    """Return what the makers of the chosen GPUs say about such vGPUs; what concerns the machine q35 is for x86 only."""
    chosen = [(gpu, vgpu) for vgpu in vgpus if (gpu := snapshot.gpu(vgpu.gpu)) is not None and vgpu.profile is not None]
    about_types = (maker_of(gpu).type_warning(vgpu.profile or "") for gpu, vgpu in chosen if capabilities.is_x86)
    about_gpus = support_warnings(gpu for gpu, _ in chosen)
    return tuple(dict.fromkeys((*about_gpus, *(text for text in about_types if text is not None))))


def refuse_excess_memory(requested_mib: int, host_mib: int | None) -> None:
    """Refuse more memory than the host has: libvirt defines such a VM, and it never starts.

    Raises:
        HostCannot: naming both sizes.
    """
    if host_mib is not None and requested_mib > host_mib:
        raise HostCannot(
            f"a VM with {format_mib(requested_mib)} of memory does not fit: this host has {format_mib(host_mib)}",
            hint="use a smaller --memory",
            check="memory",
            memory_mib=requested_mib,
            host_memory_mib=host_mib,
        )


def _check_sizes(request: VmRequest, facts: HostFacts) -> None:
    """Refuse a disk larger than its file system, although a thin volume of that size can be created there."""
    file_system_bytes = facts.file_system_bytes
    for disk in request.disks:
        if isinstance(disk, NewDisk) and file_system_bytes is not None and disk.size_mib << 20 > file_system_bytes:
            raise NoSpace(
                f"a disk of {format_mib(disk.size_mib)} does not fit: the file system of the storage pool "
                f"'{request.storage_pool}' has {format_bytes(file_system_bytes)}",
                hint="make the disk smaller, or choose another pool with --storage-pool",
                pool=request.storage_pool,
                size_bytes=disk.size_mib << 20,
                file_system_bytes=file_system_bytes,
            )


def _check_cloud_init(request: VmRequest) -> None:
    if request.seed is not None and not has_boot_source(request):
        raise InvalidInput(
            "cloud-init needs an operating system, but the VM's disk would be empty",
            hint="use --image BASE.qcow2 or --disk PATH, or --cdrom with an installer that supports cloud-init",
            needed_for=list(request.seed.sources),
        )


def check_files(
    chains: BackingChains,
    files: Mapping[str, ImageInfo | None],
    image_hints: Mapping[str, str],
    *,
    bases: Sequence[str] = (),
    disks: Sequence[str] = (),
) -> tuple[str, ...]:
    """Check existing images and disks, and return warnings. `bases` will be cloned, `disks` written to.

    Raises:
        NotFound, InvalidInput, HostCannot, Refused, InUse: as the message says.
    """
    for path, image in files.items():
        if image is None:
            raise NotFound(f"file {path} does not exist", hint=image_hints.get(path), path=path)
        if image.format == "directory":
            raise InvalidInput(f"{path} is a directory, not an image", hint=image_hints.get(path), path=path)
        if path in (*bases, *disks):
            _refuse_unsafe(path, image)
        if image.access_problem:
            raise HostCannot(
                f"QEMU cannot use {path}: {image.access_problem}",
                hint="move it below /var/lib/libvirt/images, or give QEMU's user access to the directory",
                check="image-access",
                path=path,
            )
    warnings: dict[str, None] = {}
    for path in (*bases, *disks):
        file_info = files[path]
        backing_paths = (
            () if file_info is None else tuple(backing_file.path for backing_file in file_info.backing_chain[1:])
        )
        refuse_written_file(chains, path, backing_paths)
        if path in disks:
            refuse_base_image(chains, path)
        warnings.update(dict.fromkeys(() if file_info is None else file_info.exposures))
    return tuple(warnings)


def _refuse_unsafe(path: str, image: ImageInfo) -> None:
    """Refuse an image in another format, or one that names other files: QEMU would open any file it names."""
    is_known_format = image.format in DISK_FORMATS
    if is_known_format and not image.unsafe_reason:
        return
    source_format = image.convert_format if is_known_format else image.format
    command = f"qemu-img convert -f {source_format} -O qcow2 {quote(path)} {quote(copy_path(path))}"
    raise Refused(
        f"{path} is not passed to QEMU: {image.unsafe_reason or f'it is a {image.format} image, not raw or qcow2'}",
        hint=f"{command} converts it into one plain file, if you trust it" if source_format else None,
        path=path,
        format=image.format,
    )


def _disk_sizes(request: VmRequest, facts: HostFacts) -> list[int]:
    """Return the sizes in bytes of the volumes that a new VM gets."""
    image = facts.files.get(request.image) if request.image is not None else None
    sizes = [] if image is None else [image.virtual_size_bytes]
    sizes += [d.size_mib << 20 for d in request.disks if isinstance(d, NewDisk)]
    if not sizes and creates_disks(request):
        sizes.append(DEFAULT_DISK_GIB << 30)
    return [*sizes, SEED_BYTES] if request.seed is not None else sizes


def needs_pool(request: VmRequest) -> bool:
    """Say whether the request creates any volume."""
    return creates_disks(request) or request.seed is not None


def has_boot_source(request: VmRequest) -> bool:
    """Say whether the request names something bootable."""
    has_existing_disk = any(isinstance(d, ExistingDisk) for d in request.disks)
    return request.image is not None or request.cdrom is not None or has_existing_disk


def creates_disks(request: VmRequest) -> bool:
    """Say whether the request creates any disk."""
    only_existing = bool(request.disks) and all(isinstance(d, ExistingDisk) for d in request.disks)
    if request.image is not None:
        return True
    return not only_existing and not (request.cdrom is not None and not request.disks)


def _require_uefi(capabilities: HypervisorCapabilities, bios_image: str | None) -> None:
    """Refuse what cannot boot where there is no BIOS.

    Raises:
        InvalidInput: the image boots only with BIOS.
        HostCannot: libvirt finds no UEFI firmware.
    """
    if bios_image is not None:
        raise InvalidInput(
            f"{bios_image} boots only with BIOS, and VMs of this host ({capabilities.arch}) boot only with UEFI",
            hint=f"use an image for {capabilities.arch}",
            image=bios_image,
        )
    if not capabilities.uefi:
        raise HostCannot(
            f"VMs of this host ({capabilities.arch}) boot only with UEFI, and libvirt finds no UEFI firmware here",
            hint="apt install qemu-efi-aarch64 (Debian, Ubuntu) or dnf install edk2-aarch64 (RHEL, Fedora)",
            check="uefi",
        )


def choose_firmware(request: VmRequest, facts: HostFacts) -> str:
    """Return "uefi" or "bios", by what the image needs and the host has.

    Where there is no BIOS: UEFI. linux: UEFI, which large BARs require, unless the image boots only with BIOS. generic:
    BIOS, unless the image boots only with UEFI. windows11: UEFI.

    Raises:
        InvalidInput: the image of a Windows 11 VM boots only with BIOS.
        HostCannot: the image needs UEFI and libvirt finds no firmware.
    """
    boot_path = request.image or next((d.path for d in request.disks if isinstance(d, ExistingDisk)), None)
    image = facts.files.get(boot_path) if boot_path else None
    needed_firmware = image.firmware if image is not None else "none"
    if needed_firmware == "uefi" and not facts.capabilities.uefi:
        raise HostCannot(
            f"{boot_path} boots only with UEFI, and libvirt finds no UEFI firmware on this host",
            hint="apt install ovmf (Debian, Ubuntu) or dnf install edk2-ovmf (RHEL, Fedora)",
            check="uefi",
            image=boot_path,
        )
    if request.os == WINDOWS_11:
        if needed_firmware == "bios":
            refuse_bios_image(str(boot_path))
        return "uefi"
    if not facts.capabilities.is_x86:
        _require_uefi(facts.capabilities, str(boot_path) if needed_firmware == "bios" else None)
        return "uefi"
    if needed_firmware in ("uefi", "bios"):
        return needed_firmware
    return "uefi" if request.os == "linux" and facts.capabilities.uefi else "bios"


DEFAULT_POOL = "default"
MIN_POOL_FREE_BYTES = 64 << 20
DIRECTORY_POOLS = ("dir", "fs", "netfs")
LOGICAL_POOL = "logical"
SEED_BYTES = 4 << 20
"""A seed for cloud-init on a logical pool: one extent of LVM's usual size."""


def is_logical(pool: PoolInfo | None) -> bool:
    """Say whether a pool is an LVM volume group: its disks are raw volumes of full size."""
    return pool is not None and pool.kind == LOGICAL_POOL


def check_pool(name: str, pool: PoolInfo | None) -> None:
    """Check the pool in which to create volumes.

    Raises:
        NotFound, HostCannot, NoSpace: as the message says.
    """
    if pool is None:
        if name == DEFAULT_POOL:
            return
        raise NotFound(
            f"libvirt has no storage pool '{name}'",
            hint="virsh pool-list --all shows the pools",
            pool=name,
        )
    if pool.path is None or pool.kind not in (*DIRECTORY_POOLS, LOGICAL_POOL):
        supported = ", ".join((*DIRECTORY_POOLS, LOGICAL_POOL))
        raise HostCannot(
            f"the storage pool '{pool.name}' is of kind {pool.kind}; vgpuctl creates disks only in pools of the kinds "
            f"{supported}",
            hint="choose another pool with --storage-pool; virsh pool-list --all --details shows them",
            check="pool-kind",
            pool=pool.name,
            kind=pool.kind,
        )
    free = pool.available_bytes
    if free is not None and free < MIN_POOL_FREE_BYTES and not is_logical(pool):
        raise NoSpace(
            f"the storage pool '{pool.name}' is full: {format_bytes(free)} free in {pool.path}",
            hint="delete what is not needed, or choose another pool with --storage-pool",
            pool=pool.name,
            available_bytes=free,
        )


def check_full_size(pool: PoolInfo | None, sizes: Sequence[int], *, vms: int = 1, growth: bool = False) -> None:
    """Check that disks of these sizes fit into a logical pool, once for each of several VMs.

    `growth`: a disk that is there grows by the size.
    An inactive pool reports no sizes: LVM itself refuses then, and what was made is undone.

    Raises:
        NoSpace: with what they need, what is free, and the pool's size.
    """
    if pool is None or pool.kind != LOGICAL_POOL or pool.available_bytes is None:
        return
    needed = sum(sizes) * vms
    if needed <= pool.available_bytes:
        return
    count = len(sizes) * vms
    what = f"{count} disks need" if count != 1 else "the disk needs"
    size = f"{format_bytes(needed)}{' more' if growth else ''}"
    total = "" if pool.capacity_bytes is None else f" of {format_bytes(pool.capacity_bytes)}"
    raise NoSpace(
        f"{what} {size}, and the storage pool '{pool.name}' has {format_bytes(pool.available_bytes)}{total} free: "
        "it is logical, where a disk takes its full size at once",
        hint=f"vgpuctl list-images --pool {quote(pool.name)} shows what takes it; or add a disk to the volume group: "
        "vgextend; or choose another pool with --storage-pool",
        pool=pool.name,
        needed_bytes=needed,
        available_bytes=pool.available_bytes,
        capacity_bytes=pool.capacity_bytes,
    )
