# SPDX-License-Identifier: Apache-2.0
"""Which images are bases of which disks, and which volumes no VM refers to. Pure: nothing is removed by it.

A volume is judged in this order: something is a clone of it (`base`), a VM refers to it (`disk`), it is named as
vgpuctl names disks and nobody refers to it (`orphan`), anything else (`other`). A name proves nothing: an orphan
may be anybody's file that happens to end in eight hexadecimal digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from vgpuctl.domain.sources import Sources
from vgpuctl.model.records import ImageRecord, VolumeRecord
from vgpuctl.model.vm import MadeDisk
from vgpuctl.value import NOTHING, Value, replace

_OURS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9a-f]{8}((-[0-9]+)?\.qcow2|-seed\.iso)", re.ASCII)
"""A volume of ours: NAME-<8 of uuid>.qcow2, from the second on NAME-<8 of uuid>-N.qcow2; a seed ends in -seed.iso."""


class DiskUser(Value):
    """A VM with the disks that libvirt and its record name, made already or not."""

    name: str
    sources: Sources
    made: tuple[MadeDisk, ...] = ()


class Links(Value):
    """Who refers to which file, and which file is a clone of which. `formats`: as what VMs have a file."""

    vms: Mapping[str, frozenset[str]]
    bases: Mapping[str, str]
    formats: Mapping[str, frozenset[str]] = NOTHING

    def formats_by(self, same: Callable[[str], str]) -> dict[str, frozenset[str]]:
        """Return as what VMs have a file, whatever path they name it by; `same` returns what stands for a path."""
        found: dict[str, frozenset[str]] = {}
        for path, formats in self.formats.items():
            found[same(path)] = found.get(same(path), frozenset()) | formats
        return found

    def without_raw(self, same: Callable[[str], str] = str) -> Links:
        """Return this without what lies "below" disks that all VMs have as raw.

        All that is in a raw disk the guest wrote, a header of qcow2 too, which libvirt believes when it refreshes the
        pool.
        """
        raw = {path for path, formats in self.formats_by(same).items() if formats == {"raw"}}
        return replace(self, bases={path: base for path, base in self.bases.items() if same(path) not in raw})


def links(users: Sequence[DiskUser], volumes: Sequence[VolumeRecord]) -> Links:
    """Join what VMs say of their disks with what the files say of their bases; the files know best.

    What only raw disks say is among it still: see `Links.without_raw`.
    """
    paths = {(v.pool, v.name): v.path for v in volumes}
    vms: dict[str, set[str]] = {}
    bases: dict[str, str] = {}
    formats: dict[str, set[str]] = {}
    for user in users:
        named = [paths[pair] for pair in user.sources.volumes if pair in paths]
        for path in (*user.sources.files, *named, *(disk.path for disk in user.made)):
            vms.setdefault(path, set()).add(user.name)
        for where, form in user.sources.formats:
            named_by = where if isinstance(where, str) else paths.get(where)
            if named_by is not None:
                formats.setdefault(named_by, set()).add(form)
        for disk in user.made:
            if disk.base is not None:
                bases[disk.path] = disk.base
                formats.setdefault(disk.path, set()).add("qcow2")  # vgpuctl makes no other clones
        bases.update(user.sources.backing)
    bases.update((v.path, v.backing_path) for v in volumes if v.backing_path is not None)
    return Links(
        {path: frozenset(names) for path, names in vms.items()},
        bases,
        {path: frozenset(forms) for path, forms in formats.items()},
    )


def nearest(path: str, known: Sequence[str], *, anything: bool) -> tuple[str, ...]:
    """Return the known images whose names are like that of `path`, at most three; with `anything` else the first."""
    import difflib

    by_name = {one.rpartition("/")[2].lower(): one for one in reversed(known)}
    near = difflib.get_close_matches(path.rpartition("/")[2].lower(), by_name, 3, 0.6)
    return tuple(by_name[name] for name in near) or (tuple(known[:3]) if anything else ())


def outside(found: Links, volumes: Sequence[VolumeRecord]) -> tuple[str, ...]:
    """Return the bases that are in no pool, sorted by path."""
    return tuple(sorted(set(found.bases.values()) - {v.path for v in volumes}))


def image_values(
    found: Links, volumes: Sequence[VolumeRecord], looked_at: Mapping[str, ImageRecord | None], pool: str | None
) -> list[dict[str, object]]:
    """Return a row for every volume and every base outside of the pools, sorted by path.

    With `pool` only that pool's volumes and the bases that they are clones of.
    """
    rows = {v.path: _volume_row(found, v) for v in volumes}
    rows |= {path: _outside_row(found, path, looked_at.get(path)) for path in outside(found, volumes)}
    if pool is not None:
        kept = {v.path for v in volumes if v.pool == pool}
        kept |= {base for path, base in found.bases.items() if path in kept}
        rows = {path: row for path, row in rows.items() if path in kept}
    return [rows[path] for path in sorted(rows)]


def _volume_row(found: Links, volume: VolumeRecord) -> dict[str, object]:
    where: dict[str, object] = {"path": volume.path, "pool": volume.pool, "volume": volume.name}
    what: dict[str, object] = {"format": volume.format, "size_bytes": volume.capacity_bytes}
    return where | what | _relations(found, volume.path, volume.name)


def _outside_row(found: Links, path: str, image: ImageRecord | None) -> dict[str, object]:
    known = image is not None and image.format != "unknown"
    where: dict[str, object] = {"path": path, "pool": None, "volume": None}
    what: dict[str, object] = {
        "format": image.format if image is not None and known else None,
        "size_bytes": image.virtual_size_bytes if image is not None and known else None,
    }
    return where | what | _relations(found, path, None)


def _relations(found: Links, path: str, volume: str | None) -> dict[str, object]:
    children = sorted(child for child, base in found.bases.items() if base == path)
    users = sorted(found.vms.get(path, ()))
    if children:
        role = "base"
    elif users:
        role = "disk"
    else:
        role = "orphan" if volume is not None and _OURS.fullmatch(volume) else "other"
    return {
        "role": role,
        "base": found.bases.get(path),
        "vms": users,
        "children": [{"path": child, "vms": sorted(found.vms.get(child, ()))} for child in children],
    }
