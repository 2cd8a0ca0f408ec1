# SPDX-License-Identifier: Apache-2.0
"""The Storage seam of a simulated host: directory pools on one file system, thin volumes, known images."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Collection

from vgpuctl.errors import Exists, NoSpace
from vgpuctl.model.records import Glance, ImageRecord, PoolRecord, VolumeRecord
from vgpuctl.sim.core import Core
from vgpuctl.sim.libvirt_errors import Code, VirError, changing, looking
from vgpuctl.sim.state import State
from vgpuctl.sim.things import SimFile, SimPool
from vgpuctl.sim.turns import in_turn

THIN_BYTES = 200 << 10
"""What an empty qcow2 image takes on the disk."""


@in_turn
class SimStorage:
    """libvirt's pools, and the images that the scenario lists. Files of this machine are never looked at."""

    def __init__(self, core: Core) -> None:
        self._core = core

    # ----------------------------------------------------------------- pools

    def pool(self, name: str) -> PoolRecord | None:
        """Return one pool by name."""
        with looking(self._core, "pool", name) as state:
            pool = state.pools.get(name)
            return None if pool is None else self._record(state, pool)

    def pools(self) -> tuple[PoolRecord, ...]:
        """Return every pool, sorted by name."""
        with looking(self._core, "pools") as state:
            return tuple(self._record(state, pool) for _, pool in sorted(state.pools.items()))

    def volumes(self, pool: str, *, refresh: bool = True) -> tuple[VolumeRecord, ...]:
        """Return an active pool's volumes, sorted by name; what is here needs no refresh."""
        with looking(self._core, "volumes", pool) as state:
            where = self._known(pool)
            files = (f for path, f in sorted(state.files.items()) if posixpath.dirname(path) == where.path)
            return tuple(_volume(pool, file) for file in files)

    def make_pool(self, name: str, path: str) -> None:
        """Define, build, start and autostart a directory pool.

        Raises:
            Exists: the name is taken.
        """
        with changing(self._core, "make-pool", name) as change:
            pools = self._core.state.pools
            if name in pools:
                code = int(Code.OPERATION_FAILED)
                raise Exists(f"a storage pool named {name} exists already", libvirt_code=code, pool=name)
            for pool in pools.values():
                if pool.path == path:
                    raise VirError(
                        Code.OPERATION_FAILED,
                        f"operation failed: Storage source conflict with pool: '{pool.name}'",
                    )
            change.add("pool", name, path, True)

    def start_pool(self, name: str) -> None:
        """Start an inactive pool; one that runs already is no error."""
        with changing(self._core, "start-pool", name) as change:
            pool = self._known(name, active=False)
            if not pool.active:
                change.add("pool", pool.name, pool.path, True, pool.kind, pool.capacity, pool.used)

    def remove_pool(self, name: str) -> None:
        """Stop and undefine a pool; its files stay. One that is gone is no error."""
        with changing(self._core, "remove-pool", name) as change:
            if name in self._core.state.pools:
                change.add("unpool", name)

    # --------------------------------------------------------------- volumes

    def volume(self, pool: str, name: str) -> VolumeRecord | None:
        """Return one volume, or None."""
        with looking(self._core, "volume", name) as state:
            where = self._known(pool)
            file = state.files.get(posixpath.join(where.path, name))
            return _volume(pool, file) if file is not None else None

    def make_volume(
        self,
        pool: str,
        name: str,
        capacity_bytes: int,
        base: str | None = None,
        base_format: str | None = None,
    ) -> VolumeRecord:
        """Make a thin qcow2 volume, exclusively.

        Raises:
            Exists: the name is taken.
            NoSpace: not even an empty image fits.
        """
        with changing(self._core, "make-volume", name) as change:
            state = self._core.state
            below = None if base is None else state.file(base)
            if base is not None and below is None:
                missing = f"cannot open backing store '{base}': No such file or directory"
                raise VirError(Code.SYSTEM_ERROR, missing)
            path = self._new(state, pool, name, THIN_BYTES)
            firmware = below.firmware if below is not None else "none"
            change.add("file", path, capacity_bytes, "qcow2", base, THIN_BYTES, firmware)
        return _volume(pool, SimFile(path, capacity_bytes, "qcow2", base, THIN_BYTES))

    def put_volume(self, pool: str, name: str, data: bytes) -> VolumeRecord:
        """Make a raw volume that holds these bytes, exclusively; of the bytes only the digest is kept.

        Raises:
            Exists: the name is taken.
            NoSpace: it does not fit.
        """
        with changing(self._core, "put-volume", name) as change:
            path = self._new(self._core.state, pool, name, len(data))
            digest = hashlib.sha256(data).hexdigest()
            change.add("file", path, len(data), "raw", None, len(data), "none", None, digest)
        return _volume(pool, SimFile(path, len(data), "raw", None, len(data)))

    def remove_volume(self, pool: str, name: str) -> None:
        """Delete a volume; one that is gone already, or whose pool is, is no error."""
        with changing(self._core, "remove-volume", name) as change:
            if pool not in self._core.state.pools:
                return
            path = posixpath.join(self._known(pool).path, name)
            if path in self._core.state.files:
                change.add("unfile", path)

    def image(self, path: str) -> ImageRecord | None:
        """Look at an image by path."""
        with looking(self._core, "image", path) as state:
            file = state.file(path)
            if file is None:
                folder = posixpath.normpath(path) + "/"
                holds = [*state.files, *(f"{pool.path}/" for pool in state.pools.values())]
                inside = any(one.startswith(folder) for one in holds)
                return ImageRecord(path, "directory", 0, problem=f"{path}: Is a directory") if inside else None
            chain, refusal = _chain(state, path)
            return ImageRecord(path, file.format, file.size, file.firmware, file.problem, refusal, chain=chain)

    def files_in(self, directory: str) -> tuple[str, ...]:
        """Return the paths of a directory's files."""
        with looking(self._core, "files-in", directory) as state:
            return tuple(sorted(path for path in state.files if posixpath.dirname(path) == directory.rstrip("/")))

    def file_system_bytes(self, directory: str) -> int | None:
        """Return how large the file system is that a directory is on: a pool's own, or that of all others."""
        with looking(self._core, "file-system", directory) as state:
            pools = [pool for pool in state.pools.values() if pool.path == directory]
            return self._space(state, pools[0] if pools else SimPool("", directory, active=True))[0]

    def glance(self, path: str, *, near: Collection[str] | None = None) -> Glance | None:
        """Return which file a path leads to, and the file below it.

        With `near` none in a pool on the network that has none of those.
        """
        with looking(self._core, "glance", path) as state:
            found = _glance(state, path)
            if found is None or near is None:
                return found
            far = {pool.path for pool in state.pools.values() if pool.kind == "netfs"}
            far -= {posixpath.dirname(file.path) for one in near if (file := state.file(one)) is not None}
            return None if posixpath.dirname(found.identity) in far else found

    # -------------------------------------------------------------- plumbing

    def _record(self, state: State, pool: SimPool) -> PoolRecord:
        capacity, available = self._space(state, pool)
        return PoolRecord(
            name=pool.name,
            kind=pool.kind,
            active=pool.active,
            path=pool.path,
            capacity_bytes=capacity if pool.active else None,
            available_bytes=available if pool.active else None,
        )

    def _known(self, name: str, *, active: bool = True) -> SimPool:
        pool = self._core.state.pools.get(name)
        if pool is None:
            raise VirError(
                Code.NO_STORAGE_POOL,
                f"Storage pool not found: no storage pool with matching name '{name}'",
            )
        if active and not pool.active:
            raise VirError(
                Code.OPERATION_INVALID,
                f"Requested operation is not valid: storage pool '{name}' is not active",
            )
        return pool

    def _new(self, state: State, pool: str, name: str, allocation: int) -> str:
        """Return the path of a new volume that takes so many bytes."""
        where = self._known(pool)
        path = posixpath.join(where.path, name)
        if path in state.files:
            code = int(Code.STORAGE_VOL_EXIST)
            raise Exists(f"a volume named {name} exists already in pool {pool}", libvirt_code=code, volume=name)
        if self._space(state, where)[1] < allocation:
            raise NoSpace(
                f"cannot make volume {name}: cannot create '{path}': No space left on device",
                hint=f"virsh pool-info {pool}",
                libvirt_code=int(Code.SYSTEM_ERROR),
                pool=pool,
            )
        return path

    def _space(self, state: State, pool: SimPool) -> tuple[int, int]:
        """Return capacity and free space: the pool's own, or the file system's that it shares."""
        own = pool.capacity is not None
        whole = self._core.machine.scenario["storage"]
        capacity = pool.capacity if pool.capacity is not None else whole["capacity"]
        used = pool.used if own else whole["used"]
        shared = {other.path for other in state.pools.values() if other.capacity is not None}
        for file in state.files.values():
            folder = posixpath.dirname(file.path)
            if folder == pool.path if own else folder not in shared:
                used += file.allocation
        return capacity, max(0, capacity - used)


def _volume(pool: str, file: SimFile) -> VolumeRecord:
    return VolumeRecord(
        pool=pool,
        name=posixpath.basename(file.path),
        path=file.path,
        capacity_bytes=file.size,
        format=file.format,
        backing_path=file.base,
    )


def _glance(state: State, path: str) -> Glance | None:
    file = state.file(path)
    return None if file is None else Glance(path, file.path, file.base, f"{file.size} {file.format}")


def _chain(state: State, path: str) -> tuple[tuple[Glance, ...], str | None]:
    """Return an image and those below it, and why QEMU could not open them all."""
    chain: list[Glance] = []
    below: str | None = path
    while below is not None:
        found = _glance(state, below)
        if found is None:
            return tuple(chain), f"Could not open backing file: Could not open '{below}': No such file or directory"
        if any(found.identity == one.identity for one in chain):
            return tuple(chain), f"its backing files lead back to {below}"
        chain.append(found)
        below = found.below
    return tuple(chain), None
