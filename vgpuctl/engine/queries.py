# SPDX-License-Identifier: Apache-2.0
"""The commands that only read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.capacity.constraints import select_gpus
from vgpuctl.engine.guards import find_vm
from vgpuctl.model.address import parse_gpu_address
from vgpuctl.model.outcome import QueryResult
from vgpuctl.observe import ReadScope, observe
from vgpuctl.plan import report

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def list_gpus(host: Host, *, everything: bool = False) -> QueryResult:
    """Return every GPU; `everything` adds other SR-IOV functions and endpoints without a driver."""
    snapshot = observe(host, ReadScope(every_function=everything))
    values = [report.gpu_value(snapshot, g) for g in snapshot.gpus]
    return QueryResult(values, (*snapshot.warnings, *report.gpu_warnings(snapshot.gpus)))


def show_gpu(host: Host, address: str) -> QueryResult:
    """Return one GPU with its types, functions and vGPUs."""
    from vgpuctl.engine.scheduler_status import read_scheduler_status, with_logged_scheduler

    gpu_address = parse_gpu_address(address)
    snapshot = observe(host, ReadScope(types=True, every_function=True))
    gpu = with_logged_scheduler(host, select_gpus(snapshot, gpu_address)[0])
    details, scheduler_warnings = read_scheduler_status(host, snapshot, gpu)
    warnings = (*snapshot.warnings, *report.gpu_warnings([gpu]), *scheduler_warnings)
    return QueryResult({**report.gpu_details(snapshot, gpu), **details}, warnings)


def list_profiles(host: Host, *, gpu: str | None = None, everything: bool = False) -> QueryResult:
    """Return every profile and how many more of it can be created now, on all GPUs of the host together."""
    from vgpuctl.plan import profile_report

    snapshot = observe(host, ReadScope(types=True, models=gpu is not None))
    gpus = select_gpus(snapshot, gpu)
    values = profile_report.profile_values(snapshot, gpus, everything=everything)
    return QueryResult(values, (*snapshot.warnings, *report.gpu_warnings(gpus)))


def explain(host: Host, profile: str) -> QueryResult:
    """Return for every GPU how many vGPUs of a profile fit and what prevents more."""
    from vgpuctl.engine.moves import find_pinned_vms
    from vgpuctl.plan.explanation import explain_profile

    snapshot = observe(host, ReadScope(types=True))
    gpus = tuple(g for g in snapshot.gpus if g.is_display_class)
    pinned_vms = find_pinned_vms(host, snapshot) if snapshot.hypervisor.available else frozenset()
    return QueryResult(explain_profile(snapshot, gpus, profile, pinned_vms), snapshot.warnings)


def list_vms(host: Host) -> QueryResult:
    """Return every VM, managed and unmanaged."""
    snapshot = observe(host, ReadScope(models=False))
    return QueryResult([report.vm_row(snapshot, v) for v in snapshot.vms], snapshot.warnings)


def show_vm(host: Host, name: str) -> QueryResult:
    """Return one VM with its vGPUs and disks."""
    snapshot = observe(host, ReadScope(models=False))
    vm = find_vm(snapshot, name)
    return QueryResult(report.vm_value(snapshot, vm), snapshot.warnings)
