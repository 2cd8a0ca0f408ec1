# SPDX-License-Identifier: Apache-2.0
"""libvirt's storage pools and volumes, as `seams.Storage`.

libvirt remembers a pool's volumes and free space until the pool is refreshed, and a refresh opens every volume:
with hundreds of disks that is the slowest call of all, and it fails while another caller makes a volume. So a
volume is looked up first; libvirt re-reads that one file when asked about it, and only a miss refreshes. Free
space is asked of the file system, which is what libvirt does at a refresh (storage_util.c).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from vgpuctl.errors import Exists, LibvirtFailed, NoSpace
from vgpuctl.host.image_chain import glance
from vgpuctl.host.virt import documents, numbers
from vgpuctl.host.virt.connection import Connection, code_of
from vgpuctl.model.records import Glance, ImageRecord, PoolRecord, VolumeRecord

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import virConnect, virStoragePool, virStorageVol
    from vgpuctl.model.seams import Clock

_DIRECTORY_KINDS = ("dir", "fs", "netfs")
_TAKEN = (
    numbers.VIR_ERR_STORAGE_VOL_EXIST,
    numbers.VIR_ERR_OPERATION_INVALID,  # a file that the pool does not know of (seen with 9.0)
    numbers.VIR_ERR_OPERATION_FAILED,  # the test driver
)
_BUSY = frozenset({numbers.VIR_ERR_INTERNAL_ERROR, numbers.VIR_ERR_OPERATION_INVALID})
_REFRESH_TRIES = 20
_REFRESH_PAUSE_SECONDS = 0.05
_SEND_BYTES = 256 << 10
"""libvirt's remote protocol takes no more in one message."""
_MOST_FILES = 10_000
_NO_SPACE = "No space left on device"


Look = Callable[[str, Callable[[], Iterable[str]]], ImageRecord | None]


class LibvirtStorage:
    """Pools and volumes of one connection; `look` examines an image file."""

    def __init__(self, connection: Connection, clock: Clock, look: Look) -> None:
        self._connection = connection
        self._clock = clock
        self._look = look

    def pool(self, name: str) -> PoolRecord | None:
        """Return one pool by name, or None."""
        failure = f"cannot look up storage pool {name}"
        with self._connection.calling("virStoragePoolLookupByName", failure, pool=name) as connect:
            found = self._found_pool(connect, name)
            return None if found is None else _pool_record(found)

    def pools(self) -> tuple[PoolRecord, ...]:
        """Return every pool, sorted by name; one that vanishes while listing is left out."""
        with self._connection.calling("virConnectListAllStoragePools", "cannot list storage pools") as connect:
            missing, sought = numbers.VIR_ERR_NO_STORAGE_POOL, self._connection.sought
            records = [sought(missing, partial(_pool_record, pool)) for pool in connect.listAllStoragePools(0)]
        return tuple(sorted((r for r in records if r is not None), key=lambda record: record.name))

    def volumes(self, pool: str, *, refresh: bool = True) -> tuple[VolumeRecord, ...]:
        """Return an active pool's volumes after a refresh, where the caller may refresh it."""
        failure = f"cannot list the volumes of storage pool {pool}"
        found: list[VolumeRecord] = []
        with self._connection.calling("virStoragePoolListAllVolumes", failure, pool=pool) as connect:
            holder = connect.storagePoolLookupByName(pool)
            if refresh:
                self._connection.tried(numbers.NOT_ALLOWED, partial(self._refresh, holder))
            gone = frozenset({numbers.VIR_ERR_SYSTEM_ERROR, numbers.VIR_ERR_NO_STORAGE_VOL})
            for volume in holder.listAllVolumes(0):
                self._connection.tried(gone, partial(_add_record, found, pool, volume))
        return tuple(sorted(found, key=lambda record: record.name))

    def make_pool(self, name: str, path: str) -> None:
        """Define, build, start and autostart a directory pool; the directory may exist."""
        failure = f"cannot make storage pool {name}"
        try:
            with self._connection.calling("virStoragePoolDefineXML", failure, pool=name, path=path) as connect:
                pool = connect.storagePoolDefineXML(documents.pool_xml(name, path), 0)
                try:
                    pool.build(0)
                    pool.create(0)
                    pool.setAutostart(1)
                except BaseException:
                    self._connection.tried(None, pool.destroy)
                    self._connection.tried(None, pool.undefine)
                    raise
        except LibvirtFailed as error:
            if code_of(error) == numbers.VIR_ERR_OPERATION_FAILED and self.pool(name) is not None:
                raise Exists(f"a storage pool named {name} exists already", hint=None, **error.facts) from error
            raise

    def start_pool(self, name: str) -> None:
        """Start an inactive pool; one that runs already is no error."""
        failure = f"cannot start storage pool {name}"
        with self._connection.calling("virStoragePoolCreate", failure, pool=name) as connect:
            pool = connect.storagePoolLookupByName(name)
            invalid = frozenset({numbers.VIR_ERR_OPERATION_INVALID})
            if self._connection.tried(invalid, partial(pool.create, 0)) is not None and not pool.isActive():
                pool.create(0)

    def remove_pool(self, name: str) -> None:
        """Stop and undefine a pool; its directory and files stay. One that is gone is no error."""
        failure = f"cannot remove storage pool {name}"
        with self._connection.calling("virStoragePoolUndefine", failure, pool=name) as connect:
            pool = self._found_pool(connect, name)
            if pool is not None:
                if pool.isActive():
                    pool.destroy()
                pool.undefine()

    def volume(self, pool: str, name: str) -> VolumeRecord | None:
        """Return one volume, or None when it is not there after a refresh of the pool either."""
        failure = f"cannot look up volume {name} in pool {pool}"
        with self._connection.calling("virStorageVolLookupByName", failure, pool=pool, volume=name) as connect:
            found = self._found_volume(connect.storagePoolLookupByName(pool), name)
            return None if found is None else _volume_record(pool, name, found)

    def make_volume(
        self,
        pool: str,
        name: str,
        capacity_bytes: int,
        base: str | None = None,
        base_format: str | None = None,
    ) -> VolumeRecord:
        """Make a thin qcow2 volume; libvirt refuses a name or a file that exists."""
        with self._making(pool, name) as connect:
            text = documents.volume_xml(name, capacity_bytes, base, base_format)
            made = connect.storagePoolLookupByName(pool).createXML(text, 0)
            return _volume_record(pool, name, made)

    def put_volume(self, pool: str, name: str, data: bytes) -> VolumeRecord:
        """Make a raw volume of mode 0600 and send these bytes into it through a stream of libvirt's."""
        with self._making(pool, name) as connect:
            text = documents.private_volume_xml(name, len(data))
            made = connect.storagePoolLookupByName(pool).createXML(text, 0)
            try:
                _send(connect, made, data)
            except BaseException:
                self._connection.tried(None, partial(made.delete, 0))
                raise
            return _volume_record(pool, name, made)

    @contextmanager
    def _making(self, pool: str, name: str) -> Iterator[virConnect]:
        """Give out the connection to make a volume, and tell a name that is taken and a full pool apart."""
        failure = f"cannot make volume {name} in pool {pool}"
        try:
            with self._connection.calling("virStorageVolCreateXML", failure, pool=pool, volume=name) as connect:
                yield connect
        except LibvirtFailed as error:
            if _NO_SPACE in error.message:
                raise NoSpace(error.message, hint=f"virsh pool-info {pool}", **error.facts) from error
            if code_of(error) in _TAKEN and self.volume(pool, name) is not None:
                raise Exists(
                    f"a volume named {name} exists already in pool {pool}", hint=None, **error.facts
                ) from error
            raise

    def remove_volume(self, pool: str, name: str) -> None:
        """Delete a volume; one that is gone already is no error."""
        failure = f"cannot delete volume {name} in pool {pool}"
        with self._connection.calling("virStorageVolDelete", failure, pool=pool, volume=name) as connect:
            holder = self._found_pool(connect, pool)
            found = None if holder is None else self._found_volume(holder, name)
            if found is not None:
                self._connection.tried(frozenset({numbers.VIR_ERR_NO_STORAGE_VOL}), partial(found.delete, 0))

    def image(self, path: str) -> ImageRecord | None:
        """Look at an image file without changing it; None when there is none."""
        return self._look(path, lambda: (pool.path for pool in self.pools() if pool.path is not None))

    def files_in(self, directory: str) -> tuple[str, ...]:
        """Return the paths of a directory's files; of a large directory not all."""
        try:
            with os.scandir(directory) as entries:
                return tuple(sorted(entry.path for entry in islice(entries, _MOST_FILES) if not entry.is_dir()))
        except OSError:
            return ()

    def file_system_bytes(self, directory: str) -> int | None:
        """Return how large the file system is that a directory is on, or would be made on."""
        while not os.path.isdir(directory) and directory != "/":
            directory = os.path.dirname(directory)
        found = _file_system(directory)
        return None if found is None else found[0]

    def glance(self, path: str, *, near: Collection[str] | None = None) -> Glance | None:
        """Return which file a path leads to, and the file below it."""
        return glance(path, near=near)

    def _found_pool(self, connect: virConnect, name: str) -> virStoragePool | None:
        missing = numbers.VIR_ERR_NO_STORAGE_POOL
        return self._connection.sought(missing, partial(connect.storagePoolLookupByName, name))

    def _found_volume(self, pool: virStoragePool, name: str) -> virStorageVol | None:
        """Look a volume up, once more after a refresh when it is not known or its file is gone."""
        look = partial(pool.storageVolLookupByName, name)
        found = self._connection.sought(numbers.VIR_ERR_NO_STORAGE_VOL, look)
        if found is not None:
            # Asking for its sizes makes libvirt look at the file; without one it says so.
            gone = frozenset({numbers.VIR_ERR_SYSTEM_ERROR, numbers.VIR_ERR_NO_STORAGE_VOL})
            if self._connection.tried(gone, found.info) is None:
                return found
        self._refresh(pool)
        return self._connection.sought(numbers.VIR_ERR_NO_STORAGE_VOL, look)

    def _refresh(self, pool: virStoragePool) -> None:
        """Refresh, waiting while another caller makes a volume in the pool ("has asynchronous jobs")."""
        for _try in range(_REFRESH_TRIES):
            if self._connection.tried(_BUSY, partial(pool.refresh, 0)) is None:
                return
            self._clock.pause(_REFRESH_PAUSE_SECONDS)
        pool.refresh(0)


def _pool_record(pool: virStoragePool) -> PoolRecord:
    root = documents.parsed(pool.XMLDesc(0))
    kind = root.get("type") or "?"
    path = documents.text_at(root, "target/path")
    active = bool(pool.isActive())
    sizes: tuple[int, int] | None = None
    if active:
        sizes = _file_system(path) if path is not None and kind in _DIRECTORY_KINDS else None
        if sizes is None:
            _state, capacity, _allocation, available = pool.info()
            sizes = (capacity, available)
    return PoolRecord(
        name=pool.name(),
        kind=kind,
        active=active,
        path=path,
        capacity_bytes=sizes[0] if sizes else None,
        available_bytes=sizes[1] if sizes else None,
    )


def _send(connect: virConnect, volume: virStorageVol, data: bytes) -> None:
    """Write bytes into a volume; `finish` waits until libvirt has them."""
    stream = connect.newStream(0)
    try:
        volume.upload(stream, 0, len(data), 0)
        sent = 0
        while sent < len(data):
            sent += stream.send(data[sent : sent + _SEND_BYTES])
    except BaseException:
        with suppress(Exception):  # it may never have begun; the volume is deleted anyway
            stream.abort()
        raise
    stream.finish()


def _file_system(path: str) -> tuple[int, int] | None:
    """Return size and free space of the file system below a directory."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _add_record(found: list[VolumeRecord], pool: str, volume: virStorageVol) -> None:
    found.append(_volume_record(pool, volume.name(), volume))


def _volume_record(pool: str, name: str, volume: virStorageVol) -> VolumeRecord:
    root = documents.parsed(volume.XMLDesc(0))
    return VolumeRecord(
        pool=pool,
        name=name,
        path=volume.path(),
        capacity_bytes=int(volume.info()[1]),
        format=documents.attribute_at(root, "target/format", "type"),
        backing_path=documents.text_at(root, "backingStore/path"),
    )
