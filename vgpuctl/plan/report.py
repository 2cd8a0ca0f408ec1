# SPDX-License-Identifier: Apache-2.0
"""Turn a snapshot into the values that commands print, as text and as JSON. Unknown is None, never zero."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vgpuctl.capacity.room import Room, max_on_empty_gpu
from vgpuctl.capacity.vm_placement import list_rooms, sum_free, sum_guaranteed
from vgpuctl.model.gpu import MODES_WITHOUT_VFS, Backend, Gpu, Vgpu, VgpuType
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Vm
from vgpuctl.plan.reserve import without_slot
from vgpuctl.plan.scheduler_report import scheduler_summary

Value = dict[str, object]


def free_values(rooms: Sequence[tuple[Gpu, Room]]) -> Value:
    """Return how many more of one profile fit in these rooms, and how many of them for sure."""
    return {"free": sum_free(rooms), "free_at_least": sum_guaranteed(rooms)}


def vgpu_value(vgpu: Vgpu) -> Value:
    """Return one vGPU's value."""
    return {
        "carrier": vgpu.carrier,
        "profile": vgpu.profile,
        "gpu": vgpu.gpu,
        "function": vgpu.function,
        "backend": str(vgpu.backend) if vgpu.backend else None,
        "framebuffer_mib": vgpu.framebuffer_mib,
        "vm": vgpu.vm,
        "owner": str(vgpu.owner),
        "present": vgpu.present,
        "reason": vgpu.reason,
        "name": vgpu.name,
        "placement_id": vgpu.placement_id,
        "gpu_instance_id": vgpu.gi_id,
        "companions": [],
    }


def vgpu_values(vgpus: Iterable[Vgpu]) -> list[Value]:
    """Return the values of what is taken; a GPU that is passed through is one, with the others of its slot."""
    return with_companions([vgpu_value(v) for v in vgpus])


def with_companions(values: Iterable[Value]) -> list[Value]:
    """Return values with the other functions of a whole GPU's slot, such as its audio, in the GPU's own value."""
    every = list(values)
    whole = [v for v in every if v["carrier"] == v["gpu"]]
    companions: dict[tuple[object, object], list[object]] = {(v["gpu"], v["vm"]): [] for v in whole}
    found: list[Value] = []
    for value in every:
        beside = companions.get((value["gpu"], value["vm"]))
        if beside is not None and value["backend"] == Backend.PASSTHROUGH and value not in whole:
            beside.append(value["carrier"])
        else:
            found.append(value | {"companions": beside if beside is not None and value in whole else []})
    return found


def gpu_value(snapshot: Snapshot, gpu: Gpu) -> Value:
    """Return one GPU's value for list-gpus."""
    taken = snapshot.vgpus_on(gpu.address)
    problems = [*gpu.problems, *(f"{f.address}: {f.problem}" for f in gpu.functions if f.problem)]
    problems += [
        f"process {s.process.pid} waits in the kernel writing {s.path}"
        for s in snapshot.stuck_writes
        if s.gpu == gpu.address
    ]
    vf_addresses = {f.address for f in gpu.functions} if gpu.vfs_enabled else set()
    return {
        "address": gpu.address,
        "model": gpu.model,
        "backend": str(gpu.backend) if gpu.backend else None,
        "mode": str(gpu.mode),
        "driver": gpu.driver,
        "framebuffer_mib": gpu.framebuffer_mib,
        "numa_node": gpu.numa_node,
        "iommu_group": gpu.iommu_group,
        "vfs": {
            "total": gpu.vfs_total,
            "enabled": gpu.vfs_enabled,
            "used": len({v.function for v in taken} & vf_addresses),
        },
        "vgpus": vgpu_values(taken),
        "problems": problems,
        "desired_mode": str(gpu.desired_mode) if gpu.desired_mode else None,
        "cordoned": gpu.cordoned,
        "allowed_profiles": None if gpu.allowed_profiles is None else list(gpu.allowed_profiles),
        "reserved_for": list(gpu.reserved_for),
        "scheduler": scheduler_summary(gpu),
    }


def gpu_warnings(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Return what people must know about these GPUs."""
    return tuple(
        f"{g.address} ({g.model}): its VFs are off, 0 of {g.vfs_total} enabled; what it offers shows once they are on"
        for g in gpus
        if g.backend is None and g.vfs_total and not g.vfs_enabled and g.desired_mode not in MODES_WITHOUT_VFS
    )


def gpu_details(snapshot: Snapshot, gpu: Gpu) -> Value:
    """Return one GPU's value for show-gpu: with its types, functions and group."""
    value = gpu_value(snapshot, gpu)
    value["console"] = list(gpu.console_reasons)
    value["group_members"] = [
        {"address": m.address, "driver": m.driver, "same_slot": m.same_slot} for m in gpu.group_members
    ]
    value["functions"] = [
        {"address": f.address, "driver": f.driver, "iommu_group": f.iommu_group, "problem": f.problem}
        for f in gpu.functions
    ]
    value["types"] = [
        {
            "profile": t.profile,
            "name": t.name,
            "type_id": t.type_id,
            "framebuffer_mib": t.framebuffer_mib,
            "max_per_gpu": max_on_empty_gpu(gpu, t),
            **free_values(list_rooms(snapshot, (gpu,), {gpu.address: t})),
            "gpu_instance_profile": _gi_profile(gpu, t),
        }
        for t in gpu.types
    ]
    value["mixed_size"] = gpu.mixed_size
    value["mig"] = _mig_value(gpu)
    return value


def _gi_profile(gpu: Gpu, known: VgpuType) -> str | None:
    """Return the name of the GPU instance profile that a type needs, or its number where the GPU does not name it."""
    if known.gi_profile_id is None:
        return None
    profile = gpu.mig.find_profile(known.gi_profile_id) if gpu.mig is not None else None
    return profile.name if profile is not None else str(known.gi_profile_id)


def _mig_value(gpu: Gpu) -> Value | None:
    if gpu.mig is None:
        return None
    instances = []
    for one in gpu.mig.instances:
        profile = gpu.mig.find_profile(one.profile_id)
        name = profile.name if profile is not None else str(one.profile_id)
        instances.append({"id": one.gi_id, "profile": name, "start": one.placement.start, "size": one.placement.size})
    return {"enabled": gpu.mig.enabled, "pending": gpu.mig.pending_enabled, "instances": instances}


def vm_value(snapshot: Snapshot, vm: Vm) -> Value:
    """Return one VM's value for show-vm and for every command that makes or changes one."""
    made = {d.path: d for d in vm.record.disks} if vm.record else {}
    return {
        "name": vm.name,
        "uuid": vm.uuid,
        "state": str(vm.state),
        "owner": owner_of(vm),
        "record": str(vm.record.state) if vm.record else None,
        "memory_mib": vm.memory_mib,
        "vcpus": vm.vcpus,
        "firmware": vm.firmware,
        "networks": list(vm.networks),
        "mac_addresses": list(vm.mac_addresses),
        "reserve": vm.record.reserve if vm.record else None,
        "spread_group": vm.record.spread_group if vm.record else None,
        "vgpus": _vgpus_of(snapshot, vm),
        "disks": [
            {
                "path": d.source,
                "device": d.device,
                "size_bytes": (made[d.source].capacity_bytes or None) if d.source in made else None,
                "base": made[d.source].base if d.source in made else None,
                "made": d.source in made,
            }
            for d in vm.disks
        ],
    }


def _vgpus_of(snapshot: Snapshot, vm: Vm) -> list[Value]:
    """Return the vGPUs that a VM has, and those that it gets when it starts, as its record names them."""
    values = [vgpu_value(v) for v in snapshot.vgpus if v.vm_uuid == vm.uuid]
    shown = {v["carrier"] for v in values}
    away = without_slot(snapshot, vm, vm.record) if vm.record is not None else ()
    waiting = (planned_vgpu(v, vm.name) for v in away if v.carrier not in shown)
    return with_companions([*values, *(v | {"reason": "reserved only while the VM runs"} for v in waiting)])


def planned_vgpu(vgpu: AssignedVgpu, vm: str | None) -> Value:
    """Return the value of a vGPU that is promised to a VM, or to none, and not made yet."""
    return {
        "carrier": vgpu.carrier,
        "profile": vgpu.profile,
        "gpu": vgpu.gpu,
        "function": vgpu.function,
        "backend": str(vgpu.backend),
        "framebuffer_mib": vgpu.framebuffer_mib,
        "vm": vm,
        "owner": "managed",
        "present": False,
        "reason": None,
        "name": None,
        "placement_id": vgpu.placement_id,
        "gpu_instance_id": None,
        "companions": [],
    }


def owner_of(vm: Vm) -> str:
    """Say who owns a VM: managed, unmanaged (also when it only has vGPUs of vgpuctl), or a copy of a managed one."""
    if vm.record is not None:
        return "managed" if vm.record.created_vm else "unmanaged"
    return "copy" if vm.copied_record is not None else "unmanaged"


def vm_row(snapshot: Snapshot, vm: Vm) -> Value:
    """Return one VM's value for list-vms."""
    return {
        "name": vm.name,
        "uuid": vm.uuid,
        "state": str(vm.state),
        "owner": owner_of(vm),
        "memory_mib": vm.memory_mib,
        "vcpus": vm.vcpus,
        "reserve": vm.record.reserve if vm.record else None,
        "vgpus": _vgpus_of(snapshot, vm),
    }
