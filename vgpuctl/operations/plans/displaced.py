# SPDX-License-Identifier: Apache-2.0
"""vGPUs whose recorded slot cannot come back: the card is gone or replaced, or its driver has another interface.

After a boot a slot may be missing only for a moment: no driver yet, VFs off, no types yet. Those are not displaced.
"""

from __future__ import annotations

from vgpuctl.backends import backend_for
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.numbers import count_text
from vgpuctl.model.profile_name import parse_profile_name
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Vm, VmRecord
from vgpuctl.value import replace


def why_displaced(
    snapshot: Snapshot, absent: frozenset[str], vgpu: AssignedVgpu, *, any_function: bool = False
) -> str | None:
    """Return why a vGPU can never be at its recorded slot again; None if it is there, or may still come.

    `absent`: the GPUs of records whose address is on no bus. `any_function`: any function of its GPU will do.
    """
    if vgpu.gpu in absent:
        return f"the GPU {vgpu.gpu} is no longer on this host"
    gpu = snapshot.gpu(vgpu.gpu)
    if gpu is None or not backend_for(vgpu.backend).creates_devices:
        return None
    if not (gpu.is_display_class or gpu.vfs_total or backend_for(gpu.backend).creates_devices):
        return f"the device {gpu.address} is not a GPU (PCI ID {gpu.vendor_id}:{gpu.device_id})"
    if gpu.backend is None:
        return None
    if any(v.carrier == vgpu.carrier and v.present for v in snapshot.vgpus):
        return None
    backend = backend_for(gpu.backend)
    if not backend.creates_devices:
        return None  # plain VFs, or vfio-pci: the vGPU driver may come, and host.yaml may ask for it
    if not backend.accepts(backend_for(vgpu.backend)):
        return f"the driver of {gpu.address} now creates vGPUs as {backend.name}, and {vgpu.carrier} was {vgpu.backend}"
    if _is_other_type(snapshot, gpu, vgpu):
        return f"{gpu.address} no longer offers {vgpu.profile}"
    if not any_function and gpu.find_function(vgpu.function) is None and _has_all_functions(gpu):
        return f"{vgpu.function} no longer exists: {gpu.address} has {count_text(gpu.vfs_enabled, 'VF')}, all on"
    return None


def _has_all_functions(gpu: Gpu) -> bool:
    """Return whether no further function can appear: VFs appear one by one while a program turns them on."""
    return not backend_for(gpu.backend).on_vfs or (gpu.vfs_enabled == gpu.vfs_total and not gpu.problems)


def _is_other_type(snapshot: Snapshot, gpu: Gpu, vgpu: AssignedVgpu) -> bool:
    """Return whether the GPU will not offer the vGPU's profile: it is of another model, or it is empty and does not.

    A GPU in use may list only what still fits on it, and one with MIG only what its GPU instances have.
    """
    if vgpu.profile is None or not gpu.types or any(t.profile == vgpu.profile for t in gpu.types):
        return False
    name = parse_profile_name(vgpu.profile)
    boards = {parsed.board for t in gpu.types if (parsed := parse_profile_name(t.profile)) is not None}
    if name is not None and boards and name.board not in boards:
        return True
    is_partitioned = (gpu.mig is not None and gpu.mig.enabled) or (name is not None and name.mig_slices > 0)
    return not is_partitioned and not any(v.present for v in snapshot.vgpus_on(gpu.address))


def without_displaced(
    snapshot: Snapshot, vm: Vm, record: VmRecord, displaced: frozenset[str]
) -> tuple[Snapshot, Vm, VmRecord]:
    """Return the host, the VM and its record as if the VM had given up these carriers and waited for other slots."""
    if not displaced:
        return snapshot, vm, record
    vgpus = tuple(replace(v, waits_for_place=v.waits_for_place or v.carrier in displaced) for v in record.vgpus)
    record = replace(record, vgpus=vgpus)
    vm = replace(vm, record=record)
    remaining = tuple(v for v in snapshot.vgpus if v.vm_uuid != vm.uuid or v.carrier not in displaced)
    vms = tuple(vm if other.uuid == vm.uuid else other for other in snapshot.vms)
    return replace(snapshot, vgpus=remaining, vms=vms), vm, record
