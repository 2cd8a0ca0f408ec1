# SPDX-License-Identifier: Apache-2.0
"""List the images and volumes of a host with the disks created from them; changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.domain.disk_sources import parse_disk_sources
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import LibvirtFailed, NotFound
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.port_values import DomainInfo, VolumeInfo
from vgpuctl.model.results.vms import ImageResult
from vgpuctl.operations.plans.images import DiskUser, bases_outside_pools, collect_references, image_results

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def list_images(host: Host, *, pool: str | None = None) -> QueryResult[tuple[ImageResult, ...]]:
    """Return every volume and every base image with its clones; `pool` limits the list to one pool.

    It reads the volumes before the VMs: a VM is defined before its disks are created, so a disk created meanwhile
    never looks like an orphan.

    Raises:
        NotFound: there is no such pool.
        HostCannot: libvirt does not answer.
    """
    pools = host.storage.pools()
    if pool is not None and pool not in {known_pool.name for known_pool in pools}:
        raise NotFound(
            f"storage pool {pool} does not exist",
            hint=f"pools: {', '.join(known_pool.name for known_pool in pools)}" if pools else "virsh pool-list --all",
            pool=pool,
        )
    warnings: list[str] = []
    volumes: list[VolumeInfo] = []
    for storage_pool in pools:
        if not storage_pool.active:
            warnings.append(f"storage pool {storage_pool.name} is not started; its volumes are not listed")
            continue
        try:
            volumes += host.storage.volumes(storage_pool.name)
        except LibvirtFailed as error:
            if storage_pool.name == pool:
                raise
            warnings.append(str(error))
    references = collect_references(
        [_disk_user(host, domain) for domain in host.hypervisor.domains()], volumes
    ).without_raw_disks()
    outside_images = {path: host.storage.image(path) for path in bases_outside_pools(references, volumes)}
    return QueryResult(image_results(references, volumes, outside_images, pool), tuple(warnings))


def _disk_user(host: Host, record: DomainInfo) -> DiskUser:
    vm = parse_domain(record.xml, record.state, host.machine_id)
    disks = vm.record.disks if vm.record else vm.unreadable_disks
    return DiskUser(record.name, parse_disk_sources(record.xml, record.live_xml), disks)
