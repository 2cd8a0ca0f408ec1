# SPDX-License-Identifier: Apache-2.0
"""List the images and volumes of a host with the disks created from them; changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.domain.domain_xml import parse_disk_sources, parse_domain
from vgpuctl.errors import InvalidInput, LibvirtFailed, NotFound
from vgpuctl.model.numbers import count_text
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.port_values import DomainInfo, ImageInfo, VolumeInfo
from vgpuctl.model.results.vms import ImageResult
from vgpuctl.operations.chains import image_hints
from vgpuctl.operations.plans.images import (
    DiskReferences,
    DiskUser,
    bases_outside_pools,
    collect_references,
    describe_missing,
    image_results,
    path_results,
    select_images,
)

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def list_images(
    host: Host, paths: Sequence[str] = (), *, pool: str | None = None, disks: bool = True
) -> QueryResult[tuple[ImageResult, ...]]:
    """Return every volume and every base image with its clones; `pool` limits the list to one pool.

    `disks` False: VMs' disks and seeds are left out, and a note says how many.

    `paths`: exactly these files, also images without clones, and of a directory the images in it; a clone counts under
    whatever path it names its base.

    It reads the volumes before the VMs: a VM is defined before its disks are created, so a disk created meanwhile
    never looks like an orphan.

    Raises:
        NotFound: there is no such pool, or files of `paths` do not exist; `result` has the others.
        HostCannot: libvirt does not answer.
    """
    if paths and pool is not None:
        raise InvalidInput("paths and --pool cannot be combined", hint="omit one of them")
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
    if paths:
        return _list_paths(host, paths, references, volumes, tuple(warnings))
    outside_images = {path: host.storage.image(path) for path in bases_outside_pools(references, volumes)}
    images = image_results(references, volumes, outside_images, pool)
    listed = tuple(image for image in images if disks or image.role not in ("disk", "seed"))
    left_out = len(images) - len(listed)
    notes = (f"{count_text(left_out, 'VM disk')} not listed; --disks lists all",) if left_out else ()
    return QueryResult(listed, tuple(warnings), notes=notes)


def _list_paths(
    host: Host,
    paths: Sequence[str],
    references: DiskReferences,
    volumes: Sequence[VolumeInfo],
    warnings: tuple[str, ...],
) -> QueryResult[tuple[ImageResult, ...]]:
    images: dict[str, ImageInfo | None] = {}
    for path in paths:
        image = host.storage.image(path)
        if image is not None and image.format == "directory":
            images |= {file: host.storage.image(file) for file in select_images(host.storage.list_files(path))}
        else:
            images[path] = image
    others = {*references.bases.values(), *references.vms} - images.keys()
    files = host.storage.image_files(tuple(images)) | host.storage.image_files(tuple(others), reachable=tuple(images))
    identities = {path: file.identity for path, file in files.items()}
    rows = path_results(references, volumes, images, lambda path: identities.get(path, path))
    missing = [row for row in rows if images[row.path] is None]
    result = QueryResult(tuple(row for row in rows if images[row.path] is not None), warnings)
    if missing:
        error = NotFound(
            "\n".join(describe_missing(row) for row in missing),
            hint="; ".join(dict.fromkeys(image_hints(host, {row.path: None for row in missing}).values())),
            paths=[row.path for row in missing],
        )
        error.result = result if result.data else None
        raise error
    return result


def _disk_user(host: Host, record: DomainInfo) -> DiskUser:
    vm = parse_domain(record.xml, record.state, host.machine_id)
    disks = vm.record.disks if vm.record else vm.unreadable_disks
    return DiskUser(record.name, parse_disk_sources(record.xml, record.live_xml), disks)
