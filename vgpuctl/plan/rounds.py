# SPDX-License-Identifier: Apache-2.0
"""Moves of VMs and their rounds: what they are in words, and whether they can be made one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.capacity.place import stuck_error
from vgpuctl.errors import Busy
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import PromisedVgpu, Vm, VmState
from vgpuctl.model.wish import Where
from vgpuctl.plan.change import added, without
from vgpuctl.plan.exchange import Going, after, places_at_once
from vgpuctl.plan.in_place import Goal, at_goal
from vgpuctl.plan.reserve import wish_for
from vgpuctl.value import Value, replace


class VmMove(Value):
    """A vGPU of a VM that goes to another place. `placement_id`: on a mixed-size GPU, where it is chosen."""

    vm: Vm
    vgpu: PromisedVgpu
    gpu: str
    placement_id: int | None = None

    def describe(self) -> str:
        """Say which VM is moved where, and whether it is stopped for it."""
        how = "stop, move and start" if self.vm.state is VmState.RUNNING else "move"
        what = f"{how} VM {self.vm.name}: {self.vgpu.profile} from {self.vgpu.gpu}"
        if self.gpu == self.vgpu.gpu:
            return f"{what}, placement {self.vgpu.placement_id} to placement {self.placement_id}"
        return f"{what} to {self.gpu}{'' if self.placement_id is None else f', placement {self.placement_id}'}"

    def value(self) -> dict[str, object]:
        """Return what programs are told of it."""
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
"""One move; or more at once, of VMs that wait for each other's places."""


def describe_round(moves: Round) -> str:
    """Say which VMs are moved, and that several are at once."""
    if len(moves) == 1:
        return moves[0].describe()
    return f"{len(moves)} at once, as each needs the place of another: {'; '.join(move.describe() for move in moves)}"


def refuse_rounds(snapshot: Snapshot, rounds: Sequence[Round]) -> None:
    """Refuse rounds of which one finds its new places not free, or not open to its VMs, when those before it are made.

    Raises:
        Busy: a VM has no such vGPU any more.
        Stuck: a kernel write has not come back on a GPU that one of the VMs has, or goes to.
        VgpuctlError: as `choose`.
    """
    for moves in rounds:
        all_of = [_going(snapshot, move) for move in moves]
        snapshot = after(snapshot, all_of, _places(snapshot, all_of))


def _going(snapshot: Snapshot, move: VmMove) -> Going:
    vm, promise = move.vm, move.vm.promise
    old = next((v for v in promise.vgpus if v.carrier == move.vgpu.carrier), None) if promise is not None else None
    if promise is None or old is None:
        raise Busy(f"{vm.name} does not have {move.vgpu.carrier} any more", vm=vm.name)
    gpus = {move.gpu, *(v.gpu for v in promise.vgpus)}
    stuck = next((write for write in snapshot.stuck if write.gpu in gpus), None)
    if stuck is not None:
        raise stuck_error(stuck)
    asked = replace(wish_for(vm, promise, (old,)), where=Where(gpus=(move.gpu,)))
    return Going(vm, promise, asked, old, Goal(move.gpu, move.placement_id))


def _places(snapshot: Snapshot, moves: Sequence[Going]) -> tuple[PromisedVgpu, ...]:
    if len(moves) > 1:
        return places_at_once(snapshot, moves)
    (one,) = moves
    seen = without(snapshot, (one.old,)) if one.old.gpu == one.goal.gpu else snapshot
    return at_goal(seen, one.goal, one.old, added(seen, one.wish, one.promise, go=(one.old,)))
