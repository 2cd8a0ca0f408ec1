# SPDX-License-Identifier: Apache-2.0
"""Convert VMs of other hypervisors to VM specs for this host; writes nothing.

Names of vGPU profiles are compared with what the GPUs here offer. What the files say about the other host's GPUs
becomes lines for host.yaml.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING

from vgpuctl.config.foreign_vms.imported import (
    ForeignFile,
    ImportedHostSettings,
    ImportedVm,
    VmFile,
    bounded,
    merge_files,
)
from vgpuctl.errors import HostCannot, InvalidInput, NotFound
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.port_values import X86_64
from vgpuctl.model.results.host import ImportedVmsResult
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.plans.facts import DIRECTORY_POOLS
from vgpuctl.operations.plans.imported_disks import DISK_FOLDER, name_copies
from vgpuctl.operations.plans.imported_vms import choose_name, plan_spec
from vgpuctl.scheduler.registry_dword import DriverGeneration, decode_dword, wrong_generation

if TYPE_CHECKING:
    from vgpuctl.model.vgpu_scheduler import SchedulerSpec
    from vgpuctl.ports.host import Host


def import_vms(host: Host, files: Sequence[VmFile], *, pool: str | None = None) -> QueryResult[ImportedVmsResult]:
    """Return a VM spec for each VM in the files, and the lines for host.yaml.

    `pool`: the storage pool in whose folder the disks go; None: `DISK_FOLDER`.

    Raises:
        NotFound, HostCannot: there is no such pool, or it is no folder, or not started.
        InvalidInput: none of the files describes a VM or a host, or a VM cannot be one of vgpuctl's.
    """
    pairs, left_out = merge_files(tuple(files))
    host_lines, host_notes = find_host_lines([file.content for file in files])
    if not pairs and not host_lines:
        raise InvalidInput(
            f"{files[0].content.name}: none of the files describes a VM",
            hint="give the file of the VM too: of XenServer what xe vm-param-list uuid=VM prints",
        )
    folder = DISK_FOLDER if pool is None else _folder_of(host, pool)
    snapshot = observe(host, ReadScope(types=True))
    taken: set[str] = set()
    named = [(file, vm, choose_name(vm, file, taken)) for file, vm in name_copies(pairs)]
    plans = [plan_spec(file, vm, name, snapshot.gpus, taken, folder) for file, vm, name in named]
    results = tuple(plan.result for plan in plans)
    text = (
        "".join(f"---\n{result.text}" for result in results) if len(results) > 1 else "".join(r.text for r in results)
    )
    warnings = [f"{plan.result.name}: {line}" for plan in plans for line in plan.warnings]
    warnings += _find_other_archs(host, [(vm, name) for _, vm, name in named])
    warnings += [f"{result.name}: ignored: {line}" for result in results for line in result.left_out]
    not_of_vms = bounded((*left_out, *host_notes))
    warnings += [f"ignored: {line}" for line in not_of_vms]
    notes = [f"{result.name}: {line}" for result in results for line in result.notes]
    notes += [f"{result.name}: run: {command}" for result in results for command in result.commands]
    notes += [f"host.yaml: {line}" for line in host_lines]
    if len(results) > 1:
        notes.append(
            "each document is the spec of a VM, and ensure-vm takes one: csplit -z -f vm- SPECS '/^---$/' '{*}' writes "
            "each into a file"
        )
    data = ImportedVmsResult(text, results, host_lines, not_of_vms)
    return QueryResult(data, (*snapshot.warnings, *warnings), notes=tuple(notes))


def _find_other_archs(host: Host, named: Sequence[tuple[ImportedVm, str]]) -> list[str]:
    """Return a sentence for each VM whose disks hold a system for other CPUs than this host's."""
    known = [(vm, name) for vm, name in named if vm.arch is not None]
    if not known or not host.hypervisor.status().available:
        return []
    here = host.hypervisor.capabilities().arch
    runs = {here, "i686"} if here == X86_64 else {here}
    return [
        f"{name}: {vm.position}: it is for {vm.arch}, and VMs of this host have {here}: its system does not start here"
        for vm, name in known
        if vm.arch not in runs
    ]


def _folder_of(host: Host, name: str) -> str:
    """Return the folder of a storage pool: qemu-img and virt-v2v write files.

    Raises:
        NotFound, HostCannot: as `import_vms`.
    """
    pool = host.storage.pool(name)
    if pool is None:
        raise NotFound(f"libvirt has no storage pool '{name}'", hint="virsh pool-list --all", pool=name)
    if pool.path is None or pool.kind not in DIRECTORY_POOLS:
        raise HostCannot(
            f"the storage pool '{name}' is of kind {pool.kind}, and the commands for disks write files",
            hint="choose a pool of kind dir: virsh pool-list --all --details",
            check="pool-kind",
            pool=name,
        )
    if not pool.active:
        raise HostCannot(
            f"the storage pool '{name}' is not started, so {pool.path} may be another folder",
            hint=f"virsh pool-start {quote(name)}",
            check="pool-inactive",
            pool=name,
        )
    return pool.path


def find_host_lines(files: Sequence[ForeignFile]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return lines for host.yaml from what the files say about the other host's GPUs, and what they cannot express.

    Addresses of another host mean nothing here, so the lines are for all GPUs. Settings that contradict each other give
    no line.
    """
    settings = [one for file in files for one in file.settings]
    left_out: list[str] = []
    lines = []
    placement = _only_value(settings, "placement", left_out)
    if placement is not None:
        lines.append(f"placement: {{policy: {placement}}}")
    keys = []
    mode = _only_value(settings, "mode", left_out)
    if mode is not None:
        keys.append(f"mode: {mode}")
    mixed_size = _only_value(settings, "mixed_size", left_out)
    if mixed_size is not None:
        keys.append(f"mixed_size: {str(mixed_size).lower()}")
    dword = _only_value(settings, "scheduler_dword", left_out)
    if isinstance(dword, int):
        position = next(one.position for one in settings if one.scheduler_dword == dword)
        scheduler = _decode_scheduler(dword, position, left_out)
        keys += [f"scheduler: {{{scheduler}}}"] if scheduler else []
    if keys:
        lines.append(f"gpus: {{all: {{{', '.join(keys)}}}}}")
    return tuple(lines), tuple(left_out)


def _only_value(settings: Sequence[ImportedHostSettings], field: str, left_out: list[str]) -> object:
    """Return the one value that the files have for a setting; None with a sentence if they have several."""
    given = {getattr(one, field): one.position for one in settings if getattr(one, field) is not None}
    if len(given) > 1:
        places = ", ".join(f"{value} ({position})" for value, position in given.items())
        left_out.append(
            f"{next(iter(given.values()))}: {field}: the files say {places}: set it in host.yaml for each GPU"
        )
        return None
    return next(iter(given), None)


def _decode_scheduler(dword: int, position: str, left_out: list[str]) -> str | None:
    """Return RmPVMRL as host.yaml's keys. Only the policy has the same bits for each generation of the driver."""
    try:
        spec: SchedulerSpec = decode_dword(DriverGeneration.STRICT, dword)
    except ValueError as error:
        left_out.append(f"{position}: RmPVMRL: {error}")
        return None
    doubt = wrong_generation(DriverGeneration.STRICT, dword)
    if doubt is not None:
        left_out.append(
            f"{position}: RmPVMRL={dword:#010x}: only its policy is certain: its other bits depend on the driver"
        )
    if doubt is not None or spec.time_slice_ms is None:
        return f"policy: {spec.policy}"
    return f"policy: {spec.policy}, time_slice_ms: {spec.time_slice_ms}"
