# SPDX-License-Identifier: Apache-2.0
"""Which VMs are stopped, given another place and started so that more fits: the fewest, in an order that can be done.

Only VMs that vgpuctl made are moved, each vGPU at most once. A GPU that host.yaml cordons or reserves is left alone.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from vgpuctl.capacity.fits import Spot, fit
from vgpuctl.capacity.kinds import Numbers, fleet_of
from vgpuctl.capacity.profiles import find, shared_names, the_one, without_namesakes
from vgpuctl.capacity.room import free_functions
from vgpuctl.errors import NoCapacity, VgpuctlError
from vgpuctl.model.gpu import Backend, Gpu, Owner, Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import PromisedVgpu, PromiseState, Vm, VmState
from vgpuctl.model.wish import ANYWHERE
from vgpuctl.placement.better import improvement
from vgpuctl.placement.moves import in_the_way, room_for
from vgpuctl.placement.shifts import Placed, Room, Shift, Spare
from vgpuctl.plan.differ import kept_where
from vgpuctl.plan.rounds import Round, VmMove, refuse_rounds
from vgpuctl.value import NOTHING, Value, replace

MOVABLE = (VmState.RUNNING, VmState.STOPPED)


class MovesPlan(Value):
    """The rounds in their order, and where what is asked for has room then; `fewest`: whether fewer would not do."""

    rounds: tuple[Round, ...]
    spots: tuple[Spot, ...] = ()
    fewest: bool = True

    @property
    def moves(self) -> tuple[VmMove, ...]:
        """All moves in their order."""
        return tuple(move for one in self.rounds for move in one)

    def values(self) -> list[dict[str, object]]:
        """Return what programs are told of the moves; those of one `round` are made at once."""
        return [{**move.value(), "round": number} for number, one in enumerate(self.rounds, 1) for move in one]


class _Host(Value):
    """The GPUs in numbers, the vGPUs on them that may be moved, and whose those are.

    `fixed`, `spare`: as for `room_for`.
    """

    numbers: Numbers
    placed: tuple[Placed, ...]
    whose: tuple[tuple[Vm, PromisedVgpu], ...]
    fixed: frozenset[int]
    spare: Spare

    def plan(self, room: Room) -> MovesPlan:
        """Return what was found, with VMs and addresses in the place of numbers."""
        spots = tuple(self._spot(one) for one in room.places)
        return MovesPlan(tuple(tuple(self._move(s) for s in one) for one in room.rounds), spots, room.fewest)

    def twice(self, rounds: Sequence[tuple[Shift, ...]]) -> frozenset[str]:
        """Return the VMs, by uuid, of which a round moves more than one vGPU: that is not done."""
        uuids = [Counter(self.whose[shift.which][0].uuid for shift in one) for one in rounds]
        return frozenset(uuid for counts in uuids for uuid, number in counts.items() if number > 1)

    def _move(self, shift: Shift) -> VmMove:
        vm, vgpu = self.whose[shift.which]
        gpu = self.numbers.gpus[shift.gpu]
        return VmMove(vm, vgpu, gpu.address, placement_of(gpu, shift.place))

    def _spot(self, placed: Placed) -> Spot:
        gpu = self.numbers.gpus[placed.gpu]
        return Spot(gpu, placed.profile, placement_of(gpu, placed.place))


def placement_of(gpu: Gpu, place: int) -> int | None:
    """Return the placement id of a place as `fleet_of` numbers them; None where the driver chooses."""
    return (place & -place).bit_length() - 1 if gpu.chooses_places else None


def room_by_moves(
    snapshot: Snapshot,
    gpus: Sequence[Gpu],
    profiles: Sequence[tuple[str, int]],
    pinned: frozenset[str] = frozenset(),
    most: int | None = None,
) -> MovesPlan:
    """Return the fewest moves after which all these fit on the GPUs. `pinned`: VMs that stay, by uuid.

    Raises:
        NoCapacity: no moves of VMs that may be moved make that room.
        NotFound, InvalidInput: a profile cannot be meant on these GPUs.
        VgpuctlError: moves would, and cannot be made; as `refuse_rounds`.
    """
    types = [find(snapshot, gpus, text) for text, _ in profiles]
    gpus = without_namesakes(gpus, types)
    names = [the_one(some, text) for some, (text, _) in zip(types, profiles, strict=True)]
    wanted = [name for name, (_, number) in zip(names, profiles, strict=True) for _ in range(number)]
    host = _host(snapshot, gpus, pinned)

    def search(spare: Spare) -> Room | None:
        return room_for(host.numbers.fleet, host.placed, wanted, most, fixed=host.fixed, spare=spare)

    found = search(NOTHING)
    if found is None:
        raise _no_room(snapshot, gpus, profiles, host, most)
    twice = host.twice(found.rounds)
    if twice:
        return replace(room_by_moves(snapshot, gpus, profiles, pinned | twice, most), fewest=False)
    return _doable(snapshot, host, found, search)


def better_by_moves(
    snapshot: Snapshot, gpus: Sequence[Gpu], pinned: frozenset[str] = frozenset(), most: int | None = None
) -> MovesPlan:
    """Return moves, no more than `most`, after which more of the largest profiles fit; none when there are none.

    Raises:
        VgpuctlError: as `refuse_rounds`.
    """
    host = _host(snapshot, gpus, pinned)

    def search(spare: Spare) -> Room:
        return Room(improvement(host.numbers.fleet, host.placed, most, host.fixed, spare), (), fewest=False)

    found = search(NOTHING)
    twice = host.twice(found.rounds)
    if twice:
        return better_by_moves(snapshot, gpus, pinned | twice, most)
    return _doable(snapshot, host, found, search)


def _doable(snapshot: Snapshot, host: _Host, found: Room, search: Callable[[Spare], Room | None]) -> MovesPlan:
    """Return the plan that was found; where it is refused, one whose rounds find the functions that they need.

    Raises:
        VgpuctlError: that there is none; as `refuse_rounds`.
    """
    plan = host.plan(found)
    try:
        refuse_rounds(snapshot, plan.rounds)
    except VgpuctlError:
        other = search(host.spare)
        if other is None or host.twice(other.rounds):
            raise
        plan = host.plan(other)
        refuse_rounds(snapshot, plan.rounds)
    return plan


def in_the_way_of(snapshot: Snapshot, gpus: Sequence[Gpu], profile: str) -> Mapping[str, tuple[str, ...] | None]:
    """Return for each GPU the carriers of the fewest vGPUs that would have to leave it for one more of the profile.

    Empty when one more fits as it is; None when it would not fit all the same, or that is not known.
    """
    numbers = fleet_of(snapshot, gpus)
    there = [(Placed(n, c.profile, c.place), c.vgpu) for n, all_of in enumerate(numbers.counted) for c in all_of]
    found: dict[str, tuple[str, ...] | None] = {gpu.address: None for gpu in gpus}
    for number, gpu in enumerate(numbers.gpus):
        gone = in_the_way(numbers.fleet, [placed for placed, _ in there], number, profile)
        found[gpu.address] = None if gone is None else tuple(there[n][1].carrier for n in gone)
    return found


def _host(snapshot: Snapshot, gpus: Sequence[Gpu], pinned: frozenset[str]) -> _Host:
    numbers = fleet_of(snapshot, gpus)
    shared = shared_names(gpus)
    placed: list[Placed] = []
    whose: list[tuple[Vm, PromisedVgpu]] = []
    for number, counted in enumerate(numbers.counted):
        for one in counted:
            owner = _owner(snapshot, one.vgpu)
            if owner is not None and owner[0].uuid not in pinned and one.profile not in shared:
                placed.append(Placed(number, one.profile, one.place))
                whose.append(owner)
    fixed = frozenset(n for n, gpu in enumerate(numbers.gpus) if not gpu.chooses_places)
    spare = {
        number: len(free_functions(gpu, snapshot.taken_on(gpu.address)))
        for number, gpu in enumerate(numbers.gpus)
        if gpu.backend is not Backend.MDEV_PF
    }
    return _Host(numbers, tuple(placed), tuple(whose), fixed, spare)


def _owner(snapshot: Snapshot, vgpu: Vgpu) -> tuple[Vm, PromisedVgpu] | None:
    """Return the VM that may be moved with this vGPU, and what it is promised; None where nothing is moved."""
    vm = snapshot.vm(vgpu.vm_uuid or "")
    promise = vm.promise if vm is not None else None
    if vm is None or promise is None or vgpu.owner is not Owner.OURS or why_pinned(vm) is not None:
        return None
    stuck = {write.gpu for write in snapshot.stuck}
    if vgpu.due_placement_id is not None or any(v.gpu in stuck for v in promise.vgpus):
        return None
    mine = next((v for v in promise.vgpus if v.carrier == vgpu.carrier and v.profile is not None), None)
    return (vm, mine) if mine is not None else None


def why_pinned(vm: Vm) -> str | None:
    """Say why a VM keeps its places; None when it may be moved."""
    promise = vm.promise
    if promise is None or not promise.made_vm:
        return "vgpuctl did not make it"
    if promise.state is not PromiseState.READY:
        return f"its record says {promise.state}"
    if vm.state not in MOVABLE:
        return f"it is {vm.state}"
    if not vm.persistent:
        return "it was undefined while it runs, and would be gone"
    if promise.exchange is not None:
        return "its place is being exchanged"
    if promise.lends:
        return "it has its places only while it runs"
    asked = replace(kept_where(promise.asked), policy=None)
    if asked != ANYWHERE or promise.spread_group is not None or vm.memory_nodes:
        return "it is bound to a GPU, a NUMA node, a scheduler or a group"
    return None


def _no_room(
    snapshot: Snapshot, gpus: Sequence[Gpu], profiles: Sequence[tuple[str, int]], host: _Host, most: int | None
) -> NoCapacity:
    text = ", ".join(p if n == 1 else f"{n} × {p}" for p, n in profiles)
    seen = fit(snapshot, gpus, profiles)
    lines = [
        f"{b.gpu.address}: {b.profile}: {'; '.join(b.room.reasons) or f'{b.room.sure} more'}" for b in seen.barriers
    ]
    lines += [f"{address}: {why}" for address, why in sorted(host.numbers.left_out.items())]
    stay = sorted({f"{vm.name} stays: {why}" for vm in snapshot.vms if vm.promise and (why := why_pinned(vm))})
    within = "" if most is None else f" with {most} moves or fewer"
    number = len({vm.uuid for vm, _ in host.whose})
    return NoCapacity(
        f"no room for {text} can be made{within} by moving the {number} VMs that may move",
        hint=f"vgpuctl explain {shlex.quote(profiles[0][0])}",
        details=[*lines, *stay],
        movable=sorted({vm.name for vm, _ in host.whose}),
    )
