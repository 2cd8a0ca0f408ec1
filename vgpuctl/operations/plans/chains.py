# SPDX-License-Identifier: Apache-2.0
"""Which files VMs use and what their backing files are: nobody may write to, or delete, a file that has clones.

Backing files are known from records, from the XML of domains and volumes, and from the files' headers. Two paths are
one file when their identities are equal: a link, a hard link, a bind mount.
"""

from __future__ import annotations

import shlex
import string
from collections.abc import Mapping, Sequence

from vgpuctl.domain.domain_xml import DiskSources
from vgpuctl.errors import InUse, Refused
from vgpuctl.model.port_values import VolumeInfo
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import DiskRef, DiskRole, ManagedDisk, Vm, VmRecord
from vgpuctl.operations.plans.images import DiskReferences, DiskUser, collect_references
from vgpuctl.value import EMPTY_MAPPING, Value, replace

_READ_ONLY = ("cdrom", "floppy")
_NOT_WRITTEN = (DiskRole.SEED, DiskRole.PREPARED)


class BackingChains(Value):
    """Who uses which file, and which file is a clone of which, by the files' identities.

    `user_names`: the VMs that use a file, `writers` those that may write to it. `direct_clones`: the files made from
    it, by path. `formats`: the formats in which VMs use a file. `unlisted_pools`: the pools whose volumes are unknown,
    each with the reason.
    """

    identities: Mapping[str, str]
    user_names: Mapping[str, frozenset[str]]
    writers: Mapping[str, frozenset[str]]
    direct_clones: Mapping[str, tuple[str, ...]]
    formats: Mapping[str, frozenset[str]] = EMPTY_MAPPING
    unlisted_pools: Mapping[str, str] = EMPTY_MAPPING

    def identity(self, path: str) -> str:
        """Return the identity of a file: its path if nothing else is known of it."""
        return self.identities.get(path, path)

    def users(self, path: str) -> frozenset[str]:
        """Return the VMs that have a file as a disk or CD-ROM, by any path."""
        return self.user_names.get(self.identity(path), frozenset())

    def clones(self, path: str) -> tuple[tuple[str, frozenset[str]], ...]:
        """Return every file whose backing chain contains this one, with the VMs that use it; the nearest first."""
        visited = {self.identity(path)}
        result: list[tuple[str, frozenset[str]]] = []
        level = list(visited)
        while level:
            next_level = sorted(
                clone
                for base in level
                for clone in self.direct_clones.get(base, ())
                if self.identity(clone) not in visited
            )
            result += [(clone, self.users(clone)) for clone in next_level]
            level = list(dict.fromkeys(self.identity(clone) for clone in next_level))
            visited.update(level)
        return tuple(result)


NO_BACKING_CHAINS = BackingChains(EMPTY_MAPPING, EMPTY_MAPPING, EMPTY_MAPPING, EMPTY_MAPPING)
"""Nothing is known of any file."""


def recorded_references(snapshot: Snapshot, volumes: Sequence[VolumeInfo]) -> DiskReferences:
    """Return what records and libvirt's XML report about the VMs' files."""
    return collect_references([_disk_user(vm) for vm in snapshot.vms], volumes)


def _disk_user(vm: Vm) -> DiskUser:
    managed_disks = vm.record.disks if vm.record else vm.unreadable_disks
    files = tuple(d.source for d in vm.disks if d.source)
    volumes = tuple(d.volume for d in vm.disks if d.volume)
    formats = tuple((location, d.format) for d in vm.disks if (location := d.source or d.volume) and d.format)
    return DiskUser(vm.name, DiskSources(files, volumes, vm.backing_pairs, formats), managed_disks)


def build_chains(
    snapshot: Snapshot,
    references: DiskReferences,
    identities: Mapping[str, str] = EMPTY_MAPPING,
    unlisted_pools: Mapping[str, str] = EMPTY_MAPPING,
) -> BackingChains:
    """Return who uses which file; `identities` by path, as far as they are known."""

    def identify(path: str) -> str:
        return identities.get(path, path)

    references = references.without_raw_disks(identify)
    names: dict[str, set[str]] = {}
    for path, vms in references.vms.items():
        names.setdefault(identify(path), set()).update(vms)
    read_only = {
        (identify(d.source), vm.name) for vm in snapshot.vms for d in vm.disks if d.source and d.device in _READ_ONLY
    }
    read_only |= {
        (identify(d.path), vm.name) for vm in snapshot.vms for d in _record_disks(vm) if d.role in _NOT_WRITTEN
    }
    direct_clones: dict[str, list[str]] = {}
    for path, base in references.bases.items():
        direct_clones.setdefault(identify(base), []).append(path)
    return BackingChains(
        identities,
        {identity: frozenset(vms) for identity, vms in names.items()},
        {identity: frozenset(vm for vm in vms if (identity, vm) not in read_only) for identity, vms in names.items()},
        {identity: tuple(paths) for identity, paths in direct_clones.items()},
        references.formats_by_identity(identify),
        unlisted_pools,
    )


def _record_disks(vm: Vm) -> tuple[ManagedDisk, ...]:
    return vm.record.disks if vm.record else ()


def refuse_written_file(chains: BackingChains, path: str, chain: Sequence[str]) -> None:
    """Refuse a file to which a VM writes, or which is itself a clone of such a file.

    The hint copies it in the format of the VM's definition: qemu-img would guess it from what the guest wrote.

    Raises:
        InUse: naming the file and the VM.
    """
    for file in (path, *chain):
        writers = sorted(chains.writers.get(chains.identity(file), ()))
        if writers:
            clone_text = "" if file == path else f"{path} is a clone of {file}, which "
            arguments = f"-O qcow2 {shlex.quote(file)} {shlex.quote(copy_path(file))}"
            formats = [shlex.quote(format_name) for format_name in chains.formats.get(chains.identity(file), ())]
            command = f": qemu-img convert -f {formats[0]} {arguments}" if len(formats) == 1 else ""
            raise InUse(
                f"{clone_text or path + ' '}is a disk of VM {writers[0]}, which writes to it",
                hint=f"copy it while the VM is off{command}",
                disk=file,
                vm=writers[0],
            )


def refuse_base_image(chains: BackingChains, path: str) -> None:
    """Refuse to write to a file that has clones: all of them would be damaged.

    Raises:
        InUse: naming the file, and a clone with its VM.
        Refused: a pool cannot be listed, so clones in it are unknown.
    """
    clones = chains.clones(path)
    if not clones:
        _refuse_unlisted_pools(
            chains, path, "be given to a VM", f"--image {shlex.quote(path)} gives the VM a clone of its own"
        )
        return
    clone, vms = next(((path_of_clone, names) for path_of_clone, names in clones if names), clones[0])
    clone_text = f"{min(vms)}'s disk {clone}" if vms else f"{clone}, which no VM has"
    raise InUse(
        f"{path} is the base image of {clone_text}; a VM that writes to it would damage the clone",
        hint=f"--image {shlex.quote(path)} gives the VM a clone of its own",
        disk=path,
        vm=min(vms, default=None),
        clone=clone,
    )


def refuse_needed_image(chains: BackingChains, path: str, stopped_pools: Sequence[str]) -> None:
    """Refuse to delete an image that a VM has, or that a disk was made from.

    Raises:
        InUse: naming who needs it.
        Refused: it is not known whether a disk in a pool needs it.
    """
    users = sorted(chains.users(path))
    clones = chains.clones(path)
    if users or clones:
        clone, vms = next(((name, vms) for name, vms in clones if vms), clones[0] if clones else (None, frozenset()))
        what = f"is the base image of {min(vms)}'s disk {clone}" if vms else f"is the base image of {clone}"
        raise InUse(
            f"{path} {f'is a disk of VM {users[0]}' if users else what}",
            hint=f"vgpuctl list-images {shlex.quote(path)} shows who needs it",
            disk=path,
            vm=users[0] if users else min(vms, default=None),
            clone=clone,
        )
    stopped = dict.fromkeys(stopped_pools, "it is not started")
    _refuse_unlisted_pools(
        replace(chains, unlisted_pools={**stopped, **chains.unlisted_pools}), path, "be deleted", None
    )


def _refuse_unlisted_pools(chains: BackingChains, path: str, what: str, instead: str | None) -> None:
    """Refuse an action that would damage clones of a file, when a pool that may hold one cannot be listed."""
    for pool, reason in sorted(chains.unlisted_pools.items()):
        alternative = f"; or {instead}" if instead else ""
        raise Refused(
            f"{path} cannot {what}: it may have clones in the storage pool {pool}, which cannot be listed: {reason}",
            hint=f"virsh pool-refresh {shlex.quote(pool)} shows the pool's problem{alternative}",
            disk=path,
            pool=pool,
        )


def refuse_shared_disks(chains: BackingChains, vm: Vm, record: VmRecord, *, can_keep: bool = True) -> None:
    """Refuse to delete a disk that another VM uses, or that has clones.

    `can_keep`: delete-vm could keep the disks; a seed is never kept.

    Raises:
        InUse: naming the disk and the VM.
        Refused: a pool cannot be listed, so clones in it are unknown. This never applies to a seed: it has no clones.
    """
    keepable = {d.path for d in record.data_disks()} if can_keep else set()
    for disk in sorted(record.disks, key=lambda d: d.path):
        others = sorted(chains.users(disk.path) - {vm.name})
        clones = [(clone, names) for clone, names in chains.clones(disk.path) if names != {vm.name}]
        keep_command = f"vgpuctl delete-vm {vm.name} --keep-disks" if disk.path in keepable else None
        if not others and not clones:
            if disk.role is not DiskRole.SEED:
                _refuse_unlisted_pools(chains, disk.path, "be deleted", keep_command)
            continue
        user: str | None = others[0] if others else min(clones[0][1] - {vm.name}, default=None)
        relation = "uses it" if others else "is a clone of it"
        raise InUse(
            f"{vm.name}'s disk {disk.path} cannot be deleted: {f'VM {user}' if user else clones[0][0]} {relation}",
            hint=f"delete {user or clones[0][0]} first" + (f", or {keep_command}" if keep_command else ""),
            disk=disk.path,
            vm=user,
        )


def refuse_moved_disks(chains: BackingChains, vm: Vm, disks: Sequence[ManagedDisk]) -> None:
    """Refuse to delete disks of a VM that uses another file in place of one, as after a snapshot or a block copy.

    vgpuctl did not make that file and does not delete it. A disk below it must not go without it.

    Raises:
        InUse: with the file in use and how it becomes the VM's own disk again.
    """
    for disk in disks:
        current = find_moved_disk(vm, disk, chains)
        if current is None:
            continue
        is_above = any(clone == current.source for clone, _ in chains.clones(disk.path))
        relation = f"lies on {disk.path}" if is_above else f"replaced {disk.path}"
        raise InUse(
            f"{vm.name} uses {current.source} now, which vgpuctl did not make and which {relation}",
            hint=f"{how_to_merge(vm, current, is_above=is_above)}; "
            f"or vgpuctl delete-vm {shlex.quote(vm.name)} --keep-disks keeps all of them",
            vm=vm.name,
            disk=disk.path,
            current=current.source,
        )


def find_moved_disk(vm: Vm, disk: ManagedDisk, chains: BackingChains | None = None) -> DiskRef | None:
    """Return the disk that a VM uses in place of one that vgpuctl made; None if it uses that one, or none instead.

    A snapshot puts a file above it, a block copy or commit another file in its place. The guest's name of a disk, such
    as vda, tells which disk it was: vgpuctl's own come first.
    """
    chains = chains or NO_BACKING_CHAINS
    identity = chains.identity(disk.path)
    if any(is_source(d, disk) or chains.identity(d.source or "") == identity for d in vm.disks):
        return None
    record = vm.record
    known = {chains.identity(d.path) for d in record.disks} if record is not None else set()
    own_disks = [d.path for d in record.data_disks()] if record is not None else []
    number = own_disks.index(disk.path) if disk.path in own_disks else len(own_disks)
    others = [d for d in vm.disks if d.device == "disk" and d.source and chains.identity(d.source) not in known]
    clones = {clone for clone, _ in chains.clones(disk.path)}
    in_place = (d for d in others if d.target[-1:] == string.ascii_lowercase[number : number + 1])
    return next((d for d in others if d.source in clones), None) or next(in_place, None)


def how_to_merge(vm: Vm, current: DiskRef, *, is_above: bool) -> str:
    """Return the command by which a VM uses its own disk again, without what lies above it."""
    name = shlex.quote(vm.name)
    if is_above:
        return f"while it runs, virsh blockcommit {name} {current.target} --shallow --active --pivot --wait merges it"
    return f"virsh domblklist {name} shows its disks"


def is_source(disk: DiskRef, managed: ManagedDisk) -> bool:
    """Return whether a VM's disk is this file or volume."""
    return disk.source == managed.path or disk.volume == (managed.pool, managed.volume)


def copy_path(path: str) -> str:
    """Return a path for a copy in the same directory."""
    folder, slash, name = path.rpartition("/")
    stem = name.rpartition(".")[0] or name
    return f"{folder}{slash}{stem}-copy.qcow2"
