# SPDX-License-Identifier: Apache-2.0
"""The bins of a simulated host's pools: files in a folder of the pool, or renamed logical volumes with a tag."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace

from vgpuctl.errors import Exists, NotFound, Refused
from vgpuctl.model.deleted_disk import (
    BIN_FOLDER,
    BINNED_KINDS,
    LOGICAL_NAME,
    TAG_PREFIX,
    BinEntry,
    BinnedVolume,
    parse_bin_entry,
)
from vgpuctl.sim.core import Core, serialize_calls
from vgpuctl.sim.objects import SimFile, SimPool
from vgpuctl.sim.refusals import VirError, VirErrorNumber, read_call, write_call
from vgpuctl.sim.state import State, file_record


@serialize_calls
class SimVolumeBin:
    """The bins of all pools. Folders in directory pools are made without a trace."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def prepare(self, pool: str) -> None:
        """Check that the pool's volumes can be renamed."""
        with write_call(self._core, "prepare-bin", pool):
            self._require_pool(self._core.state, pool)

    def move_in(self, pool: str, volume: str, entry: str) -> None:
        """Rename a volume to its entry; a missing one is no error."""
        with write_call(self._core, "bin-volume", volume) as change:
            state = self._core.state
            storage_pool = self._require_pool(state, pool)
            file = state.files.get(posixpath.join(storage_pool.path, volume))
            if file is None:
                return
            path = _path_in_bin(storage_pool, entry)
            if path in state.files:
                raise Refused(f"{path} exists already", path=path)
            tag = f"{TAG_PREFIX}{entry}" if storage_pool.kind == "logical" else None
            change.add(*file_record(replace(file, path=path, tag=tag)))
            change.add("unfile", file.path)

    def volumes(self, pool: str) -> tuple[BinnedVolume, ...]:
        """Return what is in the bin of a pool, by name."""
        with read_call(self._core, "bin-volumes", pool) as state:
            storage_pool = state.pools.get(pool)
            if storage_pool is None or storage_pool.kind not in BINNED_KINDS:
                return ()
            files = sorted(state.files.items())
            volumes = [_binned(pool, file) for path, file in files if _is_in_bin(storage_pool, path)]
            return tuple(sorted(volumes, key=lambda one: one.entry.name if one.entry else one.path))

    def move_out(self, pool: str, entry: str, volume: str) -> str:
        """Make an entry a volume again, and return its path."""
        with write_call(self._core, "unbin-volume", volume) as change:
            state = self._core.state
            storage_pool = self._require_pool(state, pool)
            file = _file_of(state, storage_pool, entry)
            path = posixpath.join(storage_pool.path, volume)
            if file is None:
                raise NotFound(f"the bin of storage pool {pool} has no {entry}")
            if path in state.files:
                raise Exists(f"{path} exists already", path=path)
            change.add(*file_record(replace(file, path=path, tag=None)))
            change.add("unfile", file.path)
        return path

    def delete(self, pool: str, entry: str) -> None:
        """Delete an entry; a missing one is no error."""
        with write_call(self._core, "purge-volume", entry) as change:
            state = self._core.state
            file = _file_of(state, self._require_pool(state, pool), entry)
            if file is not None:
                change.add("unfile", file.path)

    def _require_pool(self, state: State, name: str) -> SimPool:
        pool = state.pools.get(name)
        if pool is not None and not pool.active:
            raise VirError(VirErrorNumber.OPERATION_INVALID, f"storage pool '{name}' is not active")
        if pool is None or pool.kind not in BINNED_KINDS:
            what = "is missing" if pool is None else f"is of the kind {pool.kind}, whose volumes cannot be renamed"
            raise Refused(f"the storage pool {name} {what}: it has no bin", pool=name)
        return pool


def _path_in_bin(pool: SimPool, entry: str) -> str:
    if pool.kind != "logical":
        return posixpath.join(pool.path, BIN_FOLDER, entry)
    parsed = parse_bin_entry(entry)
    if parsed is None:
        raise ValueError(f"{entry} is not an entry of the bin")
    return posixpath.join(pool.path, parsed.logical_name)


def _is_in_bin(pool: SimPool, path: str) -> bool:
    folder, name = posixpath.split(path)
    if pool.kind == "logical":
        return folder == pool.path and re.fullmatch(LOGICAL_NAME, name) is not None
    return folder == posixpath.join(pool.path, BIN_FOLDER)


def _entry_of(file: SimFile) -> BinEntry | None:
    name = posixpath.basename(file.path)
    if not re.fullmatch(LOGICAL_NAME, name):
        return parse_bin_entry(name)
    entry = parse_bin_entry((file.tag or "").removeprefix(TAG_PREFIX))
    return entry if entry is not None and entry.logical_name == name else None


def _binned(pool: str, file: SimFile) -> BinnedVolume:
    entry = _entry_of(file)
    problem = None if entry is not None else "vgpuctl gives no such name"
    return BinnedVolume(pool, file.path, entry, file.allocation, problem)


def _file_of(state: State, pool: SimPool, entry: str) -> SimFile | None:
    file = state.files.get(_path_in_bin(pool, entry)) if parse_bin_entry(entry) is not None else None
    return file if file is not None and _entry_of(file) is not None else None
