# SPDX-License-Identifier: Apache-2.0
"""Which files VMs have and which lie below those: nobody may write to, or delete, a file that others are clones of.

What lies below what is told by records, by the XML of domains and volumes, and by the files' headers. Two paths are one
file when their identities are equal: a link, a hard link, a bind mount.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote

from vgpuctl.domain.sources import Sources
from vgpuctl.errors import InUse, Refused
from vgpuctl.model.records import VolumeRecord
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import DiskRole, MadeDisk, Promise, Vm
from vgpuctl.plan.images import DiskUser, Links, links
from vgpuctl.value import NOTHING, Value

_READ_ONLY = ("cdrom", "floppy")


class Chains(Value):
    """Who has which file, and what is made from what, by the files' identities.

    `names`: the VMs that have a file, `writers` those that may write to it. `above`: the files made from it, by path.
    `formats`: as what VMs have a file. `unlisted`: the pools whose volumes are not known, each with why.
    """

    identities: Mapping[str, str]
    names: Mapping[str, frozenset[str]]
    writers: Mapping[str, frozenset[str]]
    above: Mapping[str, tuple[str, ...]]
    formats: Mapping[str, frozenset[str]] = NOTHING
    unlisted: Mapping[str, str] = NOTHING

    def same(self, path: str) -> str:
        """Return what stands for a file: its path where no more is known of it."""
        return self.identities.get(path, path)

    def users(self, path: str) -> frozenset[str]:
        """Return the VMs that have a file as a disk or CD-ROM, by whatever path."""
        return self.names.get(self.same(path), frozenset())

    def clones(self, path: str) -> tuple[tuple[str, frozenset[str]], ...]:
        """Return every file whose backing chain holds this one, with the VMs that have it; the nearest first."""
        seen = {self.same(path)}
        found: list[tuple[str, frozenset[str]]] = []
        level = list(seen)
        while level:
            nearer = sorted(up for base in level for up in self.above.get(base, ()) if self.same(up) not in seen)
            found += [(up, self.users(up)) for up in nearer]
            level = list(dict.fromkeys(self.same(up) for up in nearer))
            seen.update(level)
        return tuple(found)


NO_CHAINS = Chains(NOTHING, NOTHING, NOTHING, NOTHING)
"""Nothing is known of any file."""


def known_links(snapshot: Snapshot, volumes: Sequence[VolumeRecord]) -> Links:
    """Return what records and libvirt's XML say of the files of VMs."""
    return links([_user(vm) for vm in snapshot.vms], volumes)


def _user(vm: Vm) -> DiskUser:
    made = vm.promise.disks if vm.promise else vm.unreadable_disks
    files = tuple(d.source for d in vm.disks if d.source)
    volumes = tuple(d.volume for d in vm.disks if d.volume)
    formats = tuple((where, d.format) for d in vm.disks if (where := d.source or d.volume) and d.format)
    return DiskUser(vm.name, Sources(files, volumes, vm.backing, formats), made)


def chains_of(
    snapshot: Snapshot,
    found: Links,
    identities: Mapping[str, str] = NOTHING,
    unlisted: Mapping[str, str] = NOTHING,
) -> Chains:
    """Return who has which file; `identities` by path, as far as they are known."""

    def same(path: str) -> str:
        return identities.get(path, path)

    found = found.without_raw(same)
    names: dict[str, set[str]] = {}
    for path, vms in found.vms.items():
        names.setdefault(same(path), set()).update(vms)
    read = {(same(d.source), vm.name) for vm in snapshot.vms for d in vm.disks if d.source and d.device in _READ_ONLY}
    read |= {(same(d.path), vm.name) for vm in snapshot.vms for d in _made(vm) if d.role is DiskRole.SEED}
    above: dict[str, list[str]] = {}
    for path, base in found.bases.items():
        above.setdefault(same(base), []).append(path)
    return Chains(
        identities,
        {one: frozenset(vms) for one, vms in names.items()},
        {one: frozenset(vm for vm in vms if (one, vm) not in read) for one, vms in names.items()},
        {one: tuple(paths) for one, paths in above.items()},
        found.formats_by(same),
        unlisted,
    )


def _made(vm: Vm) -> tuple[MadeDisk, ...]:
    return vm.promise.disks if vm.promise else ()


def refuse_written(chains: Chains, path: str, chain: Sequence[str]) -> None:
    """Refuse a file to which a VM writes, or that is itself a clone of one.

    The copy is made in the format of the VM's definition: qemu-img would guess it from what the guest wrote.

    Raises:
        InUse: naming the file and the VM.
    """
    for one in (path, *chain):
        writers = sorted(chains.writers.get(chains.same(one), ()))
        if writers:
            below = "" if one == path else f"{path} is a clone of {one}, which "
            names = f"-O qcow2 {quote(one)} {quote(copy_of(one))}"
            formats = [quote(form) for form in chains.formats.get(chains.same(one), ())]
            command = f": qemu-img convert -f {formats[0]} {names}" if len(formats) == 1 else ""
            raise InUse(
                f"{below or path + ' '}is a disk of VM {writers[0]}, which writes to it",
                hint=f"copy it while the VM is off{command}",
                disk=one,
                vm=writers[0],
            )


def refuse_base(chains: Chains, path: str) -> None:
    """Refuse to write to a file that others are clones of: all of them would be damaged.

    Raises:
        InUse: naming the file, and a clone with its VM.
        Refused: a pool cannot be listed, so that nobody knows.
    """
    clones = chains.clones(path)
    if not clones:
        _refuse_unknown(chains, path, "be given to a VM", f"--image {quote(path)} gives the VM a clone of its own")
        return
    clone, vms = next(((up, names) for up, names in clones if names), clones[0])
    whose = f"{min(vms)}'s disk {clone}" if vms else f"{clone}, which no VM has"
    raise InUse(
        f"{path} is the base image of {whose}; a VM that writes to it would damage that",
        hint=f"--image {quote(path)} gives the VM a clone of its own",
        disk=path,
        vm=min(vms, default=None),
        clone=clone,
    )


def _refuse_unknown(chains: Chains, path: str, what: str, instead: str | None) -> None:
    """Refuse what would damage clones of a file, when a pool that may have one cannot be listed."""
    for pool, why in sorted(chains.unlisted.items()):
        other = f"; or {instead}" if instead else ""
        raise Refused(
            f"{path} cannot {what}: it may have clones in the storage pool {pool}, which cannot be listed: {why}",
            hint=f"see what the pool lacks: virsh pool-refresh {quote(pool)}{other}",
            disk=path,
            pool=pool,
        )


def refuse_shared_disks(chains: Chains, vm: Vm, promise: Promise, *, can_keep: bool = True) -> None:
    """Refuse to delete a disk that another VM has, or that another disk is a clone of.

    `can_keep`: the disks could be kept, with delete-vm; a seed never is.

    Raises:
        InUse: naming the disk and the VM.
        Refused: a pool cannot be listed, so that nobody knows. A seed is refused to nobody: it has no clones.
    """
    keepable = {d.path for d in promise.own_disks()} if can_keep else set()
    for disk in sorted(promise.disks, key=lambda d: d.path):
        others = sorted(chains.users(disk.path) - {vm.name})
        clones = [(up, names) for up, names in chains.clones(disk.path) if names != {vm.name}]
        keep = f"vgpuctl delete-vm {vm.name} --keep-disks" if disk.path in keepable else None
        if not others and not clones:
            if disk.role is not DiskRole.SEED:
                _refuse_unknown(chains, disk.path, "be deleted", keep)
            continue
        who: str | None = others[0] if others else min(clones[0][1] - {vm.name}, default=None)
        how = "uses it" if others else "is a clone of it"
        raise InUse(
            f"{vm.name}'s disk {disk.path} cannot be deleted: {f'VM {who}' if who else clones[0][0]} {how}",
            hint=f"delete {who or clones[0][0]} first" + (f", or {keep}" if keep else ""),
            disk=disk.path,
            vm=who,
        )


def copy_of(path: str) -> str:
    """Return a name for a copy beside a file."""
    folder, slash, name = path.rpartition("/")
    stem = name.rpartition(".")[0] or name
    return f"{folder}{slash}{stem}-copy.qcow2"
