# SPDX-License-Identifier: Apache-2.0
"""Moves of VMs in their order: how to describe them, and whether they can be made one after the other.

An entry moves a vGPU to a free place, or lets it give up its place so that others can move; its own move comes later.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.config.vm_request import with_constraints
from vgpuctl.errors import Busy
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.request import GpuConstraints
from vgpuctl.model.results.moves import MoveResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Vm, VmRecord, VmState
from vgpuctl.operations.plans.change import choose_added_vgpus, with_freed
from vgpuctl.operations.plans.choose import as_taken_vgpu
from vgpuctl.operations.plans.reserve import request_from_record
from vgpuctl.operations.plans.vm_update import MoveTarget, choose_slot_at_target, place_at_target, waiting_record
from vgpuctl.placement.constraints import match_gpus
from vgpuctl.placement.vm_placement import stuck_write_error
from vgpuctl.value import Value, replace


class VmMove(Value):
    """A vGPU of a VM that moves to another slot. `placement_id`: on a mixed-size GPU, where it can be chosen.

    `waits`: it gave up its slot before, so that others could move; the VM is off since then. `leaves_gpu`: its old GPU
    shall become empty, so the VM moves although it was restricted to that GPU.
    """

    vm: Vm
    vgpu: AssignedVgpu
    gpu: str
    placement_id: int | None = None
    waits: bool = False
    leaves_gpu: bool = False

    @property
    def target(self) -> MoveTarget:
        """The slot to which it moves."""
        return MoveTarget(self.gpu, self.placement_id)

    def describe(self) -> str:
        """Say which VM moves where, and whether it is stopped and started for the move."""
        runs = self.vm.state is VmState.RUNNING
        action = "move" if not runs else "move and start" if self.waits else "stop, move and start"
        text = f"{action} VM {self.vm.name}: {self.vgpu.profile} from {self.vgpu.gpu}"
        if self.gpu == self.vgpu.gpu:
            return f"{text}, placement {self.vgpu.placement_id} to placement {self.placement_id}"
        return f"{text} to {self.gpu}{'' if self.placement_id is None else f', placement {self.placement_id}'}"

    def result(self, number: int) -> MoveResult:
        """Return the move as a result; `number`: its position in the order, in which leaves count too."""
        return MoveResult(
            vm=self.vm.name,
            uuid=self.vm.uuid,
            state=self.vm.state,
            profile=self.vgpu.profile or "",
            carrier=self.vgpu.carrier,
            from_gpu=self.vgpu.gpu,
            from_placement_id=self.vgpu.placement_id,
            to_gpu=self.gpu,
            to_placement_id=self.placement_id,
            waits=self.waits,
            round=number,
        )


class VmLeave(Value):
    """A vGPU of a VM gives up its slot and waits for its new one; a running VM is off until then."""

    vm: Vm
    vgpu: AssignedVgpu

    def describe(self) -> str:
        """Say which VM gives up its place."""
        placement = "" if self.vgpu.placement_id is None else f", placement {self.vgpu.placement_id},"
        where = f"{self.vgpu.gpu}{placement} until its new place is free"
        if self.vm.state is VmState.RUNNING:
            return f"stop VM {self.vm.name} and give up its place on {where}"
        return f"give up the place of VM {self.vm.name} on {where}"


MoveEntry = VmMove | VmLeave


def move_off_gpu(snapshot: Snapshot, vm: Vm, vgpu: AssignedVgpu) -> tuple[VmMove, Snapshot]:
    """Return the move of a vGPU to another GPU, the one that create-vm would choose for its VM now, and the host then.

    Names of GPUs to which the VM was restricted hold unless they mean only its own.

    Raises:
        Busy, Stuck: as `check_order`.
        VgpuctlError: as `choose_vgpus`.
    """
    record, old = _current_vgpu(snapshot, VmLeave(vm, vgpu))
    request = request_from_record(vm, record, (old,))
    names = tuple(name for name in request.gpu if any(g.address != old.gpu for g in match_gpus(snapshot.gpus, name)))
    request = replace(request, gpu=names)
    others = replace(snapshot, refusing_gpus=snapshot.refusing_gpus | {old.gpu})
    (new,) = choose_added_vgpus(others, request, record, removed=(old,))
    return VmMove(vm, old, new.gpu, new.placement_id, leaves_gpu=True), _after(snapshot, vm, old, new)


def check_order(snapshot: Snapshot, entries: Sequence[MoveEntry]) -> None:
    """Refuse moves if one, after those before it, finds its new slot taken or not allowed for its VM.

    Raises:
        Busy: a VM no longer has such a vGPU.
        Stuck: a kernel write has not returned on a GPU that one of the VMs has, or goes to.
        VgpuctlError: as `choose_vgpus`.
    """
    for entry in entries:
        record, old = _current_vgpu(snapshot, entry)
        is_there = isinstance(entry, VmLeave) or not entry.waits
        new = _choose_slot(snapshot, entry, record, old) if isinstance(entry, VmMove) else None
        snapshot = _after(snapshot, entry.vm, old if is_there else None, new)


def _current_vgpu(snapshot: Snapshot, entry: MoveEntry) -> tuple[VmRecord, AssignedVgpu]:
    vm, record = entry.vm, entry.vm.record
    old = next((v for v in record.vgpus if v.carrier == entry.vgpu.carrier), None) if record is not None else None
    if record is None or old is None:
        raise Busy(f"{vm.name} no longer has {entry.vgpu.carrier}", vm=vm.name)
    gpus = {v.gpu for v in record.vgpus} | ({entry.gpu} if isinstance(entry, VmMove) else set())
    stuck = next((write for write in snapshot.stuck_writes if write.gpu in gpus), None)
    if stuck is not None:
        raise stuck_write_error(stuck)
    return record, old


def _choose_slot(snapshot: Snapshot, move: VmMove, record: VmRecord, old: AssignedVgpu) -> AssignedVgpu:
    if move.waits:
        (new,) = choose_slot_at_target(snapshot, move.vm, waiting_record(record, old), move.target)
        return new
    request = with_constraints(request_from_record(move.vm, record, (old,)), GpuConstraints(gpus=(move.gpu,)))
    target_snapshot = with_freed(snapshot, (old,)) if old.gpu == move.gpu else snapshot
    added = choose_added_vgpus(target_snapshot, request, record, removed=(old,))
    (new,) = place_at_target(target_snapshot, move.target, old, added)
    return new


def _after(snapshot: Snapshot, vm: Vm, old: AssignedVgpu | None, new: AssignedVgpu | None) -> Snapshot:
    """Return the snapshot as it will be when the old vGPU is removed, its function free, and the new one made.

    What the driver offers then is its secret, as in `with_freed`; records and definitions are those from before.
    """
    if old is not None:
        snapshot = with_freed(snapshot, (old,))
        snapshot = replace(snapshot, gpus=tuple(_freed(gpu, old) for gpu in snapshot.gpus))
    if new is not None:
        made = replace(as_taken_vgpu(new, vm.name, vm.uuid), present=True)
        snapshot = replace(snapshot, vgpus=(*snapshot.vgpus, made))
    return snapshot


def _freed(gpu: Gpu, old: AssignedVgpu) -> Gpu:
    """Return a GPU on which the function of a removed vGPU does not carry it any more."""
    functions = tuple(
        replace(f, current_type=None, mdevs=tuple(m for m in f.mdevs if m.uuid != old.carrier))
        if f.address == old.function
        else f
        for f in gpu.functions
    )
    return replace(gpu, functions=functions)
