# SPDX-License-Identifier: Apache-2.0
"""The bins of libvirt's storage pools; implements `ports.VolumeBin`.

libvirt cannot rename a volume. In a directory pool the file is renamed (`host.folder_bin`), in a volume group the
logical volume: it gets a tag with its entry (lvm(8), "TAGS"), then its name in the bin. libvirt notices a missing file
by itself, and learns the names of logical volumes in a refresh.
"""

from __future__ import annotations

import re

from vgpuctl.errors import Exists, HostCannot, LibvirtFailed, NotFound, Refused
from vgpuctl.host import commands
from vgpuctl.host.folder_bin import FolderBin
from vgpuctl.host.virt.storage import LibvirtStorage
from vgpuctl.model.deleted_disk import BINNED_KINDS, LOGICAL_NAME, TAG_PREFIX, BinnedVolume, parse_bin_entry

_LVM_SECONDS = 60.0


class LibvirtVolumeBin:
    """The bins of one connection's pools."""

    def __init__(self, storage: LibvirtStorage) -> None:
        self._storage = storage

    def prepare(self, pool: str) -> None:
        """Make the bin of a pool if it has none."""
        self._bin(pool).prepare()

    def move_in(self, pool: str, volume: str, entry: str) -> None:
        """Rename a volume to its entry in the bin."""
        self._bin(pool).move_in(volume, entry)

    def volumes(self, pool: str) -> tuple[BinnedVolume, ...]:
        """Return what is in the bin of a pool; a pool without volumes that can be renamed has none."""
        info = self._storage.pool(pool)
        return () if info is None or info.kind not in BINNED_KINDS else self._bin(pool).volumes()

    def move_out(self, pool: str, entry: str, volume: str) -> str:
        """Make an entry a volume again."""
        return self._bin(pool).move_out(entry, volume)

    def delete(self, pool: str, entry: str) -> None:
        """Delete an entry for good."""
        self._bin(pool).delete(entry)

    def _bin(self, pool: str) -> FolderBin | _GroupBin:
        info = self._storage.pool(pool)
        if info is None or info.path is None or info.kind not in BINNED_KINDS:
            kind = "is missing" if info is None else f"is of the kind {info.kind}, whose volumes cannot be renamed"
            raise Refused(f"the storage pool {pool} {kind}: it has no bin", hint=f"virsh pool-info {pool}", pool=pool)
        if info.kind != "logical":
            return FolderBin(pool, info.path)
        group = self._storage.volume_group(pool)
        return _GroupBin(self._storage, pool, group, info.path)


class _GroupBin:
    """The bin of a volume group, whose devices are in `directory`."""

    def __init__(self, storage: LibvirtStorage, pool: str, group: str, directory: str) -> None:
        self._storage = storage
        self._pool = pool
        self._group = group
        self._directory = directory

    def prepare(self) -> None:
        """Check that LVM's programs are there."""
        for program in ("lvrename", "lvchange", "lvs"):
            _find_program(program)

    def move_in(self, volume: str, entry: str) -> None:
        """Give a logical volume its tag, then its name in the bin."""
        if volume in self._tags_by_name():
            self._run("lvchange", "--addtag", f"{TAG_PREFIX}{entry}", "--", f"{self._group}/{volume}")
            self._run("lvrename", "--", self._group, volume, _logical_name(entry))
        self._storage.refresh(self._pool)

    def volumes(self) -> tuple[BinnedVolume, ...]:
        """Return the logical volumes with names of the bin."""
        volumes: list[BinnedVolume] = []
        for name, (size, tags) in self._tags_by_name().items():
            if not re.fullmatch(LOGICAL_NAME, name):
                continue
            texts = [tag.removeprefix(TAG_PREFIX) for tag in tags if tag.startswith(TAG_PREFIX)]
            entries = [entry for entry in map(parse_bin_entry, texts) if entry and entry.logical_name == name]
            problem = None if entries else "it has no tag of vgpuctl that belongs to its name"
            entry = entries[0] if entries else None
            volumes.append(BinnedVolume(self._pool, f"{self._directory}/{name}", entry, size, problem))
        return tuple(sorted(volumes, key=lambda one: one.entry.name if one.entry else one.path))

    def move_out(self, entry: str, volume: str) -> str:
        """Rename an entry to a volume, then remove its tag; lvrename refuses a name that exists."""
        if not self._has(entry):
            raise NotFound(f"the bin of storage pool {self._pool} has no {entry}", hint="vgpuctl list-deleted")
        path = f"{self._directory}/{volume}"
        if volume in self._tags_by_name():
            raise Exists(f"{path} exists already", hint=f"lvs {self._group}", path=path)
        self._run("lvrename", "--", self._group, _logical_name(entry), volume)
        self._run("lvchange", "--deltag", f"{TAG_PREFIX}{entry}", "--", f"{self._group}/{volume}")
        self._storage.refresh(self._pool)
        return path

    def delete(self, entry: str) -> None:
        """Delete the logical volume of an entry, as a volume of its size is deleted."""
        if self._has(entry):
            self._storage.remove_volume(self._pool, _logical_name(entry))

    def _has(self, entry: str) -> bool:
        return any(one.entry is not None and one.entry.name == entry for one in self.volumes())

    def _tags_by_name(self) -> dict[str, tuple[int, list[str]]]:
        """Return size and tags of each logical volume."""
        columns = ("--noheadings", "--units", "b", "--nosuffix", "--separator", " ", "-o", "lv_name,lv_size,lv_tags")
        return read_logical_volumes(self._run("lvs", *columns, "--", self._group))

    def _run(self, program: str, *arguments: str) -> str:
        failure = f"{program} failed in the volume group {self._group}"
        try:
            result = commands.run_command([_find_program(program), *arguments], deadline_seconds=_LVM_SECONDS)
        except OSError as error:
            raise LibvirtFailed(f"{failure}: {error}", call=program, libvirt_code=None) from error
        if result.status != 0:
            text = f"{failure}: {result.error_line}"
            raise LibvirtFailed(text, hint=f"lvs -a -o +tags {self._group}", call=program, libvirt_code=None)
        return result.stdout


def read_logical_volumes(text: str) -> dict[str, tuple[int, list[str]]]:
    """Return size and tags of each logical volume that lvs lists, by name."""
    lines = (line.split() for line in text.splitlines())
    return {words[0]: (int(words[1]), ",".join(words[2:]).split(",")) for words in lines if len(words) > 1}


def _logical_name(entry: str) -> str:
    parsed = parse_bin_entry(entry)
    if parsed is None:
        raise ValueError(f"{entry} is not an entry of the bin")
    return parsed.logical_name


def _find_program(program: str) -> str:
    path = commands.find_command(program)
    if path is None:
        raise HostCannot(f"{program} is not installed", hint="apt install lvm2", check="lvm2")
    return path
