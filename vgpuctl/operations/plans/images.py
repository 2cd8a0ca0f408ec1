# SPDX-License-Identifier: Apache-2.0
"""Which images are bases of which disks, and which volumes no VM refers to. Pure: it removes nothing.

A volume's role is the first that applies: it has a clone (`base`), cloud-init reads it as the seed of a VM (`seed`), a
VM refers to it (`disk`), it is named like vgpuctl's disks and nobody refers to it (`orphan`), anything else (`other`).
A name proves nothing: an orphan may be anybody's file that happens to end in eight hexadecimal digits.
"""

from __future__ import annotations

import difflib
import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from vgpuctl.domain.domain_xml import DiskSources
from vgpuctl.model.port_values import ImageInfo, VolumeInfo
from vgpuctl.model.results.vms import CloneResult, ImageResult
from vgpuctl.model.vm import DiskRole, ManagedDisk
from vgpuctl.value import EMPTY_MAPPING, Value, replace

_MANAGED_VOLUME_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9a-f]{8}((-[0-9]+)?\.qcow2|-seed\.iso)", re.ASCII)
"""vgpuctl's volumes: NAME-<8 of uuid>.qcow2, from the second on NAME-<8 of uuid>-N.qcow2; seeds end in -seed.iso."""
_MANAGED_LOGICAL_VOLUME_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9a-f]{8}(-[0-9]+|-seed)?", re.ASCII)
"""The same in a logical pool: without a suffix."""
_IMAGE_SUFFIXES = (".img", ".iso", ".qcow2", ".raw", ".vdi", ".vhd", ".vhdx", ".vmdk")
_SIMILARITY = 0.7
_MAX_NAMED = 5


class DiskUser(Value):
    """A VM with the disks that libvirt and its record name, whether they exist yet or not."""

    name: str
    sources: DiskSources
    created_disks: tuple[ManagedDisk, ...] = ()


class DiskReferences(Value):
    """Who refers to which file, and which file is a clone of which.

    `formats`: how VMs interpret a file. `seeds`: the files that records name as seeds for cloud-init.
    """

    vms: Mapping[str, frozenset[str]]
    bases: Mapping[str, str]
    formats: Mapping[str, frozenset[str]] = EMPTY_MAPPING
    seeds: frozenset[str] = frozenset()

    def formats_by_identity(self, identify: Callable[[str], str]) -> dict[str, frozenset[str]]:
        """Return the formats in which VMs use a file under any path; `identify` returns a path's identity."""
        result: dict[str, frozenset[str]] = {}
        for path, formats in self.formats.items():
            result[identify(path)] = result.get(identify(path), frozenset()) | formats
        return result

    def without_raw_disks(self, identify: Callable[[str], str] = str) -> DiskReferences:
        """Return the references without bases "below" disks that all VMs use as raw.

        The guest writes all the contents of a raw disk. It can also write a qcow2 header, which libvirt believes when
        it refreshes the pool.
        """
        raw = {path for path, formats in self.formats_by_identity(identify).items() if formats == {"raw"}}
        return replace(self, bases={path: base for path, base in self.bases.items() if identify(path) not in raw})


def collect_references(users: Sequence[DiskUser], volumes: Sequence[VolumeInfo]) -> DiskReferences:
    """Join the disks that VMs name with the bases that the files name; the files take precedence.

    The result still holds bases claimed only by raw disks: see `DiskReferences.without_raw_disks`.
    """
    paths = {(v.pool, v.name): v.path for v in volumes}
    vms: dict[str, set[str]] = {}
    bases: dict[str, str] = {}
    formats: dict[str, set[str]] = {}
    for user in users:
        volume_paths = [paths[pair] for pair in user.sources.volumes if pair in paths]
        for path in (*user.sources.files, *volume_paths, *(disk.path for disk in user.created_disks)):
            vms.setdefault(path, set()).add(user.name)
        for location, format_name in user.sources.formats:
            path_of_format = location if isinstance(location, str) else paths.get(location)
            if path_of_format is not None:
                formats.setdefault(path_of_format, set()).add(format_name)
        for disk in user.created_disks:
            if disk.base is not None:
                bases[disk.path] = disk.base
                formats.setdefault(disk.path, set()).add("qcow2")  # vgpuctl makes no other linked clones
        bases.update(user.sources.backing_pairs)
    bases.update((v.path, v.backing_path) for v in volumes if v.backing_path is not None)
    return DiskReferences(
        {path: frozenset(names) for path, names in vms.items()},
        bases,
        {path: frozenset(format_names) for path, format_names in formats.items()},
        frozenset(disk.path for user in users for disk in user.created_disks if disk.role is DiskRole.SEED),
    )


def image_hint(path: str, folder: str, files: Sequence[str], volumes: Sequence[str]) -> str:
    """Return the hint for a path that is no image: images with similar names, or else the images of its directory.

    `files`: the files of `folder`, where the image was expected; `volumes`: the volumes of the storage pools.
    """
    by_stem = {_stem(image): image for image in reversed([*files, *volumes])}
    matches = difflib.get_close_matches(_stem(path), by_stem, 3, _SIMILARITY)
    if matches:
        return f"did you mean {' or '.join(by_stem[stem] for stem in matches)}?"
    images = [posixpath.basename(file) for file in select_images(files)]
    if not images:
        return f"ls -l {shlex.quote(folder)} shows that directory; vgpuctl sees no disk image in it"
    more = f" and {len(images) - _MAX_NAMED} more" if len(images) > _MAX_NAMED else ""
    return f"disk images in {folder}: {', '.join(images[:_MAX_NAMED])}{more}"


def select_images(files: Sequence[str]) -> tuple[str, ...]:
    """Return the files whose names end as disk images' do."""
    return tuple(file for file in files if file.lower().endswith(_IMAGE_SUFFIXES))


def _stem(path: str) -> str:
    """Return an image's name without its suffix, which most images share."""
    return posixpath.splitext(posixpath.basename(path.rstrip("/")))[0].lower()


def bases_outside_pools(references: DiskReferences, volumes: Sequence[VolumeInfo]) -> tuple[str, ...]:
    """Return the bases that are in no pool, sorted by path."""
    return tuple(sorted(set(references.bases.values()) - {v.path for v in volumes}))


def image_results(
    references: DiskReferences,
    volumes: Sequence[VolumeInfo],
    inspected: Mapping[str, ImageInfo | None],
    pool: str | None,
) -> tuple[ImageResult, ...]:
    """Return a row for every volume and every base outside the pools, sorted by path.

    With `pool`, only that pool's volumes and their bases.
    """
    rows = {v.path: _volume_row(references, v) for v in volumes}
    rows |= {
        path: _outside_row(references, path, inspected.get(path)) for path in bases_outside_pools(references, volumes)
    }
    if pool is not None:
        selected = {v.path for v in volumes if v.pool == pool}
        selected |= {base for path, base in references.bases.items() if path in selected}
        rows = {path: row for path, row in rows.items() if path in selected}
    return tuple(rows[path] for path in sorted(rows))


def path_results(
    references: DiskReferences,
    volumes: Sequence[VolumeInfo],
    inspected: Mapping[str, ImageInfo | None],
    identify: Callable[[str], str],
) -> tuple[ImageResult, ...]:
    """Return a row for each inspected path, in that order. `identify` returns the identity of the file at a path."""
    path_of = {identify(path): path for path in inspected}
    renamed = replace(
        references,
        bases={child: path_of.get(identify(base), base) for child, base in references.bases.items()},
        vms={path_of.get(identify(path), path): names for path, names in references.vms.items()},
    )
    rows = {v.path: _volume_row(renamed, v) for v in volumes if v.path in inspected}
    return tuple(rows.get(path) or _outside_row(renamed, path, image) for path, image in inspected.items())


def driver_result(references: DiskReferences, path: str, size_bytes: int) -> ImageResult:
    """Return the row of a disc with a driver for guests."""
    row = _file_row(references, path, is_managed_name=False)
    return replace(row, format="iso", size_bytes=size_bytes, role="driver")


def describe_missing(row: ImageResult) -> str:
    """Return the sentence about a file that does not exist, with the clones that need it."""
    clones = [name for child in row.children for name in (child.vms or (child.path,))]
    needed = f"; clones of it, which cannot work without it: {', '.join(clones)}" if clones else ""
    return f"file {row.path} does not exist{needed}"


def _volume_row(references: DiskReferences, volume: VolumeInfo) -> ImageResult:
    pattern = _MANAGED_LOGICAL_VOLUME_NAME if volume.path.startswith("/dev/") else _MANAGED_VOLUME_NAME
    is_managed_name = pattern.fullmatch(volume.name) is not None
    return replace(
        _file_row(references, volume.path, is_managed_name=is_managed_name),
        pool=volume.pool,
        volume=volume.name,
        format=volume.format,
        size_bytes=volume.capacity_bytes,
    )


def _outside_row(references: DiskReferences, path: str, image: ImageInfo | None) -> ImageResult:
    row = _file_row(references, path, is_managed_name=False)
    if image is None or image.format == "unknown":
        return row
    return replace(row, format=image.format, size_bytes=image.virtual_size_bytes)


def _file_row(references: DiskReferences, path: str, *, is_managed_name: bool) -> ImageResult:
    """Return the row of a file that is in no pool and cannot be read."""
    children = sorted(child for child, base in references.bases.items() if base == path)
    users = tuple(sorted(references.vms.get(path, ())))
    return ImageResult(
        path=path,
        pool=None,
        volume=None,
        format=None,
        size_bytes=None,
        role=_role(references, path, is_managed_name=is_managed_name),
        base=references.bases.get(path),
        vms=users,
        children=tuple(CloneResult(child, tuple(sorted(references.vms.get(child, ())))) for child in children),
    )


def _role(
    references: DiskReferences, path: str, *, is_managed_name: bool
) -> Literal["base", "seed", "disk", "orphan", "other"]:
    if path in references.bases.values():
        return "base"
    if references.vms.get(path):
        return "seed" if path in references.seeds else "disk"
    return "orphan" if is_managed_name else "other"
