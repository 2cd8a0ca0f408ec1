# SPDX-License-Identifier: Apache-2.0
"""Gather which files VMs have and which lie below those; `vgpuctl.plan.chains` judges it.

qemu-img looks at what was typed alone. All else is asked of libvirt, which knows its volumes already, and read from
the first bytes of files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.errors import LibvirtFailed
from vgpuctl.model.records import ImageRecord, VolumeRecord
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Promise, Vm
from vgpuctl.plan.chains import Chains, chains_of, known_links, refuse_shared_disks
from vgpuctl.plan.images import nearest
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def find_chains(world: World, snapshot: Snapshot, *touched: str) -> Chains:
    """Return who has which file of this host, and what is made from what.

    `touched`: the files that were typed, or are to be deleted. They are opened wherever they are; all others only on
    this host's own disks and on network file systems that have a touched one: that cannot hang besides. So of another
    VM's file on another server only records and libvirt's XML tell. Not seen is there a clone whose VM is off and that
    is in no active pool. Not seen anywhere is a clone that no VM has and no active pool knows of.

    Volumes of a pool that cannot be listed are `unlisted`: what needs to know them is refused then.
    """
    volumes, unlisted = _volumes(world, snapshot)
    found = known_links(snapshot, volumes)
    identities: dict[str, str] = {}
    todo = [*touched, *found.vms, *found.bases.values()]
    while todo:
        named: dict[str, str] = {}
        for path in todo:
            seen = None if path in identities else world.storage.glance(path, near=None if path in touched else touched)
            if seen is not None:
                identities[path] = seen.identity
                named |= {} if seen.below is None else {path: seen.below}
        every = replace(found, bases={**found.bases, **named})
        found = every.without_raw(lambda path: identities.get(path, path))
        todo = [base for path, base in named.items() if path in found.bases]
    return chains_of(snapshot, found, identities, unlisted)


def _volumes(world: World, snapshot: Snapshot) -> tuple[list[VolumeRecord], dict[str, str]]:
    """Return the volumes of all active pools, and why a pool cannot be listed: there only what VMs name is known."""
    volumes: list[VolumeRecord] = []
    unlisted: dict[str, str] = {}
    for pool in world.storage.pools():
        if not pool.active:
            continue
        try:
            volumes += world.storage.volumes(pool.name, refresh=False)
        except LibvirtFailed as error:
            unlisted[pool.name] = error.message
            named = [d.volume for vm in snapshot.vms for d in vm.disks if d.volume and d.volume[0] == pool.name]
            volumes += [VolumeRecord(*pair, f"{pool.path}/{pair[1]}", 0) for pair in named if pool.path]
    return volumes, unlisted


def meant_images(world: World, files: Mapping[str, ImageRecord | None]) -> dict[str, tuple[str, ...]]:
    """Return for each path without a file, or with a directory, the images that may have been meant, the nearest first.

    They are sought by name, in the directory that was typed and among the volumes.
    """
    missing = [path for path, found in files.items() if found is None or found.format == "directory"]
    if not missing:
        return {}
    pools = [pool for pool in world.storage.pools() if pool.active]
    volumes = [v.path for pool in pools for v in world.storage.volumes(pool.name, refresh=False)]
    meant = {}
    for path in missing:
        folder = path if files[path] is not None else posixpath.dirname(path.rstrip("/"))
        meant[path] = nearest(path, [*world.storage.files_in(folder), *volumes], anything=files[path] is not None)
    return meant


def refuse_shared(world: World, snapshot: Snapshot, vm: Vm, gone: Promise) -> None:
    """Refuse to delete disks that somebody else needs; `gone` is the VM's record with those that are to go.

    Raises:
        InUse: naming the disk and who needs it.
        Refused: who needs them cannot be told.
    """
    if gone.disks:
        refuse_shared_disks(find_chains(world, snapshot, *(d.path for d in gone.disks)), vm, gone)
