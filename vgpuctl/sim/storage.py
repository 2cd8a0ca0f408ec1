# SPDX-License-Identifier: Apache-2.0
"""The Storage port of a simulated host: the scenario's images, and pools.

The directory pools are on one file system, and their volumes are thin. A logical pool is a volume group of its own.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from vgpuctl.errors import Exists, NoSpace
from vgpuctl.model.deleted_disk import BIN_FOLDER, LOGICAL_NAME
from vgpuctl.model.port_values import ImageFile, ImageInfo, PoolInfo, ResolvedPath, VolumeInfo
from vgpuctl.sim.core import Core, serialize_calls
from vgpuctl.sim.objects import SimFile, SimPool
from vgpuctl.sim.refusals import VirError, VirErrorNumber, read_call, write_call
from vgpuctl.sim.state import State, file_record
from vgpuctl.sim.volume_sending import SimVolumeSending

EMPTY_QCOW2_BYTES = 200 << 10
"""The disk space of an empty qcow2 image."""
EXTENT_BYTES = 4 << 20
"""LVM's usual extent (lvm.conf(5), physical_extent_size)."""


@serialize_calls
class SimStorage(SimVolumeSending):
    """libvirt's pools, and the images that the scenario lists. It never reads files of the real machine."""

    def __init__(self, core: Core) -> None:
        self._core = core

    # ----------------------------------------------------------------- pools

    def pool(self, name: str) -> PoolInfo | None:
        """Return one pool by name."""
        with read_call(self._core, "pool", name) as state:
            pool = state.pools.get(name)
            return None if pool is None else self._pool_info(state, pool)

    def pools(self) -> tuple[PoolInfo, ...]:
        """Return every pool, sorted by name."""
        with read_call(self._core, "pools") as state:
            return tuple(self._pool_info(state, pool) for _, pool in sorted(state.pools.items()))

    def volumes(self, pool: str, *, refresh: bool = True) -> tuple[VolumeInfo, ...]:
        """Return an active pool's volumes, sorted by name. The simulator needs no refresh."""
        with read_call(self._core, "volumes", pool) as state:
            storage_pool = self._require_pool(pool)
            files = (f for path, f in sorted(state.files.items()) if posixpath.dirname(path) == storage_pool.path)
            is_group = storage_pool.kind == "logical"
            return tuple(
                _volume_info(pool, file)
                for file in files
                if not (is_group and re.fullmatch(LOGICAL_NAME, posixpath.basename(file.path)))
            )

    def create_pool(self, name: str, path: str) -> None:
        """Define, build, start and autostart a directory pool.

        Raises:
            Exists: the name is taken.
        """
        with write_call(self._core, "make-pool", name) as change:
            pools = self._core.state.pools
            if name in pools:
                code = int(VirErrorNumber.OPERATION_FAILED)
                raise Exists(f"a storage pool named {name} already exists", libvirt_code=code, pool=name)
            for pool in pools.values():
                if pool.path == path:
                    raise VirError(
                        VirErrorNumber.OPERATION_FAILED,
                        f"operation failed: Storage source conflict with pool: '{pool.name}'",
                    )
            change.add("pool", name, path, True)

    def start_pool(self, name: str) -> None:
        """Start an inactive pool. It is no error if the pool is already active."""
        with write_call(self._core, "start-pool", name) as change:
            pool = self._require_pool(name, active=False)
            if not pool.active:
                change.add("pool", pool.name, pool.path, True, pool.kind, pool.capacity, pool.used)

    def remove_pool(self, name: str) -> None:
        """Stop and undefine a pool. Its files stay. It is no error if the pool does not exist."""
        with write_call(self._core, "remove-pool", name) as change:
            if name in self._core.state.pools:
                change.add("unpool", name)

    # --------------------------------------------------------------- volumes

    def volume(self, pool: str, name: str) -> VolumeInfo | None:
        """Return one volume, or None."""
        with read_call(self._core, "volume", name) as state:
            storage_pool = self._require_pool(pool)
            file = state.files.get(posixpath.join(storage_pool.path, name))
            return _volume_info(pool, file) if file is not None else None

    def create_volume(
        self,
        pool: str,
        name: str,
        capacity_bytes: int,
        base: str | None = None,
        base_format: str | None = None,
    ) -> VolumeInfo:
        """Create a thin qcow2 volume, or a raw logical volume of whole extents, exclusively.

        Raises:
            Exists: the name is taken.
            NoSpace: not even an empty image fits; in a logical pool, the volume does not fit.
        """
        with write_call(self._core, "make-volume", name) as change:
            state = self._core.state
            backing_file = None if base is None else state.find_file(base)
            if base is not None and backing_file is None:
                problem = f"cannot open backing store '{base}': No such file or directory"
                raise VirError(VirErrorNumber.SYSTEM_ERROR, problem)
            if self._require_pool(pool).kind == "logical":
                if base is not None:
                    raise VirError(VirErrorNumber.INTERNAL_ERROR, f"internal error: lvcreate: no snapshot of {base}")
                file = self._new_logical_volume(state, pool, name, capacity_bytes)
                change.add("file", file.path, file.size, "raw", None, file.allocation)
                return _volume_info(pool, file)
            path = self._new_volume_path(state, pool, name, EMPTY_QCOW2_BYTES)
            firmware = backing_file.firmware if backing_file is not None else "none"
            change.add("file", path, capacity_bytes, "qcow2", base, EMPTY_QCOW2_BYTES, firmware)
        return _volume_info(pool, SimFile(path, capacity_bytes, "qcow2", base, EMPTY_QCOW2_BYTES))

    def copy_image(
        self, source: str, source_format: str, target: VolumeInfo, target_format: str, report: Callable[[float], None]
    ) -> None:
        """Copy an image into a volume, in two halves; without the second the volume has no firmware to boot with.

        Raises:
            NoSpace: the volume's file system is full.
        """
        report(0.0)
        with write_call(self._core, "copy-image", target.path) as change:
            state = self._core.state
            image, file = state.find_file(source), state.find_file(target.path)
            if image is None or file is None:
                missing = source if image is None else target.path
                raise VirError(VirErrorNumber.SYSTEM_ERROR, f"Could not open '{missing}': No such file or directory")
            if image.format != source_format or file.format != target_format or image.size > file.size:
                problem = f"{source} is not a {source_format} image that fits into {target.path}"
                raise VirError(VirErrorNumber.INTERNAL_ERROR, problem)
            is_block = file.path.startswith("/dev/")
            allocation = file.allocation if is_block else _chain_allocation(state, image)
            if self.space(state, self._require_pool(target.pool))[1] < allocation - file.allocation:
                raise NoSpace(f"cannot copy {source} to {target.path}: No space left on device", path=source)
            report(50.0)
            change.add("file", file.path, file.size, file.format, file.base, allocation, image.firmware)
        report(100.0)

    def resize_volume(self, pool: str, name: str, capacity_bytes: int) -> VolumeInfo:
        """Grow a volume. In a logical pool its size is whole extents.

        Raises:
            NoSpace: the logical volume does not fit.
        """
        with write_call(self._core, "resize-volume", name) as change:
            state, storage_pool = self._core.state, self._require_pool(pool)
            path = posixpath.join(storage_pool.path, name)
            file = state.files.get(path)
            if file is None:
                raise VirError(
                    VirErrorNumber.NO_STORAGE_VOL,
                    f"Storage volume not found: no storage vol with matching name '{name}'",
                )
            size, allocation = capacity_bytes, file.allocation
            if storage_pool.kind == "logical":
                size = allocation = max(file.size, _whole_extents(capacity_bytes))
                if self.space(state, storage_pool)[1] < allocation - file.allocation:
                    raise NoSpace(
                        f"cannot resize volume {name}: insufficient free space", hint=f"virsh pool-info {pool}"
                    )
            elif capacity_bytes < file.size:
                raise VirError(VirErrorNumber.INVALID_ARG, "Can't shrink capacity below current capacity")
            grown = replace(file, size=size, allocation=allocation)
            change.add(*file_record(grown))
        return _volume_info(pool, grown)

    def create_private_volume(self, pool: str, name: str, data: bytes) -> VolumeInfo:
        """Create a raw volume with this content, exclusively.

        Raises:
            Exists: the name is taken.
            NoSpace: the content does not fit.
        """
        with write_call(self._core, "put-volume", name) as change:
            if self._require_pool(pool).kind == "logical":
                file = self._new_logical_volume(self._core.state, pool, name, len(data))
            else:
                path = self._new_volume_path(self._core.state, pool, name, len(data))
                file = SimFile(path, len(data), "raw", None, len(data))
            self._keep_content(file, data)
            change.add(*file_record(file))
        return _volume_info(pool, file)

    def read_private_volume(self, pool: str, name: str) -> bytes:
        """Return the content of a volume that `create_private_volume` made."""
        with read_call(self._core, "read-volume", name) as state:
            return self._content_path(self._private_volume(state, pool, name)).read_bytes()

    def rewrite_private_volume(self, pool: str, name: str, data: bytes) -> None:
        """Replace its content."""
        with write_call(self._core, "rewrite-volume", name) as change:
            file = replace(self._private_volume(self._core.state, pool, name))
            self._keep_content(file, data)
            change.add(*file_record(file))

    def _private_volume(self, state: State, pool: str, name: str) -> SimFile:
        file = state.files.get(posixpath.join(self._require_pool(pool).path, name))
        if file is None or file.digest is None:
            problem = f"Storage volume not found: no storage vol with matching name '{name}'"
            raise VirError(VirErrorNumber.NO_STORAGE_VOL, problem)
        return file

    def _keep_content(self, file: SimFile, data: bytes) -> None:
        """Store a volume's content in a file of its own, which only the user can read, and its digest with the rest."""
        file.digest = hashlib.sha256(data).hexdigest()
        path = self._content_path(file)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(data)

    def _content_path(self, file: SimFile) -> Path:
        return self._core.directory / "volumes" / hashlib.sha256(file.path.encode()).hexdigest()

    def remove_volume(self, pool: str, name: str) -> None:
        """Delete a volume. It is no error if the volume or its pool does not exist."""
        with write_call(self._core, "remove-volume", name) as change:
            if pool not in self._core.state.pools:
                return
            path = posixpath.join(self._require_pool(pool).path, name)
            file = self._core.state.files.get(path)
            if file is not None:
                self._content_path(file).unlink(missing_ok=True)
                change.add("unfile", path)

    def resolve(self, path: str) -> ResolvedPath | None:
        """Return a file or directory by path: a simulated host has no links, and all of it is root's."""
        with read_call(self._core, "image", path) as state:
            plain = posixpath.normpath(path)
            entry = state.files.get(plain)
            if entry is not None:
                return ResolvedPath(entry.link or plain) if state.find_file(path) is not None else None
            directories = [*map(posixpath.dirname, state.files), *(str(pool.path) for pool in state.pools.values())]
            return ResolvedPath(plain) if any(f"{one}/".startswith(f"{plain}/") for one in directories) else None

    def image(self, path: str) -> ImageInfo | None:
        """Return an image by path, or None."""
        with read_call(self._core, "image", path) as state:
            file = state.find_file(path)
            if file is None:
                folder = posixpath.normpath(path) + "/"
                paths = [*state.files, *(f"{pool.path}/" for pool in state.pools.values())]
                inside = any(entry.startswith(folder) for entry in paths)
                return ImageInfo(path, "directory", 0, access_problem=f"{path}: Is a directory") if inside else None
            chain, refusal = _backing_chain(state, path)
            return ImageInfo(path, file.format, file.size, file.firmware, file.problem, refusal, backing_chain=chain)

    def list_files(self, directory: str) -> tuple[str, ...]:
        """Return the paths of a directory's files."""
        with read_call(self._core, "files-in", directory) as state:
            return tuple(sorted(path for path in state.files if posixpath.dirname(path) == directory.rstrip("/")))

    def file_system_bytes(self, directory: str) -> int | None:
        """Return the size of a directory's file system: the pool's own, or the one that all others share."""
        with read_call(self._core, "file-system", directory) as state:
            pools = [pool for pool in state.pools.values() if pool.path == directory]
            return self.space(state, pools[0] if pools else SimPool("", directory, active=True))[0]

    def image_files(self, paths: Collection[str], *, reachable: Collection[str] | None = None) -> dict[str, ImageFile]:
        """Return, by path, the files that paths lead to, with their backing files.

        With `reachable`, files in a network pool (netfs) count only if the pool holds one of those paths.
        """
        with read_call(self._core, "image-files", ", ".join(paths)) as state:
            files = {path: image for path in paths if (image := _image_file(state, path)) is not None}
            if reachable is None:
                return files
            reachable_dirs = {posixpath.dirname(f.path) for path in reachable if (f := state.find_file(path))}
            remote_dirs = {pool.path for pool in state.pools.values() if pool.kind == "netfs"} - reachable_dirs
            return {path: f for path, f in files.items() if posixpath.dirname(f.identity) not in remote_dirs}

    # -------------------------------------------------------------- plumbing

    def _pool_info(self, state: State, pool: SimPool) -> PoolInfo:
        capacity, available = self.space(state, pool)
        return PoolInfo(
            name=pool.name,
            kind=pool.kind,
            active=pool.active,
            path=pool.path,
            capacity_bytes=capacity if pool.active else None,
            available_bytes=available if pool.active else None,
        )

    def _require_pool(self, name: str, *, active: bool = True) -> SimPool:
        pool = self._core.state.pools.get(name)
        if pool is None:
            raise VirError(
                VirErrorNumber.NO_STORAGE_POOL,
                f"Storage pool not found: no storage pool with matching name '{name}'",
            )
        if active and not pool.active:
            raise VirError(
                VirErrorNumber.OPERATION_INVALID,
                f"Requested operation is not valid: storage pool '{name}' is not active",
            )
        return pool

    def _new_volume_path(self, state: State, pool: str, name: str, allocation: int) -> str:
        """Return the path of a new volume. Check that its name is free and that the allocation fits."""
        storage_pool = self._require_pool(pool)
        path = posixpath.join(storage_pool.path, name)
        if path in state.files:
            code = int(VirErrorNumber.STORAGE_VOL_EXIST)
            raise Exists(f"a volume named {name} already exists in pool {pool}", libvirt_code=code, volume=name)
        if self.space(state, storage_pool)[1] < allocation:
            raise NoSpace(
                f"cannot create volume {name}: cannot create '{path}': No space left on device",
                hint=f"virsh pool-info {pool}",
                libvirt_code=int(VirErrorNumber.SYSTEM_ERROR),
                pool=pool,
            )
        return path

    def _new_logical_volume(self, state: State, pool: str, name: str, capacity_bytes: int) -> SimFile:
        size = _whole_extents(capacity_bytes)
        return SimFile(self._new_volume_path(state, pool, name, size), size, "raw", None, size)

    def space(self, state: State, pool: SimPool) -> tuple[int, int]:
        """Return capacity and free space: the pool's own, or those of the shared file system."""
        has_own_capacity = pool.capacity is not None
        file_system = self._core.machine.scenario["storage"]
        capacity = pool.capacity if pool.capacity is not None else file_system["capacity"]
        used = pool.used if has_own_capacity else file_system["used"]
        separate_dirs = {other.path for other in state.pools.values() if other.capacity is not None}
        for file in state.files.values():
            folder = posixpath.dirname(file.path).removesuffix(f"/{BIN_FOLDER}")
            if folder == pool.path if has_own_capacity else folder not in separate_dirs:
                used += file.allocation
        return capacity, max(0, capacity - used)


def _whole_extents(size_bytes: int) -> int:
    """Return a size as LVM rounds it up."""
    return -(-size_bytes // EXTENT_BYTES) * EXTENT_BYTES


def _chain_allocation(state: State, image: SimFile) -> int:
    """Return the space that an image takes together with its backing files."""
    total, current = 0, image
    while True:
        total += current.allocation
        base = None if current.base is None else state.find_file(current.base)
        if base is None:
            return total
        current = base


def _volume_info(pool: str, file: SimFile) -> VolumeInfo:
    return VolumeInfo(
        pool=pool,
        name=posixpath.basename(file.path),
        path=file.path,
        capacity_bytes=file.size,
        format=file.format,
        backing_path=file.base,
    )


def _image_file(state: State, path: str) -> ImageFile | None:
    file = state.find_file(path)
    return None if file is None else ImageFile(path, file.path, file.base, f"{file.size} {file.format}")


def _backing_chain(state: State, path: str) -> tuple[tuple[ImageFile, ...], str | None]:
    """Return an image with its backing files, and the reason why QEMU could not open them all, or None."""
    chain: list[ImageFile] = []
    current: str | None = path
    while current is not None:
        image = _image_file(state, current)
        if image is None:
            return tuple(chain), f"Could not open backing file: Could not open '{current}': No such file or directory"
        if any(image.identity == earlier.identity for earlier in chain):
            return tuple(chain), f"its backing files form a loop through {current}"
        chain.append(image)
        current = image.backing_path
    return tuple(chain), None
