# SPDX-License-Identifier: Apache-2.0
"""The files of VMs and images: which files VMs have, their backing files, and the disks created from each image.

`vgpuctl.operations.plans.chains` evaluates them. qemu-img reads only what was given on the command line. Everything
else comes from libvirt, which knows its volumes already, and from the first bytes of files. No pool is refreshed. With
200 VMs this takes about ten milliseconds, and only commands that write to, clone or delete a file do it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vgpuctl.domain.domain_xml import parse_disk_sources, parse_domain
from vgpuctl.errors import InUse, InvalidInput, LibvirtFailed, NotFound
from vgpuctl.model.numbers import count_text
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.port_values import DomainInfo, ImageInfo, VolumeInfo
from vgpuctl.model.results.vms import ImageResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm, VmRecord
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.guards import require_libvirt
from vgpuctl.operations.plans.chains import (
    BackingChains,
    build_chains,
    recorded_references,
    refuse_moved_disks,
    refuse_needed_image,
    refuse_shared_disks,
)
from vgpuctl.operations.plans.images import (
    DiskReferences,
    DiskUser,
    bases_outside_pools,
    collect_references,
    describe_missing,
    driver_result,
    image_hint,
    image_results,
    path_results,
    select_images,
)
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def find_backing_chains(host: Host, snapshot: Snapshot, *touched: str) -> BackingChains:
    """Return which VM has which file of this host, and which file is the backing file of which.

    `touched`: the files given on the command line, or about to be deleted. They are opened wherever they are. Others
    are opened only on this host's own disks, and on network file systems that hold a touched file: this adds no risk to
    hang. So for another VM's file on another server, only records and libvirt's XML are read. A clone there is not seen
    if its VM is off and it is in no active pool. A clone that no VM has and no active pool knows is never seen.

    Volumes of a pool that cannot be listed are `unlisted`: an operation that needs to know them is then refused.
    """
    volumes, unlisted = _list_volumes(host, snapshot)
    references = recorded_references(snapshot, volumes)
    files = host.storage.image_files(touched)
    pending = {*references.vms, *references.bases.values()}
    identities: dict[str, str] = {}
    while files or pending:
        others = tuple(sorted(pending - identities.keys() - set(touched)))
        files |= host.storage.image_files(others, reachable=touched)
        identities.update({path: file.identity for path, file in files.items()})
        backing_paths = {path: file.backing_path for path, file in files.items() if file.backing_path is not None}
        extended = replace(references, bases={**references.bases, **backing_paths})
        references = extended.without_raw_disks(lambda path: identities.get(path, path))
        files, pending = {}, {base for path, base in backing_paths.items() if path in references.bases}
    return build_chains(snapshot, references, identities, unlisted)


def _list_volumes(host: Host, snapshot: Snapshot) -> tuple[list[VolumeInfo], dict[str, str]]:
    """Return the volumes of all active pools, and why a pool cannot be listed: of it only VMs' volumes are known."""
    volumes: list[VolumeInfo] = []
    unlisted: dict[str, str] = {}
    for pool in host.storage.pools():
        if not pool.active:
            continue
        try:
            volumes += host.storage.volumes(pool.name, refresh=False)
        except LibvirtFailed as error:
            unlisted[pool.name] = error.message
            pairs = [d.volume for vm in snapshot.vms for d in vm.disks if d.volume and d.volume[0] == pool.name]
            volumes += [VolumeInfo(*pair, f"{pool.path}/{pair[1]}", 0) for pair in pairs if pool.path]
    return volumes, unlisted


def image_hints(host: Host, files: Mapping[str, ImageInfo | None]) -> dict[str, str]:
    """Return, for each path without a file or with a directory, a hint that names the images that may be intended.

    They are searched by name, in the directory that was given and among the volumes.
    """
    missing = [path for path, image in files.items() if image is None or image.format == "directory"]
    if not missing:
        return {}
    pools = [pool for pool in host.storage.pools() if pool.active]
    volumes = [v.path for pool in pools for v in host.storage.volumes(pool.name, refresh=False)]
    hints = {}
    for path in missing:
        folder = path if files[path] is not None else posixpath.dirname(path.rstrip("/"))
        hints[path] = image_hint(path, folder, host.storage.list_files(folder), volumes)
    return hints


def refuse_shared_deletion(host: Host, snapshot: Snapshot, vm: Vm, to_delete: VmRecord) -> None:
    """Refuse to delete disks that another VM needs; `to_delete`: the VM's record with only the disks to delete.

    Raises:
        InUse: with the disk and who needs it, or with the file that the VM uses in place of it.
        Refused: it cannot be determined who needs them.
    """
    if to_delete.disks:
        chains = find_backing_chains(host, snapshot, *(d.path for d in to_delete.disks))
        refuse_shared_disks(chains, vm, to_delete)
        refuse_moved_disks(chains, vm, to_delete.data_disks())


def refuse_used_image(host: Host, path: str) -> None:
    """Refuse to delete an image that a disk needs, also one in a bin, or that a VM has itself; whoever made them.

    Raises:
        InUse: naming the disk and its VM.
        Refused: it is not known, because a pool is not started or cannot be listed.
        HostCannot: libvirt does not answer.
    """
    snapshot = observe(host, ReadScope(models=False, gpu_addresses=frozenset()))
    require_libvirt(snapshot)
    chains = find_backing_chains(host, snapshot, path)
    refuse_needed_image(chains, path, [pool.name for pool in host.storage.pools() if not pool.active])
    bins = host.volume_bin
    if bins is None:
        return
    binned = [one.path for pool in host.storage.pools() if pool.active for one in bins.volumes(pool.name)]
    needed = {path, *(clone for clone, _ in chains.clones(path))}
    identities = {file.identity for file in host.storage.image_files(tuple(needed)).values()}
    for disk, file in host.storage.image_files(tuple(binned)).items():
        base = None if file.backing_path is None else host.storage.image_files((file.backing_path,))
        if base and {one.identity for one in base.values()} & identities:
            raise InUse(
                f"{path} is the base image of {disk}, a deleted disk that can still be restored",
                hint="it goes when that is purged: vgpuctl list-deleted",
                disk=path,
                clone=disk,
            )


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
    images += () if pool is not None else _driver_results(host, references, warnings)
    listed = tuple(image for image in images if disks or image.role not in ("disk", "seed"))
    left_out = len(images) - len(listed)
    notes = (f"{count_text(left_out, 'VM disk')} not listed; --disks lists all",) if left_out else ()
    return QueryResult(listed, tuple(warnings), notes=notes)


def _driver_results(host: Host, references: DiskReferences, warnings: list[str]) -> tuple[ImageResult, ...]:
    """Return a row for each disc with a driver for guests; where they cannot be read, add a warning."""
    discs = host.driver_discs
    try:
        sizes = {} if discs is None else {discs.path(name): size for name, size in discs.sizes().items()}
    except OSError as error:
        warnings.append(f"discs with drivers are not listed: {error.strerror} ({error.filename})")
        return ()
    return tuple(driver_result(references, path, size_bytes) for path, size_bytes in sizes.items())


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
