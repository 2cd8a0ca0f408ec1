# SPDX-License-Identifier: Apache-2.0
"""Gather which files VMs have and which lie below those; `vgpuctl.plan.chains` judges it.

qemu-img looks at what was typed alone. All else is asked of libvirt, which knows its volumes already, and read from
the first bytes of the files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.model.records import ImageRecord
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Promise, Vm
from vgpuctl.plan.chains import Chains, chains_of, known_links, raw_disks, refuse_shared_disks
from vgpuctl.plan.images import Links, nearest

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def find_chains(world: World, snapshot: Snapshot, *typed: str) -> Chains:
    """Return who has which file of this host, and what is made from what; `typed` are files to know besides.

    Raises:
        LibvirtFailed: an active pool's volumes cannot be listed; a clone among them could be missed.
    """
    pools = [pool for pool in world.storage.pools() if pool.active]
    volumes = [v for pool in pools for v in world.storage.volumes(pool.name, refresh=False)]
    found = known_links(snapshot, volumes)
    raw, bases = raw_disks(snapshot), dict(found.bases)
    identities: dict[str, str] = {}
    todo = [*typed, *found.vms, *bases.values()]
    for path in todo:  # grows while it is worked on
        seen = None if path in identities else world.storage.glance(path)
        if seen is None:
            continue
        identities[path] = seen.identity
        if seen.below is not None and path not in raw:
            bases[path] = seen.below
            todo.append(seen.below)
    return chains_of(snapshot, Links(found.vms, bases), identities)


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
        LibvirtFailed: who needs them cannot be told.
    """
    if gone.disks:
        refuse_shared_disks(find_chains(world, snapshot), vm, gone)
