# SPDX-License-Identifier: Apache-2.0
"""What a new VM needs to know of the host beside its GPUs, gathered by the engine and judged here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from vgpuctl.errors import HostCannot, InUse, InvalidInput, NoSpace, NotFound, Refused
from vgpuctl.model.records import HypervisorCapabilities, ImageRecord, NetworkRecord, PoolRecord
from vgpuctl.model.sizes import bytes_text, mib_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import PromisedVgpu
from vgpuctl.model.wish import ExistingDisk, NewDisk, VmWish
from vgpuctl.plan.chains import NO_CHAINS, Chains, copy_of, refuse_base, refuse_written
from vgpuctl.plan.windows import WINDOWS_11, check_windows, refuse_bios
from vgpuctl.value import NOTHING, Value

if TYPE_CHECKING:
    from vgpuctl.domain.render import Template

DEFAULT_POOL = "default"
DEFAULT_POOL_PATH = "/var/lib/libvirt/images"
POOL_RESERVE_BYTES = 64 << 20
POOL_KINDS = ("dir", "fs", "netfs")
DISK_FORMATS = ("raw", "qcow2", "directory", "unknown")
"""Those that a disk may have; the last two have a problem of their own."""


class GpuHolders(Value):
    """Who has a GPU open: through its display nodes (/dev/dri), and through its compute nodes (/dev/nvidiaN)."""

    display: tuple[str, ...] = ()
    compute: tuple[str, ...] = ()


def refuse_held(gpu: str, holders: GpuHolders, *, force_console: bool) -> None:
    """Refuse a whole GPU that a process has open: unbinding it would wait in the kernel for that process.

    Raises:
        InUse: naming the processes. `force_console` waives the display's only.
    """
    who = (*holders.compute, *(() if force_console else holders.display))
    if who:
        hint = "stop them first" if holders.compute else "stop them first, or take the console with --force-console"
        raise InUse(f"{gpu} is held by {', '.join(who)}", hint=hint, gpu=gpu, holders=list(who))


class Facts(Value):
    """`files` maps every path the wish names (image, disks, cdrom) to what is there, None for nothing.

    `holders`: who has the GPU of a passthrough wish open; `bars_mib`: the size of its BARs. `chains`: who has which
    file already. `meant`: for a path without an image those that may have been meant.
    `file_system_bytes`: how large the file system is on which the pool is, or would be made.
    """

    capabilities: HypervisorCapabilities
    network: NetworkRecord | None
    pool: PoolRecord | None
    template: Template
    files: Mapping[str, ImageRecord | None] = NOTHING
    holders: GpuHolders = GpuHolders()
    bars_mib: int = 0
    chains: Chains = NO_CHAINS
    meant: Mapping[str, tuple[str, ...]] = NOTHING
    host_memory_mib: int | None = None
    file_system_bytes: int | None = None


def check_facts(snapshot: Snapshot, wish: VmWish, vgpus: tuple[PromisedVgpu, ...], facts: Facts) -> tuple[str, ...]:
    """Check everything a new VM needs before the first write, and return warnings.

    Raises:
        HostCannot, InvalidInput, NotFound, NoSpace, InUse: as the message says.
    """
    check_windows(wish, facts.capabilities)
    refuse_memory(wish.memory_mib, facts.host_memory_mib)
    _check_network(wish, facts)
    _check_cloud_init(wish)
    disks = [d.path for d in wish.disks if isinstance(d, ExistingDisk)]
    warnings = check_files(
        facts.chains, facts.files, facts.meant, bases=[wish.image] if wish.image else [], disks=disks
    )
    if vgpus:
        refuse_held(vgpus[0].gpu, facts.holders, force_console=wish.force_console)
    if needs_pool(wish):
        warnings += check_pool(wish.storage_pool, facts.pool)
    _check_sizes(wish, facts)
    return warnings


def refuse_memory(wanted_mib: int, host_mib: int | None) -> None:
    """Refuse more memory than the host has: libvirt defines such a VM, and it never starts.

    Raises:
        HostCannot: naming both.
    """
    if host_mib is not None and wanted_mib > host_mib:
        raise HostCannot(
            f"a VM with {mib_text(wanted_mib)} of memory does not fit: this host has {mib_text(host_mib)}",
            hint="give it less with --memory",
            check="memory",
            memory_mib=wanted_mib,
            host_memory_mib=host_mib,
        )


def _check_sizes(wish: VmWish, facts: Facts) -> None:
    """Refuse a disk that its file system could never hold, although a thin one can be made there."""
    most = facts.file_system_bytes
    for disk in wish.disks:
        if isinstance(disk, NewDisk) and most is not None and disk.size_mib << 20 > most:
            raise NoSpace(
                f"a disk of {mib_text(disk.size_mib)} does not fit: the file system of the storage pool "
                f"'{wish.storage_pool}' has {bytes_text(most)}",
                hint="make it smaller, or choose another pool with --storage-pool",
                pool=wish.storage_pool,
                size_bytes=disk.size_mib << 20,
                file_system_bytes=most,
            )


def _check_network(wish: VmWish, facts: Facts) -> None:
    if facts.network is None:
        raise HostCannot(
            f"libvirt has no network '{wish.network}'",
            hint="virsh net-list --all shows those there are; choose one with --network",
            check="network",
            network=wish.network,
        )
    if not facts.network.active:
        raise HostCannot(
            f"the network '{wish.network}' is not active",
            hint=f"virsh net-start {wish.network}",
            check="network",
            network=wish.network,
        )


def _check_cloud_init(wish: VmWish) -> None:
    if wish.cloud_init is not None and not has_system(wish):
        raise InvalidInput(
            "cloud-init sets a system up, and none is given: the VM's disk would be empty",
            hint="give one with --image BASE.qcow2 or --disk PATH, or an installer that knows cloud-init with --cdrom",
            path=wish.cloud_init.path,
        )


def check_files(
    chains: Chains,
    files: Mapping[str, ImageRecord | None],
    meant: Mapping[str, tuple[str, ...]],
    *,
    bases: Sequence[str] = (),
    disks: Sequence[str] = (),
) -> tuple[str, ...]:
    """Check images and disks that exist, and return warnings. `bases` are to be cloned, `disks` to be written to.

    Raises:
        NotFound, InvalidInput, HostCannot, Refused, InUse: as the message says.
    """
    for path, record in files.items():
        shown = f"did you mean {' or '.join(meant[path])}? " if meant.get(path) else ""
        hint = f"{shown}vgpuctl list-images shows the images that are known"
        if record is None:
            raise NotFound(f"there is no file {path}", hint=hint, path=path)
        if record.format == "directory":
            raise InvalidInput(f"{path} is a directory, not an image", hint=hint, path=path)
        if path in (*bases, *disks):
            _refuse_unsafe(path, record)
        if record.problem:
            raise HostCannot(
                f"QEMU cannot use {path}: {record.problem}",
                hint="move it below /var/lib/libvirt/images, or open the directory to QEMU's user",
                check="image-access",
                path=path,
            )
    warnings: dict[str, None] = {}
    for path in (*bases, *disks):
        found = files[path]
        below = () if found is None else tuple(one.path for one in found.chain[1:])
        refuse_written(chains, path, below)
        if path in disks:
            refuse_base(chains, path)
        warnings.update(dict.fromkeys(() if found is None else found.exposed))
    return tuple(warnings)


def _refuse_unsafe(path: str, record: ImageRecord) -> None:
    """Refuse an image in another format, and one that names other files: QEMU would open whatever it names."""
    known = record.format in DISK_FORMATS
    if known and not record.refusal:
        return
    form = record.convert if known else record.format
    convert = f"qemu-img convert -f {form} -O qcow2 {quote(path)} {quote(copy_of(path))}"
    raise Refused(
        f"{path} is not given to QEMU: {record.refusal or f'it is a {record.format} image, not raw or qcow2'}",
        hint=f"if you trust it, make one plain file of it: {convert}" if form else None,
        path=path,
        format=record.format,
    )


def check_pool(name: str, pool: PoolRecord | None) -> tuple[str, ...]:
    """Check the pool in which volumes are to be made, and return warnings.

    Raises:
        NotFound, HostCannot, NoSpace: as the message says.
    """
    if pool is None:
        if name == DEFAULT_POOL:
            return ()
        raise NotFound(
            f"libvirt has no storage pool '{name}'",
            hint="virsh pool-list --all shows those there are",
            pool=name,
        )
    if pool.path is None or pool.kind not in POOL_KINDS:
        raise HostCannot(
            f"the storage pool '{pool.name}' is of kind {pool.kind}, which has no directory for qcow2 disks",
            hint="choose a directory pool with --storage-pool",
            check="pool-kind",
            pool=pool.name,
        )
    free = pool.available_bytes
    if free is not None and free < POOL_RESERVE_BYTES:
        raise NoSpace(
            f"the storage pool '{pool.name}' is full: {bytes_text(free)} free in {pool.path}",
            hint="delete what is not needed, or choose another pool with --storage-pool",
            pool=pool.name,
            available_bytes=free,
        )
    return ()


def needs_pool(wish: VmWish) -> bool:
    """Say whether the wish makes any volume."""
    return makes_disks(wish) or wish.cloud_init is not None


def has_system(wish: VmWish) -> bool:
    """Say whether something bootable was given."""
    given = any(isinstance(d, ExistingDisk) for d in wish.disks)
    return wish.image is not None or wish.cdrom is not None or given


def makes_disks(wish: VmWish) -> bool:
    """Say whether the wish makes any disk."""
    only_existing = bool(wish.disks) and all(isinstance(d, ExistingDisk) for d in wish.disks)
    if wish.image is not None:
        return True
    return not only_existing and not (wish.cdrom is not None and not wish.disks)


def choose_firmware(wish: VmWish, facts: Facts) -> str:
    """Return "uefi" or "bios" by what the image needs and the host has.

    linux: UEFI, which large BARs want, unless the image boots only with BIOS. generic: BIOS, unless the image
    boots only with UEFI. windows11: UEFI.

    Raises:
        InvalidInput: the image of a Windows 11 boots only with BIOS.
        HostCannot: the image needs UEFI and libvirt finds no firmware.
    """
    first = wish.image or next((d.path for d in wish.disks if isinstance(d, ExistingDisk)), None)
    record = facts.files.get(first) if first else None
    needs = record.firmware if record is not None else "none"
    if needs == "uefi" and not facts.capabilities.uefi:
        raise HostCannot(
            f"{first} boots only with UEFI, and libvirt finds no UEFI firmware on this host",
            hint="apt install ovmf (Debian, Ubuntu) or dnf install edk2-ovmf (RHEL, Fedora)",
            check="uefi",
            image=first,
        )
    if wish.os == WINDOWS_11:
        if needs == "bios":
            refuse_bios(str(first))
        return "uefi"
    if needs in ("uefi", "bios"):
        return needs
    return "uefi" if wish.os == "linux" and facts.capabilities.uefi else "bios"
