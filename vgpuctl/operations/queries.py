# SPDX-License-Identifier: Apache-2.0
"""The commands that only read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.model.address import parse_gpu_address
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.gpus import ExplainResult, GpuDetailsResult, GpuResult, ProfileResult
from vgpuctl.model.results.vms import VmResult, VmRowResult
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.guards import find_vm, require_libvirt
from vgpuctl.operations.moves import find_pinned_vms
from vgpuctl.operations.plans import profile_report
from vgpuctl.operations.plans.explanation import explain_profile
from vgpuctl.operations.plans.gpu_results import gpu_details, gpu_result, gpu_warnings
from vgpuctl.operations.plans.vm_results import vm_result, vm_row
from vgpuctl.operations.scheduler_status import read_scheduler_status, with_logged_scheduler
from vgpuctl.placement.constraints import select_gpus

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def list_gpus(host: Host, *, everything: bool = False) -> QueryResult[tuple[GpuResult, ...]]:
    """Return every GPU; `everything` adds other SR-IOV functions and endpoints without a driver."""
    snapshot = observe(host, ReadScope(every_function=everything))
    gpus = tuple(gpu_result(snapshot, g) for g in snapshot.gpus)
    return QueryResult(gpus, (*snapshot.warnings, *gpu_warnings(snapshot.gpus)))


def show_gpu(host: Host, address: str) -> QueryResult[GpuDetailsResult]:
    """Return one GPU with its types, functions and vGPUs."""
    gpu_address = parse_gpu_address(address)
    snapshot = observe(host, ReadScope(types=True, every_function=True))
    gpu = with_logged_scheduler(host, select_gpus(snapshot, gpu_address)[0])
    scheduler, scheduler_warnings = read_scheduler_status(host, snapshot, gpu)
    warnings = (*snapshot.warnings, *gpu_warnings([gpu]), *scheduler_warnings)
    return QueryResult(gpu_details(snapshot, gpu, scheduler), warnings)


def list_profiles(
    host: Host, *, gpu: str | None = None, everything: bool = False
) -> QueryResult[tuple[ProfileResult, ...]]:
    """Return every profile and how many more of it can be created now, on all GPUs of the host together."""
    snapshot = observe(host, ReadScope(types=True, models=gpu is not None))
    gpus = select_gpus(snapshot, gpu)
    profiles = profile_report.profile_results(snapshot, gpus, everything=everything)
    return QueryResult(profiles, (*snapshot.warnings, *gpu_warnings(gpus)))


def explain(host: Host, profile: str) -> QueryResult[ExplainResult]:
    """Return for every GPU how many vGPUs of a profile fit and what prevents more."""
    snapshot = observe(host, ReadScope(types=True))
    gpus = tuple(g for g in snapshot.gpus if g.is_display_class)
    pinned_vms = find_pinned_vms(host, snapshot) if snapshot.hypervisor.available else frozenset()
    return QueryResult(explain_profile(snapshot, gpus, profile, pinned_vms), snapshot.warnings)


def list_vms(host: Host) -> QueryResult[tuple[VmRowResult, ...]]:
    """Return every VM, managed and unmanaged.

    Raises:
        HostCannot: libvirt does not answer: an empty list would say that there are none.
    """
    snapshot = observe(host, ReadScope(models=False))
    require_libvirt(snapshot)
    return QueryResult(tuple(vm_row(snapshot, v) for v in snapshot.vms), snapshot.warnings)


def show_vms(host: Host, names: Sequence[str]) -> dict[str, QueryResult[VmResult]]:
    """Return VMs by name, from one look at the host; one that has just been deleted is left out."""
    snapshot = observe(host, ReadScope(models=False))
    vms = {vm.name: vm for vm in snapshot.vms}
    return {name: QueryResult(vm_result(snapshot, vms[name]), snapshot.warnings) for name in names if name in vms}


def show_vm(host: Host, name: str) -> QueryResult[VmResult]:
    """Return one VM with its vGPUs and disks."""
    snapshot = observe(host, ReadScope(models=False))
    vm = find_vm(snapshot, name)
    return QueryResult(vm_result(snapshot, vm), snapshot.warnings)
