# SPDX-License-Identifier: Apache-2.0
"""Gather what a new VM needs to know of the host; `vgpuctl.plan.facts` judges it."""

from __future__ import annotations

import errno
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from vgpuctl.capacity.demand import not_offered
from vgpuctl.domain.templates import builtin_names, builtin_template
from vgpuctl.engine.chains import find_chains, meant_images
from vgpuctl.engine.observe.host_file import PATH, read_text
from vgpuctl.errors import FileFailed, NotFound
from vgpuctl.model.digits import meminfo_mib
from vgpuctl.model.records import PoolRecord
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import PromisedVgpu
from vgpuctl.model.wish import ExistingDisk, VmWish
from vgpuctl.plan.chains import NO_CHAINS
from vgpuctl.plan.facts import DEFAULT_POOL_PATH, Facts, GpuHolders
from vgpuctl.plan.pci_window import bars_mib
from vgpuctl.spec.fields import DEFAULT_PLACEMENT

if TYPE_CHECKING:
    from vgpuctl.model.world import World

TEMPLATE_DIR = "/etc/vgpuctl/templates"


def gather(world: World, snapshot: Snapshot, wish: VmWish, vgpus: tuple[PromisedVgpu, ...]) -> Facts:
    """Ask libvirt, storage and files once each for what the wish names."""
    from vgpuctl.domain.render import compile_template  # with jinja2, which only who makes a VM needs

    paths = [p for p in (wish.image, wish.cdrom) if p is not None]
    paths += [d.path for d in wish.disks if isinstance(d, ExistingDisk)]
    pool = world.storage.pool(wish.storage_pool)
    files = {p: world.storage.image(p) for p in paths}
    return Facts(
        capabilities=world.hypervisor.capabilities(),
        network=world.hypervisor.network(wish.network),
        pool=pool,
        template=compile_template(read_template(world, wish.template), f"{wish.template}.xml.j2", world.scratch),
        files=files,
        meant=meant_images(world, files),
        holders=holders_of(world, vgpus) if wish.mode == "passthrough" else GpuHolders(),
        bars_mib=_bars_mib(world, vgpus) if wish.mode == "passthrough" else 0,
        chains=find_chains(world, snapshot, *paths) if paths else NO_CHAINS,
        host_memory_mib=host_memory_mib(world),
        file_system_bytes=_file_system_bytes(world, pool),
    )


def _file_system_bytes(world: World, pool: PoolRecord | None) -> int | None:
    """Return how large the file system of a pool is, or will be; of one that is not mounted that is not known."""
    if pool is None:
        return world.storage.file_system_bytes(DEFAULT_POOL_PATH)
    if pool.capacity_bytes is None and pool.kind == "dir" and pool.path is not None:
        return world.storage.file_system_bytes(pool.path)
    return pool.capacity_bytes


def host_memory_mib(world: World) -> int | None:
    """Return how much memory the host has; None where that is not told."""
    try:
        return meminfo_mib(world.sysfs.read("/proc/meminfo"), "MemTotal")
    except OSError:
        return None


def demand_warnings(world: World, snapshot: Snapshot, wish: VmWish) -> tuple[str, ...]:
    """Return what of the demand in host.yaml, by which this wish is placed, was hardly meant so."""
    policy = wish.where.policy or snapshot.placement.policy or DEFAULT_PLACEMENT
    if not snapshot.placement.demand or policy != DEFAULT_PLACEMENT or wish.mode == "passthrough":
        return ()
    found = not_offered(snapshot, snapshot.placement.demand, read_text(world) or "", PATH)
    return tuple(one.text for one in found if one.mistaken)


def read_template(world: World, name: str) -> str:
    """Return a domain template: the admin's of that name, else the built-in one.

    Raises:
        NotFound: there is neither.
    """
    path = f"{TEMPLATE_DIR}/{name}.xml.j2"
    try:
        return world.sysfs.read(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise FileFailed(
                f"the domain template {path} cannot be read: {error.strerror or error}",
                hint=f"ls -l {path}",
                errno=error.errno,
                path=path,
            ) from error
    text = builtin_template(name)
    if text is None:
        raise NotFound(
            f"there is no domain template '{name}'",
            hint=f"put it at {path}; built in: {', '.join(builtin_names())}",
            template=name,
        )
    return text


def _display_nodes(world: World, function: str) -> list[str]:
    try:
        names = world.sysfs.listdir(f"/sys/bus/pci/devices/{function}/drm")
    except OSError:
        return []
    return [f"/dev/dri/{n}" for n in names if n.startswith(("card", "render"))]


def _nvidia_nodes(world: World, function: str) -> list[str]:
    """Return /dev/nvidiaN, whose number the driver tells as "Device Minor"."""
    try:
        text = world.sysfs.read(f"/proc/driver/nvidia/gpus/{function}/information")
    except OSError:
        return []
    found = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
    return [f"/dev/nvidia{found.group(1)}"] if found else []


def holders_of(world: World, vgpus: tuple[PromisedVgpu, ...]) -> GpuHolders:
    """Return who has a display or compute node of these functions open."""
    display = [n for v in vgpus for n in _display_nodes(world, v.function)]
    compute = [n for v in vgpus for n in _nvidia_nodes(world, v.function)]
    return GpuHolders(_who(world, display), _who(world, compute))


def _bars_mib(world: World, vgpus: tuple[PromisedVgpu, ...]) -> int:
    """Return the size of these functions' BARs; of one that cannot be read, nothing."""
    total = 0
    for vgpu in vgpus:
        with suppress(OSError):
            total += bars_mib(world.sysfs.read(f"/sys/bus/pci/devices/{vgpu.function}/resource"))
    return total


def _who(world: World, nodes: list[str]) -> tuple[str, ...]:
    if not nodes:
        return ()
    try:
        return tuple(f"{h.command} (pid {h.pid})" for h in world.processes.holders(tuple(nodes)))
    except PermissionError:
        return ("a process that cannot be seen without root",)
