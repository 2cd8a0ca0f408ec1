# SPDX-License-Identifier: Apache-2.0
"""The commands that only look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.capacity.where import select_gpus
from vgpuctl.engine.guards import find_vm
from vgpuctl.engine.observe import Want, observe
from vgpuctl.model.address import gpu_address
from vgpuctl.model.outcome import Answer
from vgpuctl.plan import report

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def list_gpus(world: World, *, everything: bool = False) -> Answer:
    """Return every GPU; `everything` adds other SR-IOV functions and unbound endpoints."""
    snapshot = observe(world, Want(every_function=everything))
    values = [report.gpu_value(snapshot, g) for g in snapshot.gpus]
    return Answer(values, (*snapshot.warnings, *report.gpu_warnings(snapshot.gpus)))


def show_gpu(world: World, address: str) -> Answer:
    """Return one GPU with its types, functions and vGPUs."""
    from vgpuctl.engine.scheduler_seen import scheduler_seen, with_logged

    wanted = gpu_address(address)
    snapshot = observe(world, Want(types=True, every_function=True))
    gpu = with_logged(world, select_gpus(snapshot, wanted)[0])
    details, unseen = scheduler_seen(world, snapshot, gpu)
    warnings = (*snapshot.warnings, *report.gpu_warnings([gpu]), *unseen)
    return Answer({**report.gpu_details(snapshot, gpu), **details}, warnings)


def list_profiles(world: World, *, gpu: str | None = None, everything: bool = False) -> Answer:
    """Return every profile and how many more of it can be made now on the whole host, together."""
    from vgpuctl.plan import profile_report

    snapshot = observe(world, Want(types=True, models=gpu is not None))
    gpus = select_gpus(snapshot, gpu)
    values = profile_report.profile_values(snapshot, gpus, everything=everything)
    return Answer(values, (*snapshot.warnings, *report.gpu_warnings(gpus)))


def explain(world: World, profile: str) -> Answer:
    """Return for every GPU how many of a profile fit and what stands in the way."""
    from vgpuctl.engine.moves import pinned
    from vgpuctl.plan.explanation import explain_value

    snapshot = observe(world, Want(types=True))
    gpus = tuple(g for g in snapshot.gpus if g.display_class)
    stay = pinned(world, snapshot) if snapshot.hypervisor.available else frozenset()
    return Answer(explain_value(snapshot, gpus, profile, stay), snapshot.warnings)


def list_vms(world: World) -> Answer:
    """Return every VM, ours and foreign."""
    snapshot = observe(world, Want(models=False))
    return Answer([report.vm_row(snapshot, v) for v in snapshot.vms], snapshot.warnings)


def show_vm(world: World, name: str) -> Answer:
    """Return one VM with its vGPUs and disks."""
    snapshot = observe(world, Want(models=False))
    vm = find_vm(snapshot, name)
    return Answer(report.vm_value(snapshot, vm), snapshot.warnings)
