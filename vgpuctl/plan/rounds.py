# SPDX-License-Identifier: Apache-2.0
"""Moves of VMs and their rounds: how to describe them, and whether they can be made one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.capacity.vm_placement import stuck_write_error
from vgpuctl.errors import Busy
from vgpuctl.model.request import GpuConstraints
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Vm, VmState
from vgpuctl.plan.change import choose_added_vgpus, with_freed
from vgpuctl.plan.exchange import Going, after, places_at_once
from vgpuctl.plan.reserve import request_from_record
from vgpuctl.plan.vm_update import MoveTarget, place_at_target
from vgpuctl.value import Value, replace


class VmMove(Value):
    """A vGPU of a VM that moves to another slot. `placement_id`: on a mixed-size GPU, where it can be chosen."""

    vm: Vm
    vgpu: AssignedVgpu
    gpu: str
    placement_id: int | None = None

    def describe(self) -> str:
        """Say which VM moves where, and whether it is stopped for the move."""
        action = "stop, move and start" if self.vm.state is VmState.RUNNING else "move"
        text = f"{action} VM {self.vm.name}: {self.vgpu.profile} from {self.vgpu.gpu}"
        if self.gpu == self.vgpu.gpu:
            return f"{text}, placement {self.vgpu.placement_id} to placement {self.placement_id}"
        return f"{text} to {self.gpu}{'' if self.placement_id is None else f', placement {self.placement_id}'}"

    def value(self) -> dict[str, object]:
        """Return the move as a JSON value."""
        return {
            "vm": self.vm.name,
            "uuid": self.vm.uuid,
            "state": str(self.vm.state),
            "profile": self.vgpu.profile,
            "carrier": self.vgpu.carrier,
            "from_gpu": self.vgpu.gpu,
            "from_placement_id": self.vgpu.placement_id,
            "to_gpu": self.gpu,
            "to_placement_id": self.placement_id,
        }


Round = tuple[VmMove, ...]
"""One move, or several simultaneous moves of VMs that need each other's slots."""


def describe_round(moves: Round) -> str:
    """Say which VMs move, and whether several move at the same time."""
    if len(moves) == 1:
        return moves[0].describe()
    return f"{len(moves)} at once, as each needs the place of another: {'; '.join(move.describe() for move in moves)}"


def check_rounds(snapshot: Snapshot, rounds: Sequence[Round]) -> None:
    """Refuse rounds if one, after those before it, finds its new slots taken or not allowed for its VMs.

    Raises:
        Busy: a VM no longer has such a vGPU.
        Stuck: a kernel write has not returned on a GPU that one of the VMs has, or goes to.
        VgpuctlError: as `choose_vgpus`.
    """
    for moves in rounds:
        exchanged = [_going(snapshot, move) for move in moves]
        snapshot = after(snapshot, exchanged, _choose_slots(snapshot, exchanged))


def _going(snapshot: Snapshot, move: VmMove) -> Going:
    vm, record = move.vm, move.vm.record
    old = next((v for v in record.vgpus if v.carrier == move.vgpu.carrier), None) if record is not None else None
    if record is None or old is None:
        raise Busy(f"{vm.name} does not have {move.vgpu.carrier} any more", vm=vm.name)
    gpus = {move.gpu, *(v.gpu for v in record.vgpus)}
    stuck = next((write for write in snapshot.stuck_writes if write.gpu in gpus), None)
    if stuck is not None:
        raise stuck_write_error(stuck)
    request = replace(request_from_record(vm, record, (old,)), constraints=GpuConstraints(gpus=(move.gpu,)))
    return Going(vm, record, request, old, MoveTarget(move.gpu, move.placement_id))


def _choose_slots(snapshot: Snapshot, moves: Sequence[Going]) -> tuple[AssignedVgpu, ...]:
    if len(moves) > 1:
        return places_at_once(snapshot, moves)
    (move,) = moves
    target_snapshot = with_freed(snapshot, (move.old,)) if move.old.gpu == move.goal.gpu else snapshot
    return place_at_target(
        target_snapshot,
        move.goal,
        move.old,
        choose_added_vgpus(target_snapshot, move.request, move.record, removed=(move.old,)),
    )
