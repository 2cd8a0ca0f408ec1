# SPDX-License-Identifier: Apache-2.0
"""GPUs, vGPUs and VMs as results: those that exist, and those that a VM has only in its record or would get."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from vgpuctl.backends import backend_for
from vgpuctl.config.arguments import DEFAULT_PLACEMENT_POLICY, NONE
from vgpuctl.config.vm_request import FIELDS, VmRequest
from vgpuctl.domain.settings import SETTINGS
from vgpuctl.gpu.room import divide
from vgpuctl.makers import offers_profiles_with_vfs, support_warnings
from vgpuctl.model.autostart import keeps_last_state
from vgpuctl.model.gpu import MODES_WITHOUT_VFS, Gpu, GpuMode, Ownership, Vgpu, VgpuType
from vgpuctl.model.guest_report import GuestReport
from vgpuctl.model.numbers import format_ranges
from vgpuctl.model.planned_fields import planned_fields
from vgpuctl.model.request import PlacementSpec
from vgpuctl.model.results.gpus import (
    FunctionResult,
    GpuDetailsResult,
    GpuInstanceResult,
    GpuResult,
    MigResult,
    TypeResult,
    VfsResult,
    VgpuResult,
)
from vgpuctl.model.results.vms import DiskResult, NetworkResult, SourceResult, VmOwnershipWord, VmResult, VmRowResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Nic, Vm, VmRecord
from vgpuctl.monitoring.technique_choice import find_isolation
from vgpuctl.operations.plans.movable import find_movability
from vgpuctl.operations.plans.reserve import without_slot
from vgpuctl.operations.plans.schedulers import SchedulerDetails, scheduler_summary
from vgpuctl.placement.vm_placement import list_rooms, sum_free, sum_guaranteed
from vgpuctl.value import extend, field_names, replace

AnyVgpu = TypeVar("AnyVgpu", bound=VgpuResult)

_DECLARED = {name: FIELDS[name] for name in field_names(VmResult) if name in FIELDS}
_RECORDED_TYPES = {
    name: bool if field.is_flag else int if field.is_number else str
    for name, field in _DECLARED.items()
    if field.recorded and not field.repeatable
}
"""The fields that a VM's result has as the VM's record has them, one value each, with its type."""


def vgpu_result(vgpu: Vgpu) -> VgpuResult:
    """Return one vGPU's result."""
    return VgpuResult(
        carrier=vgpu.carrier,
        profile=vgpu.profile,
        gpu=vgpu.gpu,
        function=vgpu.function,
        backend=vgpu.backend,
        framebuffer_mib=vgpu.framebuffer_mib,
        vm=vgpu.vm,
        ownership=vgpu.owner,
        present=vgpu.present,
        reason=vgpu.reason,
        name=vgpu.name,
        placement_id=vgpu.placement_id,
        gpu_instance_id=vgpu.gi_id,
        companions=(),
        attached=vgpu.attached,
        other_vms=vgpu.other_vms,
    )


def planned_vgpu(vgpu: AssignedVgpu, vm: str | None, *, present: bool = False) -> VgpuResult:
    """Return the result of a vGPU that is assigned to a VM, or to none, and was not observed."""
    return VgpuResult(
        carrier=vgpu.carrier,
        profile=vgpu.profile,
        gpu=vgpu.gpu,
        function=vgpu.function,
        backend=vgpu.backend,
        framebuffer_mib=vgpu.framebuffer_mib,
        vm=vm,
        ownership=Ownership.MANAGED,
        present=present,
        reason=None,
        name=None,
        placement_id=vgpu.placement_id,
        gpu_instance_id=None,
        companions=(),
        attached=None,
        other_vms=(),
    )


def vgpu_results(vgpus: Iterable[Vgpu]) -> tuple[VgpuResult, ...]:
    """Return the results of what is taken; a GPU that is passed through is one, with the others of its slot."""
    return with_companions([vgpu_result(v) for v in vgpus])


def with_companions(vgpus: Sequence[AnyVgpu]) -> tuple[AnyVgpu, ...]:
    """Return results with the other functions of a whole GPU's slot, such as its audio, in the GPU's own result."""
    companions: dict[tuple[str, str | None], list[str]] = {(v.gpu, v.vm): [] for v in vgpus if v.carrier == v.gpu}
    shown: list[AnyVgpu] = []
    for vgpu in vgpus:
        same_slot = companions.get((vgpu.gpu, vgpu.vm))
        if same_slot is not None and backend_for(vgpu.backend).takes_whole_gpu and vgpu.carrier != vgpu.gpu:
            same_slot.append(vgpu.carrier)
        else:
            shown.append(vgpu)
    return tuple(replace(v, companions=tuple(companions[v.gpu, v.vm])) if v.carrier == v.gpu else v for v in shown)


def vm_result(snapshot: Snapshot, vm: Vm) -> VmResult:
    """Return one VM's result for show-vm and for every command that makes or changes one."""
    made = {d.path: d for d in vm.record.disks} if vm.record else {}
    movability = find_movability(snapshot, vm)
    return VmResult(
        name=vm.name,
        uuid=vm.uuid,
        state=vm.state,
        ownership=ownership_of(vm),
        account=vm.record.account if vm.record else None,
        generation=vm.record.generation if vm.record else None,
        labels=vm.record.labels if vm.record else {},
        record=vm.record.state if vm.record else None,
        memory_mib=vm.memory_mib,
        vcpus=vm.vcpus,
        firmware=vm.firmware,
        networks=tuple(network_result(nic) for nic in vm.nics),
        pinned_cpus=format_ranges(vm.pinned_cpus) or None,
        memory_nodes=format_ranges(vm.memory_nodes) or None,
        display=vm.has_display,
        reserve=vm.record.reserve if vm.record else None,
        image=image_of(vm),
        should_run=_should_run(vm),
        planned=planned_texts(vm.record),
        libvirt_autostart=None,
        guest_software=None,
        helper_report=None,
        desktop=vm.record.desktop if vm.record else None,
        prepared=None if vm.record is None else vm.record.prepared_disk is not None,
        stop_reason=vm.stop_reason,
        render_gpu=snapshot.render_gpu(vm),
        can_move=movability.can,
        why_not_movable=movability.why_not,
        moves_with=None if vm.move is None else vm.move.peer,
        moves_away=None if vm.move is None else vm.move.leaves,
        vgpus=_vgpus_of(snapshot, vm),
        disks=tuple(
            DiskResult(
                path=d.source,
                device=d.device,
                size_bytes=(made[d.source].capacity_bytes or None) if d.source in made else None,
                base=made[d.source].base if d.source in made else None,
                copied_from=made[d.source].copied_from if d.source in made else None,
                made=d.source in made,
            )
            for d in vm.disks
        ),
        **_values_by_name(vm),
    )


def planned_texts(record: VmRecord | None) -> dict[str, str]:
    """Return the fields that change when a VM is next off, as text."""
    return {
        name: ", ".join(value) if isinstance(value, list) else value if isinstance(value, str) else json.dumps(value)
        for name, value in planned_fields(record).items()
    }


def _values_by_name(vm: Vm) -> dict[str, Any]:
    """Return the fields of a VM's result that its record has, None without one, and its domain's settings."""
    settings = dict(vm.settings)
    recorded = {name: _recorded_value(vm, name) for name in _RECORDED_TYPES}
    return recorded | {name: settings.get(name, NONE) for name in SETTINGS if name in _DECLARED}


def _recorded_value(vm: Vm, name: str) -> Any:
    """Return a field as a VM's record has it, or its default; None without a record."""
    if vm.record is None:
        return None
    value = vm.record.requested(name, _RECORDED_TYPES[name])
    return FIELDS[name].default if value is None else value


def network_result(nic: Nic) -> NetworkResult:
    """Return a network card's result."""
    return NetworkResult(network=nic.network, bridge=nic.bridge, vlan=nic.vlan, model=nic.model, mac=nic.mac)


def _vgpus_of(snapshot: Snapshot, vm: Vm) -> tuple[VgpuResult, ...]:
    """Return the vGPUs that a VM has, and those that it gets when it starts, as its record names them."""
    present = [vgpu_result(v) for v in snapshot.vgpus if v.vm_uuid == vm.uuid or vm.name in v.other_vms]
    shown = {v.carrier for v in present}
    away = without_slot(snapshot, vm, vm.record) if vm.record is not None else ()
    absent = (replace(planned_vgpu(v, vm.name), reason=_why_absent(v)) for v in away if v.carrier not in shown)
    return with_companions([*present, *absent])


def _why_absent(vgpu: AssignedVgpu) -> str:
    """Say why a vGPU has no place now."""
    if vgpu.waits_for_place:
        return "it gave up its place for a move; vgpuctl reconcile-host or start-vm assigns one"
    return "reserved only while the VM runs"


def ownership_of(vm: Vm) -> VmOwnershipWord:
    """Say whether vgpuctl manages a VM: managed, unmanaged or a copy of a managed one.

    A VM of another program is managed when its vGPU was adopted. One that only got vGPUs of vgpuctl is unmanaged.
    """
    if vm.record is not None:
        return "managed" if vm.record.created_vm or vm.record.adopted_vgpus() else "unmanaged"
    return "copy" if vm.copied_record is not None else "unmanaged"


def is_adoptable(snapshot: Snapshot, vm: Vm) -> bool:
    """Return whether `vgpuctl adopt` would probably take a VM over; reads no types, for lists of many VMs."""
    if vm.record is not None or vm.copied_record is not None or vm.has_unreadable_record or not vm.persistent:
        return False
    own = [v for v in snapshot.vgpus if v.vm_uuid == vm.uuid or vm.name in v.other_vms]
    return bool(own) and all(_is_free_to_adopt(snapshot, vm, v) for v in own)


def _is_free_to_adopt(snapshot: Snapshot, vm: Vm, vgpu: Vgpu) -> bool:
    gpu = snapshot.gpu(vgpu.gpu)
    is_own = vgpu.owner is Ownership.UNMANAGED and vgpu.vm_uuid == vm.uuid and not vgpu.other_vms
    return is_own and vgpu.present and gpu is not None and gpu.desired_mode is not GpuMode.UNMANAGED


def image_of(vm: Vm) -> str | None:
    """Return the image of the first disk that vgpuctl made from one, which refresh-vm replaces; None without one."""
    return vm.record.image if vm.record else None


def _should_run(vm: Vm) -> bool | None:
    return vm.record.should_run if vm.record and keeps_last_state(vm.record) else None


def vm_row(snapshot: Snapshot, vm: Vm, report: GuestReport | None = None) -> VmRowResult:
    """Return one VM's result for list-vms. `report`: of the helper in its guest."""
    users = None if report is None else report.users
    movability = find_movability(snapshot, vm)
    return VmRowResult(
        name=vm.name,
        uuid=vm.uuid,
        state=vm.state,
        ownership=ownership_of(vm),
        owner=vm.record.owner if vm.record else None,
        account=vm.record.account if vm.record else None,
        generation=vm.record.generation if vm.record else None,
        labels=vm.record.labels if vm.record else {},
        memory_mib=vm.memory_mib,
        vcpus=vm.vcpus,
        reserve=vm.record.reserve if vm.record else None,
        image=image_of(vm),
        license=_recorded_value(vm, "license"),
        guest_sharing=_recorded_value(vm, "guest_sharing"),
        driver=None if report is None else report.driver,
        guest_users=None if users is None else tuple(user.user for user in users),
        should_run=_should_run(vm),
        adoptable=is_adoptable(snapshot, vm),
        desktop=vm.record.desktop if vm.record else None,
        prepared=None if vm.record is None else vm.record.prepared_disk is not None,
        stop_reason=vm.stop_reason,
        off_after_setup=_recorded_value(vm, "off_after_setup"),
        render_gpu=snapshot.render_gpu(vm),
        can_move=movability.can,
        why_not_movable=movability.why_not,
        moves_with=None if vm.move is None else vm.move.peer,
        moves_away=None if vm.move is None else vm.move.leaves,
        vgpus=_vgpus_of(snapshot, vm),
    )


def gpu_result(snapshot: Snapshot, gpu: Gpu) -> GpuResult:
    """Return one GPU's result for list-gpus."""
    taken = snapshot.vgpus_on(gpu.address)
    problems = [
        *filter(None, (gpu.lost_text,)),
        *gpu.problems,
        *(f"{f.address}: {f.problem}" for f in gpu.functions if f.problem),
    ]
    problems += [
        f"process {s.process.pid} waits in the kernel writing {s.path}"
        for s in snapshot.stuck_writes
        if s.gpu == gpu.address
    ]
    vf_addresses = {f.address for f in gpu.functions} if gpu.vfs_enabled else set()
    return GpuResult(
        address=gpu.address,
        model=gpu.model,
        backend=gpu.backend,
        mode=gpu.mode,
        driver=gpu.driver,
        framebuffer_mib=gpu.framebuffer_mib,
        numa_node=gpu.numa_node,
        iommu_group=gpu.iommu_group,
        pcie_switch=gpu.pcie_switch,
        vfs=VfsResult(gpu.vfs_total, gpu.vfs_enabled, used=len({v.function for v in taken} & vf_addresses)),
        vgpus=vgpu_results(taken),
        problems=tuple(problems),
        desired_mode=gpu.desired_mode,
        cordoned=gpu.cordoned,
        allowed_profiles=gpu.allowed_profiles,
        reserved_for=gpu.reserved_for,
        mixed_size=gpu.mixed_size,
        compute_partition=gpu.compute_partition,
        memory_partition=gpu.memory_partition,
        scheduler=scheduler_summary(gpu),
        render_node=gpu.render_node,
        draws_for=tuple(sorted(vm.name for vm in snapshot.vms_drawn_by(gpu))),
    )


def gpu_warnings(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Return what people must know about these GPUs."""
    gpus = tuple(gpus)
    vfs_off = (
        f"{g.address} ({g.model}): its VFs are off, 0 of {g.vfs_total} enabled; it "
        f"{'offers profiles' if offers_profiles_with_vfs(g) else 'gives VMs VFs'} only when they are on"
        for g in gpus
        if g.backend is None and g.vfs_total and not g.vfs_enabled and g.desired_mode not in MODES_WITHOUT_VFS
    )
    return (*vfs_off, *support_warnings(gpus))


def gpu_details(snapshot: Snapshot, gpu: Gpu, scheduler: SchedulerDetails) -> GpuDetailsResult:
    """Return one GPU's result for show-gpu: with its types, functions, group and scheduler."""
    functions = (
        FunctionResult(f.address, f.driver, f.iommu_group, f.problem, f.framebuffer_mib) for f in gpu.functions
    )
    return extend(
        GpuDetailsResult,
        gpu_result(snapshot, gpu),
        uuid=gpu.uuid,
        reason=gpu.reason,
        console=gpu.console_reasons,
        group_members=gpu.group_members,
        functions=tuple(functions),
        types=tuple(_type_result(snapshot, gpu, known) for known in gpu.types),
        mig=_mig_result(gpu),
        scheduler_limits=scheduler.limits,
        scheduler_at_load=scheduler.at_load,
        scheduler_next=scheduler.at_next_load,
        shares=scheduler.shares,
        isolation=find_isolation(gpu),
    )


def _type_result(snapshot: Snapshot, gpu: Gpu, known: VgpuType) -> TypeResult:
    rooms = list_rooms(snapshot, (gpu,), {gpu.address: known})
    return TypeResult(
        profile=known.profile,
        name=known.name,
        type_id=known.type_id,
        framebuffer_mib=known.framebuffer_mib,
        max_per_gpu=divide(gpu, ()).max_when_empty(known),
        free=sum_free(rooms),
        free_at_least=sum_guaranteed(rooms),
        gpu_instance_profile=None if known.gi_profile_id is None else _gi_profile_name(gpu, known.gi_profile_id),
    )


def _gi_profile_name(gpu: Gpu, profile_id: int) -> str:
    """Return the name of a GPU instance profile, or its number where the GPU does not name it."""
    profile = gpu.mig.find_profile(profile_id) if gpu.mig is not None else None
    return profile.name if profile is not None else str(profile_id)


def _mig_result(gpu: Gpu) -> MigResult | None:
    if gpu.mig is None:
        return None
    instances = (
        GpuInstanceResult(i.gi_id, _gi_profile_name(gpu, i.profile_id), i.placement.start, i.placement.size)
        for i in gpu.mig.instances
    )
    return MigResult(gpu.mig.enabled, gpu.mig.pending_enabled, tuple(instances))


def field_sources(request: VmRequest, placement: PlacementSpec) -> Mapping[str, SourceResult]:
    """Return the value and the source of every field. `placement`: the placement settings of host.yaml."""
    values = {
        name: field.shown(value)
        for name, field in FIELDS.items()
        if field.shown is not None and (value := getattr(request, field.attribute)) is not field.empty
    }
    sources = dict(request.sources)
    if request.mode in (GpuMode.SRIOV, GpuMode.PASSTHROUGH):
        values["gpus"] = request.gpus
    if request.mode in (GpuMode.VGPU, GpuMode.SRIOV):
        values["placement"] = request.placement or placement.policy or DEFAULT_PLACEMENT_POLICY
        default_source = "host.yaml" if placement.policy is not None else "default"
        sources["placement"] = "given" if request.placement is not None else default_source
    return {name: SourceResult(value, sources.get(name, "default")) for name, value in values.items()}
