# SPDX-License-Identifier: Apache-2.0
"""Whether a VM can move to another host while it runs, or be saved, by what a list of VMs has read anyway. Pure.

QEMU decides when it is asked. This says what is known before: which devices never move, and which versions are needed.
"""

from __future__ import annotations

from vgpuctl.backends import backend_for
from vgpuctl.backends.base import Movability
from vgpuctl.backends.versions import programs_too_old_to_move
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import SAVED, AssignedVgpu, Vm

DRAWS = "QEMU cannot move what it draws for the guest on a GPU of the host (virtio-gpu)"
UNMANAGED = "vgpuctl does not manage it"
NOT_CREATED = "vgpuctl did not create it, and moves only VMs that it created"
OTHER_DEVICES = "it has devices of the host that are no vGPUs"


def find_movability(snapshot: Snapshot, vm: Vm) -> Movability:
    """Return whether a VM can leave this host while it runs, and why not, or why that is not known."""
    why_stays = _why_stays(vm)
    if why_stays is not None or vm.record is None:
        return Movability(False, why_stays)
    recorded = vm.record.vgpus
    carriers = {vgpu.carrier for vgpu in recorded}
    parts = [_of_assigned(snapshot, vgpu) for vgpu in recorded]
    for vgpu in snapshot.vgpus:
        if vgpu.vm_uuid != vm.uuid or vgpu.carrier in carriers or vgpu.backend is None:
            continue
        carriers.add(vgpu.carrier)
        gpu = snapshot.gpu(vgpu.gpu)
        parts.append(
            Movability() if gpu is None else backend_for(vgpu.backend).movability(gpu, vgpu.function, params="")
        )
    if any(hostdev.carrier not in carriers for hostdev in vm.hostdevs):
        parts.append(Movability(None, OTHER_DEVICES))
    too_old = programs_too_old_to_move({backend_for(v.backend) for v in recorded}, snapshot.hypervisor)
    if too_old:
        parts.append(Movability(False, "; ".join(too_old)))
    for can in (False, None):
        worst = next((part for part in parts if part.can is can), None)
        if worst is not None:
            return worst
    return Movability(True)


def _why_stays(vm: Vm) -> str | None:
    """Return why a VM stays here, whatever its vGPUs are."""
    if vm.record is None:
        return UNMANAGED
    if not vm.record.created_vm:
        return NOT_CREATED
    if vm.record.migration is not None:
        return f"its move with {vm.record.migration.peer} has not ended"
    if vm.stop_reason == SAVED:
        return "its memory is saved on this host: start-vm goes on from it"
    return DRAWS if vm.render_node is not None else None


def _of_assigned(snapshot: Snapshot, vgpu: AssignedVgpu) -> Movability:
    gpu = snapshot.gpu(vgpu.gpu)
    if gpu is None:
        return Movability(None, f"its GPU {vgpu.gpu} is not here now")
    return backend_for(vgpu.backend).movability(gpu, vgpu.function, vgpu.params)
