# SPDX-License-Identifier: Apache-2.0
"""Gather what the doctor's checks look at.

Everything is read through the seams and nothing raises because it could not be read: a check that cannot see is
`unknown`, with the reason. Each file is read once, however many checks look at it. What costs a command or a look at
every process (logs, holders) is only gathered for checks that ask for it, on hosts with NVIDIA GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vgpuctl.doctor.check import NVIDIA_SERVICES, Check, Folder, Leftover, Look, Needs, Text
from vgpuctl.engine.guards import require_system
from vgpuctl.engine.observe import Want, observe, observe_devices
from vgpuctl.engine.observe.host_file import read_host_file
from vgpuctl.engine.partition import types_of, with_instances
from vgpuctl.engine.reconcile import find
from vgpuctl.errors import VgpuctlError
from vgpuctl.layout.nvidia import driver_nodes
from vgpuctl.model.gpu import NVIDIA, Gpu, Mode
from vgpuctl.model.records import FilePermissions, Holder, HypervisorCapabilities
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.plan.host_diff import not_as_set
from vgpuctl.spec.host import GpuSpec

if TYPE_CHECKING:
    from vgpuctl.model.world import World

KERNEL_WORDS = ("NVRM", "nvidia-vgpu-vfio")
"""What marks the lines of nvidia.ko and of nvidia-vgpu-vfio.ko in the kernel's log."""


def look_at(world: World, checks: tuple[Check, ...]) -> Look:
    """Gather what these checks look at."""
    snapshot, problem = _snapshot(world, checks)
    needs = [c.needs for c in checks]
    if snapshot is not None:
        needs += [c.needs_of(snapshot) for c in checks if c.needs_of is not None]
    leftovers, leftovers_problem = _find(world, snapshot, problem, checks)
    capabilities, capabilities_problem = _capabilities(world, snapshot, problem, checks)
    configs = {path: _folder(world, path) for path in dict.fromkeys(p for n in needs for p in n.configs)}
    conf = [f"{at}/{name}" for at, found in configs.items() for name in found.names or () if name.endswith(".conf")]
    nvidia = _nvidia(world, snapshot, checks)
    return Look(
        snapshot=snapshot,
        problem=problem,
        files={path: _text(world, path) for path in dict.fromkeys([*(p for n in needs for p in n.files), *conf])},
        folders={**{path: _folder(world, path) for n in needs for path in n.folders}, **configs},
        permissions=_permissions(world, needs),
        leftovers=leftovers,
        leftovers_problem=leftovers_problem,
        capabilities=capabilities,
        capabilities_problem=capabilities_problem,
        closed=_closed(world),
        host_file_hint=read_host_file(world).hint or "",
        **nvidia,
    )


def _nvidia(world: World, snapshot: Snapshot | None, checks: tuple[Check, ...]) -> dict[str, Any]:
    """Return what is looked at on hosts with NVIDIA GPUs alone, by the names of `Look`."""
    gpus = [g for g in snapshot.gpus if g.vendor_id == NVIDIA] if snapshot is not None else []
    found: dict[str, Any] = {}
    if not gpus:
        return found
    if any(c.logs for c in checks) and world.kernel_log is not None:
        found["kernel"] = world.kernel_log.lines(*KERNEL_WORDS)
        found["services"] = {name: world.kernel_log.service_lines(name) for name in NVIDIA_SERVICES}
    if any(c.holders for c in checks):
        found["holders"], found["holders_problem"] = _holders(world)
    if any(c.ecc for c in checks):
        told = {g.address: world.nvml.ecc(g.address) for g in gpus if g.nvidia_driver}
        found["ecc"] = {address: ecc for address, ecc in told.items() if ecc is not None}
    if any(c.guests for c in checks):
        running = {g.address: world.nvml.guests(g.address) for g in gpus if g.nvidia_driver}
        found["guests"] = {address: guests for address, guests in running.items() if guests is not None}
    if any(c.partitions for c in checks):
        found["drift"] = {g.address: _drift(world, g) for g in gpus}
        found["instance_types"] = {g.address: types_of(world, g) for g in gpus if g.mig is not None and g.mig.enabled}
    return found


def _holders(world: World) -> tuple[tuple[Holder, ...] | None, str]:
    """Return who has NVIDIA's driver open, or why that is not known."""
    try:
        return world.processes.holders(driver_nodes(world)), ""
    except OSError as error:
        return None, f"{error.filename or '/proc'}: {error.strerror or error}"


def _drift(world: World, gpu: Gpu) -> tuple[str, ...]:
    """Return what of MIG and mixed sizes of a GPU is not as host.yaml asks, a sentence each."""
    if gpu.desired not in (None, Mode.VGPU):
        return ()
    try:
        asked = GpuSpec(mig=with_instances(world, gpu, gpu.desired_mig), mixed_size=gpu.desired_mixed_size)
    except VgpuctlError as error:
        return (f"{gpu.address}: {error.message}",)
    return tuple(not_as_set(gpu, asked))


def _snapshot(world: World, checks: tuple[Check, ...]) -> tuple[Snapshot | None, str]:
    want = Want(types=any(c.types for c in checks), every_function=False)
    try:
        if any(c.vms for c in checks):
            return observe(world, want), ""
        return observe_devices(world, want, vms=(), status=world.hypervisor.status()), ""
    except (VgpuctlError, OSError) as error:
        return None, f"the host cannot be looked at: {error}"


def _find(
    world: World, snapshot: Snapshot | None, problem: str, checks: tuple[Check, ...]
) -> tuple[tuple[Leftover, ...] | None, str]:
    """Ask reconcile what it would do; without this host's own VMs everything would look left behind."""
    if snapshot is None or not any(c.leftovers for c in checks):
        return None, problem
    if not snapshot.hypervisor.available:
        return None, snapshot.hypervisor.reason or "libvirt does not answer"
    try:
        require_system(snapshot)
        return tuple(Leftover(f.kind, f.what, f.action) for f in find(world, snapshot)), ""
    except (VgpuctlError, OSError) as error:
        return None, str(error)


def _capabilities(
    world: World, snapshot: Snapshot | None, problem: str, checks: tuple[Check, ...]
) -> tuple[HypervisorCapabilities | None, str]:
    if snapshot is None or not any(c.capabilities for c in checks):
        return None, problem
    if not snapshot.hypervisor.available:
        return None, snapshot.hypervisor.reason or "libvirt does not answer"
    try:
        return world.hypervisor.capabilities(), ""
    except VgpuctlError as error:
        return None, str(error)


def _closed(world: World) -> str | None:
    """Return why the claims cannot be read, as without root."""
    try:
        world.claims.read(frozenset())
        world.claims.stuck()
    except OSError as error:
        return f"{error.filename or '/run/vgpuctl'}: {error.strerror or error}"
    return None


def _text(world: World, path: str) -> Text:
    try:
        return Text(world.sysfs.read(path))
    except (FileNotFoundError, NotADirectoryError):
        return Text()
    except OSError as error:
        return Text(problem=f"{path}: {error.strerror or error}")


def _folder(world: World, path: str) -> Folder:
    try:
        return Folder(world.sysfs.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return Folder()
    except OSError as error:
        return Folder(problem=f"{path}: {error.strerror or error}")


def _permissions(world: World, needs: list[Needs]) -> dict[str, FilePermissions]:
    found: dict[str, FilePermissions] = {}
    for path in dict.fromkeys(p for n in needs for p in n.permissions):
        try:
            found[path] = world.sysfs.permissions(path)
        except OSError:
            continue
    return found
