# SPDX-License-Identifier: Apache-2.0
"""VMs as results."""

from __future__ import annotations

from vgpuctl.model.numbers import format_ranges
from vgpuctl.model.results.gpus import VgpuResult
from vgpuctl.model.results.vms import DiskResult, NetworkResult, VmOwnershipWord, VmResult, VmRowResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Nic, Vm
from vgpuctl.operations.plans.guest_devices import hugepages_text
from vgpuctl.operations.plans.reserve import without_slot
from vgpuctl.operations.plans.vgpu_results import planned_vgpu, vgpu_result, with_companions
from vgpuctl.value import replace


def vm_result(snapshot: Snapshot, vm: Vm) -> VmResult:
    """Return one VM's result for show-vm and for every command that makes or changes one."""
    made = {d.path: d for d in vm.record.disks} if vm.record else {}
    seed_files = cloud_init_files(vm)
    return VmResult(
        name=vm.name,
        uuid=vm.uuid,
        state=vm.state,
        ownership=ownership_of(vm),
        owner=vm.record.owner if vm.record else None,
        labels=vm.record.labels if vm.record else {},
        record=vm.record.state if vm.record else None,
        memory_mib=vm.memory_mib,
        vcpus=vm.vcpus,
        firmware=vm.firmware,
        networks=tuple(network_result(nic) for nic in vm.nics),
        hugepages=hugepages_text(vm.hugepages_kib),
        pinned_cpus=format_ranges(vm.pinned_cpus) or None,
        memory_nodes=format_ranges(vm.memory_nodes) or None,
        display=vm.has_display,
        reserve=vm.record.reserve if vm.record else None,
        spread_group=vm.record.spread_group if vm.record else None,
        image=image_of(vm),
        cloud_init=seed_files.get("cloud_init"),
        network_config=seed_files.get("network_config"),
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
    )


def cloud_init_files(vm: Vm) -> dict[str, str]:
    """Return the paths of the files that a VM's seed for cloud-init was made from, by field."""
    fields = vm.record.request_fields if vm.record else {}
    return {name: fields[name] for name in ("cloud_init", "network_config") if isinstance(fields.get(name), str)}


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

    A VM that only has vGPUs of vgpuctl is unmanaged.
    """
    if vm.record is not None:
        return "managed" if vm.record.created_vm else "unmanaged"
    return "copy" if vm.copied_record is not None else "unmanaged"


def image_of(vm: Vm) -> str | None:
    """Return the image of the first disk that vgpuctl made from one, which refresh-vm replaces; None without one."""
    return next((d.image for d in vm.record.data_disks() if d.image is not None), None) if vm.record else None


def vm_row(snapshot: Snapshot, vm: Vm) -> VmRowResult:
    """Return one VM's result for list-vms."""
    return VmRowResult(
        name=vm.name,
        uuid=vm.uuid,
        state=vm.state,
        ownership=ownership_of(vm),
        owner=vm.record.owner if vm.record else None,
        labels=vm.record.labels if vm.record else {},
        memory_mib=vm.memory_mib,
        vcpus=vm.vcpus,
        reserve=vm.record.reserve if vm.record else None,
        image=image_of(vm),
        vgpus=_vgpus_of(snapshot, vm),
    )
