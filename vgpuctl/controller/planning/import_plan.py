# SPDX-License-Identifier: Apache-2.0
"""Rows from the records of VMs on hosts, where the database is lost and there is no backup.

A record says which desktop a VM is, its pool's name, and whose it is. What a pool should be is not known, so it is
paused until its spec is given; until then it is dedicated, because such desktops are never refreshed by themselves.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from vgpuctl.config import rules
from vgpuctl.controller.model import (
    Desktop,
    DesktopReport,
    FleetHost,
    Image,
    OnLogoff,
    Pool,
    PoolKind,
    PoolSpec,
    PoolState,
)
from vgpuctl.controller.planning.host_look import HostVm
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.value import Value

WHY_PAUSED = "imported: only its desktops are known"
T = TypeVar("T")
_NUMBER = re.compile(r"(.*?)([0-9]+)", re.ASCII)


class RecordedVm(Value):
    """A marked VM of a host. `mac`: of its first card, or an unused one where it has none."""

    host: FleetHost
    vm: HostVm
    mark: DesktopMark
    profile: str | None
    mac: str
    memory_mib: int
    vcpus: int


class ImportPlan(Value):
    """The rows to add. `problems`: why a VM is left out. `former`: the incarnations of the records."""

    images: tuple[Image, ...] = ()
    pools: tuple[Pool, ...] = ()
    desktops: tuple[Desktop, ...] = ()
    problems: tuple[str, ...] = ()
    former: tuple[str, ...] = ()


def plan_import(
    vms: Iterable[RecordedVm],
    pools: Sequence[Pool],
    images: Sequence[Image],
    desktops: Iterable[Desktop],
    incarnation: str,
    new_id: Callable[[], str],
) -> ImportPlan:
    """Plan the rows for VMs that no row is about. `pools`, `images`, `desktops`: those that the database has."""
    usable, problems = _usable(vms, list(desktops))
    images_by_path = {image.path: image for image in images}
    pools_by_name = {pool.name: pool for pool in pools}
    new_images: list[Image] = []
    new_pools: list[Pool] = []
    rows: list[Desktop] = []
    by_pool: dict[str, list[RecordedVm]] = {}
    for one in usable:
        by_pool.setdefault(one.mark.pool, []).append(one)
    for name, group in sorted(by_pool.items()):
        for one in group:
            path = str(one.vm.image)
            if path not in images_by_path:
                taken = {image.name for image in images_by_path.values()}
                images_by_path[path] = Image(new_id(), _image_name(path, taken), "imported", path, "linux")
                new_images.append(images_by_path[path])
        if name not in pools_by_name:
            pools_by_name[name] = _pool(name, group, images_by_path, new_id())
            new_pools.append(pools_by_name[name])
        rows += [_desktop(one, pools_by_name[name], images_by_path[str(one.vm.image)]) for one in group]
    former = {one.mark.incarnation for one in usable} - {incarnation}
    return ImportPlan(tuple(new_images), tuple(new_pools), tuple(rows), tuple(problems), tuple(sorted(former)))


def _usable(vms: Iterable[RecordedVm], desktops: list[Desktop]) -> tuple[list[RecordedVm], list[str]]:
    """Return the VMs that can become rows, and why the others cannot. What exists twice is nobody's to choose."""
    known = {desktop.id for desktop in desktops}
    unknown = [one for one in vms if one.mark.id not in known]
    names = {desktop.name: "the database" for desktop in desktops}
    macs = {desktop.mac: "the database" for desktop in desktops}
    ids = Counter(one.mark.id for one in unknown)
    usable, problems = [], []
    for one in sorted(unknown, key=lambda one: (one.vm.name, one.host.name)):
        where = f"{one.vm.name} on {one.host.name}"
        if ids[one.mark.id] > 1 or one.vm.uuid != one.mark.id:
            problems.append(f"{where}: more than one VM has the mark of desktop {one.mark.id}")
        elif one.vm.image is None:
            problems.append(f"{where}: its first disk was made from no image")
        elif one.vm.name in names:
            problems.append(f"{where}: {names[one.vm.name]} has a desktop of this name")
        elif one.mac in macs:
            problems.append(f"{where}: {macs[one.mac]} has a desktop with its MAC address {one.mac}")
        elif _checked_name(one.mark.pool) is None:
            problems.append(f"{where}: {one.mark.pool!a} is no name of a pool")
        else:
            usable.append(one)
            names[one.vm.name] = macs[one.mac] = one.host.name
    return usable, problems


def _checked_name(name: str) -> str | None:
    try:
        return rules.name(name)
    except ValueError:
        return None


def _image_name(path: str, taken: set[str]) -> str:
    stem = re.sub(r"[^a-z0-9-]+", "-", posixpath.basename(path).rsplit(".", 1)[0].lower()).strip("-")
    base = _checked_name(stem) or "image"
    names = (base if number == 1 else f"{base}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def _pool(name: str, group: Sequence[RecordedVm], images: Mapping[str, Image], pool_id: str) -> Pool:
    """Return a pool with what its VMs show: most of them decide."""
    pattern, highest = _names_of([one.vm.name for one in group])
    image = images[_most(str(one.vm.image) for one in group)]
    profiles = {one.profile for one in group if one.profile is not None}
    memory_mib, vcpus = _most(one.memory_mib for one in group), _most(one.vcpus for one in group)
    spec = PoolSpec(
        kind=PoolKind.DEDICATED, image=image.name, names=pattern, maximum=max(highest, len(group)),
        profiles=tuple(sorted(profiles)), vm={"memory": f"{memory_mib}MiB", "vcpus": str(vcpus)},
        on_logoff=OnLogoff.KEEP,
    )  # fmt: skip
    return Pool(pool_id, name, spec, PoolState.PAUSED, reason=WHY_PAUSED, image_id=image.id)


def _names_of(names: Sequence[str]) -> tuple[str, int]:
    """Return the pattern of most names, and the highest number in it."""
    parts = [match for name in names if (match := _NUMBER.fullmatch(name))]
    if not parts:
        return f"{names[0]}-{{:03}}", 0
    prefix, width = _most((match[1], len(match[2])) for match in parts)
    numbers = [int(match[2]) for match in parts if match[1] == prefix]
    return f"{prefix}{{:0{min(width, 9)}}}", max(numbers)


def _most(values: Iterable[T]) -> T:
    return Counter(values).most_common(1)[0][0]


def _desktop(one: RecordedVm, pool: Pool, image: Image) -> Desktop:
    """Return a row. A desktop that is nobody's counts as dirty: its generation is above its record's."""
    mark = one.mark
    report = DesktopReport(
        True, state=one.vm.state, generation=mark.generation, dirty=mark.dirty, image=one.vm.image,
        boot_id=one.host.boot_id,
    )  # fmt: skip
    return Desktop(
        id=mark.id, pool_id=pool.id, name=one.vm.name, mac=one.mac, image_id=image.id, host_id=one.host.id,
        profile=one.profile, generation=mark.generation + (mark.user is None), user=mark.user, report=report,
    )  # fmt: skip
