# SPDX-License-Identifier: Apache-2.0
"""libvirt's storage pools and volumes; implements `ports.Storage`.

libvirt caches a pool's volumes and free space until the pool is refreshed, and a refresh opens every volume. With
hundreds of disks that is the slowest call of all, and it fails while another caller creates a volume. So a volume is
looked up first: libvirt re-reads that one file, and only a miss triggers a refresh. Free space comes from the file
system, as in libvirt's own refresh (storage_util.c).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from vgpuctl.errors import Exists, HostCannot, LibvirtFailed, NoSpace, unreadable_error
from vgpuctl.host import commands, images
from vgpuctl.host.backing_chain import read_image_files
from vgpuctl.host.qemu_access import read_qemu_user
from vgpuctl.host.trusted_path import resolve_path
from vgpuctl.host.virt import constants, libvirt_xml, streams
from vgpuctl.host.virt.connection import LibvirtConnection, libvirt_code_of
from vgpuctl.host.virt.volume_sending import VolumeSending
from vgpuctl.model.deleted_disk import BIN_FOLDER, LOGICAL_NAME
from vgpuctl.model.port_values import ImageFile, ImageInfo, PoolInfo, ResolvedPath, VolumeInfo

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import virConnect, virStoragePool, virStorageVol
    from vgpuctl.ports.system import Clock

_DIRECTORY_KINDS = ("dir", "fs", "netfs")
_NAME_TAKEN_ERRORS = (
    constants.VIR_ERR_STORAGE_VOL_EXIST,
    constants.VIR_ERR_OPERATION_INVALID,  # a file that the pool does not know (observed with 9.0)
    constants.VIR_ERR_OPERATION_FAILED,  # the test driver
    constants.VIR_ERR_INTERNAL_ERROR,  # lvcreate: a logical volume that the pool does not know
)
_BUSY_ERRORS = frozenset({constants.VIR_ERR_INTERNAL_ERROR, constants.VIR_ERR_OPERATION_INVALID})
_REFRESH_TRIES = 20
_REFRESH_PAUSE_SECONDS = 0.05
_MAX_FILES = 10_000
_LVEXTEND_SECONDS = 60.0
_WIPED_BYTES = 16 << 20
_NO_SPACE = ("no space left on device", "insufficient free space")
"""The C library's text, and that of LVM (lib/metadata/lv_manip.c)."""


InspectImage = Callable[[str, Callable[[], Iterable[str]]], ImageInfo | None]


class LibvirtStorage(VolumeSending):
    """Pools and volumes of one connection; `inspect_image` inspects an image file."""

    def __init__(self, connection: LibvirtConnection, clock: Clock, inspect_image: InspectImage) -> None:
        self._connection = connection
        self._clock = clock
        self._inspect_image = inspect_image

    def pool(self, name: str) -> PoolInfo | None:
        """Return one pool by name, or None."""
        failure = f"cannot look up storage pool {name}"
        with self._connection.call("virStoragePoolLookupByName", failure, pool=name) as connect:
            storage_pool = self._find_pool(connect, name)
            if storage_pool is not None and storage_pool.isActive() and _volume_group(storage_pool) is not None:
                # libvirt learns what others took from a volume group only in a refresh
                self._connection.attempt(constants.PERMISSION_ERRORS, partial(self._refresh_pool, storage_pool))
            return None if storage_pool is None else _read_pool(storage_pool)

    def pools(self) -> tuple[PoolInfo, ...]:
        """Return every pool, sorted by name; one that vanishes while listing is left out."""
        with self._connection.call("virConnectListAllStoragePools", "cannot list storage pools") as connect:
            missing, look_up = constants.VIR_ERR_NO_STORAGE_POOL, self._connection.look_up
            infos = [look_up(missing, partial(_read_pool, pool)) for pool in connect.listAllStoragePools(0)]
        return tuple(sorted((info for info in infos if info is not None), key=lambda pool_info: pool_info.name))

    def volumes(self, pool: str, *, refresh: bool = True) -> tuple[VolumeInfo, ...]:
        """Return an active pool's volumes after a refresh, where the caller may refresh it."""
        failure = f"cannot list the volumes of storage pool {pool}"
        infos: list[VolumeInfo] = []
        with self._connection.call("virStoragePoolListAllVolumes", failure, pool=pool) as connect:
            storage_pool = connect.storagePoolLookupByName(pool)
            if refresh:
                self._connection.attempt(constants.PERMISSION_ERRORS, partial(self._refresh_pool, storage_pool))
            gone_errors = frozenset({constants.VIR_ERR_SYSTEM_ERROR, constants.VIR_ERR_NO_STORAGE_VOL})
            hidden = re.escape(BIN_FOLDER) if _volume_group(storage_pool) is None else LOGICAL_NAME
            for volume in storage_pool.listAllVolumes(0):
                if re.fullmatch(hidden, volume.name()):
                    continue  # disks in the bin are nobody's images
                self._connection.attempt(gone_errors, partial(_add_volume, infos, pool, volume))
        return tuple(sorted(infos, key=lambda info: info.name))

    def create_pool(self, name: str, path: str) -> None:
        """Define, build, start and autostart a directory pool; the directory may exist."""
        failure = f"cannot create storage pool {name}"
        try:
            with self._connection.call("virStoragePoolDefineXML", failure, pool=name, path=path) as connect:
                pool = connect.storagePoolDefineXML(libvirt_xml.pool_xml(name, path), 0)
                try:
                    pool.build(0)
                    pool.create(0)
                    pool.setAutostart(1)
                except BaseException:
                    self._connection.attempt(None, pool.destroy)
                    self._connection.attempt(None, pool.undefine)
                    raise
        except LibvirtFailed as error:
            if libvirt_code_of(error) == constants.VIR_ERR_OPERATION_FAILED and self.pool(name) is not None:
                raise Exists(f"a storage pool named {name} already exists", hint=None, **error.facts) from error
            raise

    def start_pool(self, name: str) -> None:
        """Start an inactive pool; an already active one is no error."""
        failure = f"cannot start storage pool {name}"
        with self._connection.call("virStoragePoolCreate", failure, pool=name) as connect:
            pool = connect.storagePoolLookupByName(name)
            invalid = frozenset({constants.VIR_ERR_OPERATION_INVALID})
            if self._connection.attempt(invalid, partial(pool.create, 0)) is not None and not pool.isActive():
                pool.create(0)

    def remove_pool(self, name: str) -> None:
        """Stop and undefine a pool; its directory and files stay. A missing pool is no error."""
        failure = f"cannot remove storage pool {name}"
        with self._connection.call("virStoragePoolUndefine", failure, pool=name) as connect:
            pool = self._find_pool(connect, name)
            if pool is not None:
                if pool.isActive():
                    pool.destroy()
                pool.undefine()

    def volume(self, pool: str, name: str) -> VolumeInfo | None:
        """Return one volume, or None when it does not exist even after a refresh of the pool."""
        failure = f"cannot look up volume {name} in pool {pool}"
        with self._connection.call("virStorageVolLookupByName", failure, pool=pool, volume=name) as connect:
            storage_volume = self._find_volume(connect.storagePoolLookupByName(pool), name)
            return None if storage_volume is None else _read_volume(pool, name, storage_volume)

    def create_volume(
        self,
        pool: str,
        name: str,
        capacity_bytes: int,
        base: str | None = None,
        base_format: str | None = None,
    ) -> VolumeInfo:
        """Create a thin qcow2 volume, in a logical pool a raw one; libvirt refuses an existing name or file."""
        with self._create_in_pool(pool, name) as connect:
            storage_pool = connect.storagePoolLookupByName(pool)
            if _volume_group(storage_pool) is not None and base is None:
                text = libvirt_xml.logical_volume_xml(name, capacity_bytes)
            else:
                text = libvirt_xml.volume_xml(name, capacity_bytes, base, base_format)
            return _read_volume(pool, name, storage_pool.createXML(text, 0))

    def copy_image(
        self, source: str, source_format: str, target: VolumeInfo, target_format: str, report: Callable[[float], None]
    ) -> None:
        """Copy an image into a volume with qemu-img."""
        images.copy_image(source, source_format, target.path, target_format, report)

    def resize_volume(self, pool: str, name: str, capacity_bytes: int) -> VolumeInfo:
        """Grow a volume; libvirt cannot do that in a logical pool, so lvextend does it there."""
        failure = f"cannot resize volume {name} in pool {pool}"
        try:
            with self._connection.call("virStorageVolResize", failure, pool=pool, volume=name) as connect:
                storage_pool = connect.storagePoolLookupByName(pool)
                group = _volume_group(storage_pool)
                volume = storage_pool.storageVolLookupByName(name)
                if group is None:
                    volume.resize(capacity_bytes, 0)
                elif int(volume.info()[1]) < capacity_bytes:
                    _extend_logical_volume(group, name, capacity_bytes, failure)
                    self._refresh_pool(storage_pool)
                return _read_volume(pool, name, storage_pool.storageVolLookupByName(name))
        except LibvirtFailed as error:
            if isinstance(no_space := _as_no_space(error, pool), NoSpace):
                raise no_space from error
            raise

    def create_private_volume(self, pool: str, name: str, data: bytes) -> VolumeInfo:
        """Create a raw volume of mode 0600 and upload these bytes through a libvirt stream."""
        with self._create_in_pool(pool, name) as connect:
            text = libvirt_xml.private_volume_xml(name, len(data))
            volume = connect.storagePoolLookupByName(pool).createXML(text, 0)
            try:
                streams.upload(connect, volume, data)
            except BaseException:
                self._connection.attempt(None, partial(volume.delete, 0))
                raise
            return _read_volume(pool, name, volume)

    def read_private_volume(self, pool: str, name: str) -> bytes:
        """Download a volume's content through a libvirt stream."""
        failure = f"cannot read volume {name} in pool {pool}"
        with self._connection.call("virStorageVolDownload", failure, pool=pool, volume=name) as connect:
            return streams.download(connect, connect.storagePoolLookupByName(pool).storageVolLookupByName(name))

    def rewrite_private_volume(self, pool: str, name: str, data: bytes) -> None:
        """Upload these bytes over a volume's content."""
        failure = f"cannot write volume {name} in pool {pool}"
        with self._connection.call("virStorageVolUpload", failure, pool=pool, volume=name) as connect:
            streams.upload(connect, connect.storagePoolLookupByName(pool).storageVolLookupByName(name), data)

    @contextmanager
    def _create_in_pool(self, pool: str, name: str) -> Iterator[virConnect]:
        """Yield the connection for creating a volume; an existing name and a full pool get their own errors."""
        failure = f"cannot create volume {name} in pool {pool}"
        try:
            with self._connection.call("virStorageVolCreateXML", failure, pool=pool, volume=name) as connect:
                yield connect
        except LibvirtFailed as error:
            if isinstance(no_space := _as_no_space(error, pool), NoSpace):
                raise no_space from error
            if libvirt_code_of(error) in _NAME_TAKEN_ERRORS and self.volume(pool, name) is not None:
                raise Exists(
                    f"a volume named {name} already exists in pool {pool}", hint=None, **error.facts
                ) from error
            raise

    def remove_volume(self, pool: str, name: str) -> None:
        """Delete a volume; a missing one is no error."""
        failure = f"cannot delete volume {name} in pool {pool}"
        with self._connection.call("virStorageVolDelete", failure, pool=pool, volume=name) as connect:
            storage_pool = self._find_pool(connect, pool)
            volume = None if storage_pool is None else self._find_volume(storage_pool, name)
            if volume is not None:
                if storage_pool is not None and _volume_group(storage_pool) is not None:
                    self._wipe_small_volume(volume)
                self._connection.attempt(frozenset({constants.VIR_ERR_NO_STORAGE_VOL}), partial(volume.delete, 0))

    def _wipe_small_volume(self, volume: virStorageVol) -> None:
        """Overwrite a logical volume of a seed's size: LVM gives its extents to the next volume as they are."""
        if int(volume.info()[1]) <= _WIPED_BYTES:
            self._connection.attempt(None, partial(volume.wipe, 0))

    def volume_group(self, pool: str) -> str:
        """Return the volume group of a logical pool."""
        with self._connection.call(
            "virStoragePoolGetXMLDesc", f"cannot read storage pool {pool}", pool=pool
        ) as connect:
            return _volume_group(connect.storagePoolLookupByName(pool)) or pool

    def refresh(self, pool: str) -> None:
        """Have libvirt read a pool that was changed without it."""
        with self._connection.call(
            "virStoragePoolRefresh", f"cannot refresh storage pool {pool}", pool=pool
        ) as connect:
            self._refresh_pool(connect.storagePoolLookupByName(pool))

    def resolve(self, path: str) -> ResolvedPath | None:
        """Return where the path of a file or directory leads; the file may also belong to QEMU's user."""
        try:
            return resolve_path(path, {read_qemu_user().uid})
        except OSError as error:
            raise unreadable_error(path, error) from error

    def image(self, path: str) -> ImageInfo | None:
        """Inspect an image file without changing it; None when there is no such file."""
        return self._inspect_image(path, lambda: (pool.path for pool in self.pools() if pool.path is not None))

    def list_files(self, directory: str) -> tuple[str, ...]:
        """Return the paths of a directory's files; at most 10,000."""
        try:
            with os.scandir(directory) as entries:
                return tuple(sorted(entry.path for entry in islice(entries, _MAX_FILES) if not entry.is_dir()))
        except OSError:
            return ()

    def file_system_bytes(self, directory: str) -> int | None:
        """Return the size of the file system that a directory is on, or would be created on."""
        while not os.path.isdir(directory) and directory != "/":
            directory = os.path.dirname(directory)
        sizes = _file_system_sizes(directory)
        return None if sizes is None else sizes[0]

    def image_files(self, paths: Collection[str], *, reachable: Collection[str] | None = None) -> dict[str, ImageFile]:
        """Return, by path, the files that paths lead to, with their backing files."""
        return read_image_files(paths, reachable=reachable)

    def _find_pool(self, connect: virConnect, name: str) -> virStoragePool | None:
        missing = constants.VIR_ERR_NO_STORAGE_POOL
        return self._connection.look_up(missing, partial(connect.storagePoolLookupByName, name))

    def _find_volume(self, pool: virStoragePool, name: str) -> virStorageVol | None:
        """Look up a volume, and again after a refresh when it is unknown or its file is gone."""
        look_up = partial(pool.storageVolLookupByName, name)
        volume = self._connection.look_up(constants.VIR_ERR_NO_STORAGE_VOL, look_up)
        if volume is not None:
            # A query for its sizes makes libvirt access the file, and report a missing one.
            gone_errors = frozenset({constants.VIR_ERR_SYSTEM_ERROR, constants.VIR_ERR_NO_STORAGE_VOL})
            if self._connection.attempt(gone_errors, volume.info) is None:
                return volume
        self._refresh_pool(pool)
        return self._connection.look_up(constants.VIR_ERR_NO_STORAGE_VOL, look_up)

    def _refresh_pool(self, pool: virStoragePool) -> None:
        """Refresh, waiting while another caller creates a volume in the pool ("has asynchronous jobs")."""
        for _try in range(_REFRESH_TRIES):
            if self._connection.attempt(_BUSY_ERRORS, partial(pool.refresh, 0)) is None:
                return
            self._clock.sleep(_REFRESH_PAUSE_SECONDS)
        pool.refresh(0)


def _read_pool(pool: virStoragePool) -> PoolInfo:
    root = libvirt_xml.parse_xml(pool.XMLDesc(0))
    kind = root.get("type") or "?"
    path = libvirt_xml.find_text(root, "target/path")
    active = bool(pool.isActive())
    sizes: tuple[int, int] | None = None
    if active:
        sizes = _file_system_sizes(path) if path is not None and kind in _DIRECTORY_KINDS else None
        if sizes is None:
            _state, capacity, _allocation, available = pool.info()
            sizes = (capacity, available)
    return PoolInfo(
        name=pool.name(),
        kind=kind,
        active=active,
        path=path,
        capacity_bytes=sizes[0] if sizes else None,
        available_bytes=sizes[1] if sizes else None,
    )


def _volume_group(pool: virStoragePool) -> str | None:
    """Return the LVM volume group of a logical pool, None for any other pool."""
    root = libvirt_xml.parse_xml(pool.XMLDesc(0))
    return libvirt_xml.find_text(root, "source/name") if root.get("type") == "logical" else None


def _extend_logical_volume(group: str, name: str, capacity_bytes: int, failure: str) -> None:
    """Grow a logical volume; LVM takes a size in bytes with the unit b, and rounds it up to whole extents."""
    lvextend = commands.find_command("lvextend")
    if lvextend is None:
        raise HostCannot(f"{failure}: lvextend is not installed", hint="apt install lvm2", check="lvm2")
    try:
        argv = [lvextend, "--size", f"{capacity_bytes}b", "--", f"{group}/{name}"]
        result = commands.run_command(argv, deadline_seconds=_LVEXTEND_SECONDS)
    except OSError as error:
        raise LibvirtFailed(f"{failure}: {error}", call="lvextend", libvirt_code=None) from error
    if result.status != 0:
        text = f"{failure}: {result.error_line}"
        raise LibvirtFailed(text, hint=f"vgs {group}; lvs {group}", call="lvextend", libvirt_code=None)


def _as_no_space(error: LibvirtFailed, pool: str) -> LibvirtFailed | NoSpace:
    """Return the error as NoSpace if it is the pool's missing space."""
    if any(text in error.message.lower() for text in _NO_SPACE):
        return NoSpace(error.message, hint=f"virsh pool-info {pool}", **error.facts)
    return error


def _file_system_sizes(path: str) -> tuple[int, int] | None:
    """Return size and free space of the file system that a directory is on."""
    try:
        statistics = os.statvfs(path)
    except OSError:
        return None
    return statistics.f_frsize * statistics.f_blocks, statistics.f_frsize * statistics.f_bavail


def _add_volume(infos: list[VolumeInfo], pool: str, volume: virStorageVol) -> None:
    infos.append(_read_volume(pool, volume.name(), volume))


def _read_volume(pool: str, name: str, volume: virStorageVol) -> VolumeInfo:
    root = libvirt_xml.parse_xml(volume.XMLDesc(0))
    return VolumeInfo(
        pool=pool,
        name=name,
        path=volume.path(),
        capacity_bytes=int(volume.info()[1]),
        format=libvirt_xml.find_attribute(root, "target/format", "type")
        or ("raw" if root.get("type") == "block" else None),
        backing_path=libvirt_xml.find_text(root, "backingStore/path"),
    )
