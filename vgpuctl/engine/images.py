# SPDX-License-Identifier: Apache-2.0
"""List the images and volumes of a host with the disks made from them; only looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.domain.parse import parse
from vgpuctl.domain.sources import sources_of
from vgpuctl.errors import LibvirtFailed, NotFound
from vgpuctl.model.outcome import Answer
from vgpuctl.model.records import DomainRecord, VolumeRecord
from vgpuctl.plan.images import DiskUser, image_values, links, outside

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def list_images(world: World, *, pool: str | None = None) -> Answer:
    """Return every volume and every base image with its clones; `pool` leaves one pool.

    The volumes are read before the VMs: a VM is defined before its disks are made, so a disk that is made
    meanwhile is never taken for an orphan.

    Raises:
        NotFound: there is no such pool.
        HostCannot: libvirt does not answer.
    """
    pools = world.storage.pools()
    if pool is not None and pool not in {p.name for p in pools}:
        raise NotFound(
            f"there is no storage pool {pool}",
            hint=f"there are: {', '.join(p.name for p in pools)}" if pools else "virsh pool-list --all",
            pool=pool,
        )
    warnings: list[str] = []
    volumes: list[VolumeRecord] = []
    for each in pools:
        if not each.active:
            warnings.append(f"storage pool {each.name} is not started; its volumes are not listed")
            continue
        try:
            volumes += world.storage.volumes(each.name)
        except LibvirtFailed as error:
            if each.name == pool:
                raise
            warnings.append(str(error))
    found = links([_user(world, record) for record in world.hypervisor.domains()], volumes).without_raw()
    looked_at = {path: world.storage.image(path) for path in outside(found, volumes)}
    return Answer(image_values(found, volumes, looked_at, pool), tuple(warnings))


def _user(world: World, record: DomainRecord) -> DiskUser:
    vm = parse(record.xml, record.state, world.machine_id)
    made = vm.promise.disks if vm.promise else vm.unreadable_disks
    return DiskUser(record.name, sources_of(record.xml, record.live_xml), made)
