# SPDX-License-Identifier: Apache-2.0
"""Which VMs to stop, move and start so that more vGPUs fit: the fewest, in a feasible order.

Only VMs that vgpuctl made are moved, each vGPU at most once. GPUs that host.yaml cordons or reserves are not touched.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from vgpuctl.capacity.fit import PlannedVgpu, check_fit
from vgpuctl.capacity.gpu_states import FleetState, build_fleet_state
from vgpuctl.capacity.profiles import drop_ambiguous_gpus, find_ambiguous_names, find_types, require_one_profile
from vgpuctl.capacity.room import list_free_functions
from vgpuctl.errors import NoCapacity, VgpuctlError
from vgpuctl.model.gpu import Backend, Gpu, Ownership, Vgpu
from vgpuctl.model.request import NO_CONSTRAINTS
from vgpuctl.model.results.moves import MoveResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, RecordState, Vm, VmState
from vgpuctl.operations.plans.move_order import MoveEntry, VmLeave, VmMove, check_order
from vgpuctl.operations.plans.vm_diff import recorded_constraints
from vgpuctl.placement.better import improvement
from vgpuctl.placement.migration_search import find_fewest_blocking, plan_migrations
from vgpuctl.placement.migrations import FreeFunctions, Leave, Migration, MigrationPlan, PlacedVgpu
from vgpuctl.placement.order import Change, order_of
from vgpuctl.value import EMPTY_MAPPING, Value, replace

MOVABLE_STATES = (VmState.RUNNING, VmState.STOPPED)


class MovesPlan(Value):
    """The moves in order, and the slots that the requested vGPUs get; `is_minimal`: fewer moves would not do."""

    order: tuple[MoveEntry, ...]
    spots: tuple[PlannedVgpu, ...] = ()
    is_minimal: bool = True

    @property
    def moves(self) -> tuple[VmMove, ...]:
        """All moves in order."""
        return tuple(entry for entry in self.order if isinstance(entry, VmMove))

    def results(self) -> tuple[MoveResult, ...]:
        """Return the moves; `round` is the position in the order, in which leaves count too."""
        return tuple(entry.result(number) for number, entry in enumerate(self.order, 1) if isinstance(entry, VmMove))


class _MovableFleet(Value):
    """The numeric state of the GPUs, the movable vGPUs on them, and the owners of those.

    `fixed_gpus`, `spare_functions`: for the parameters `fixed_gpus` and `free_functions` of `plan_migrations`.
    """

    fleet_state: FleetState
    placed: tuple[PlacedVgpu, ...]
    owners: tuple[tuple[Vm, AssignedVgpu], ...]
    fixed_gpus: frozenset[int]
    spare_functions: FreeFunctions

    def to_plan(self, migration_plan: MigrationPlan, spare: FreeFunctions) -> MovesPlan:
        """Return the migration plan with VMs and addresses instead of numbers."""
        order = self._best_order(migration_plan, spare)
        left = {entry.vgpu_index for entry in order if isinstance(entry, Leave)}
        entries = tuple(
            VmLeave(*self.owners[entry.vgpu_index])
            if isinstance(entry, Leave)
            else self._move(entry, waits=entry.vgpu_index in left)
            for entry in order
        )
        spots = tuple(self._slot(entry) for entry in migration_plan.places)
        return MovesPlan(entries, spots, migration_plan.is_minimal)

    def _best_order(self, migration_plan: MigrationPlan, spare: FreeFunctions) -> tuple[Migration | Leave, ...]:
        """Return an order in which no more VMs wait than in the plan, VMs that are off rather than running ones."""
        migrations = migration_plan.migrations
        vgpus = [self.placed[migration.vgpu_index] for migration in migrations]
        changes = [Change(v, PlacedVgpu(m.gpu, v.profile, m.place)) for v, m in zip(vgpus, migrations, strict=True)]
        running = frozenset(n for n, m in enumerate(migrations) if self._runs(m.vgpu_index))
        turns = order_of(self.fleet_state.fleet, changes, spare, running)
        if turns is None or sum(turn.leaves for turn in turns) > migration_plan.waiting:
            return migration_plan.order
        return tuple(Leave(migrations[n].vgpu_index) if leaves else migrations[n] for n, leaves in turns)

    def _runs(self, vgpu_index: int) -> bool:
        return self.owners[vgpu_index][0].state is VmState.RUNNING

    def vms_moved_twice(self, migration_plan: MigrationPlan) -> frozenset[str]:
        """Return the VMs, by UUID, of which several vGPUs move while VMs wait: a VM must not take its own old slot."""
        if not migration_plan.waiting:
            return frozenset()
        uuids = Counter(self.owners[migration.vgpu_index][0].uuid for migration in migration_plan.migrations)
        return frozenset(uuid for uuid, number in uuids.items() if number > 1)

    def _move(self, migration: Migration, *, waits: bool) -> VmMove:
        vm, vgpu = self.owners[migration.vgpu_index]
        gpu = self.fleet_state.gpus[migration.gpu]
        return VmMove(vm, vgpu, gpu.address, placement_id_of(gpu, migration.place), waits)

    def _slot(self, placed: PlacedVgpu) -> PlannedVgpu:
        gpu = self.fleet_state.gpus[placed.gpu]
        return PlannedVgpu(gpu, placed.profile, placement_id_of(gpu, placed.place))


def placement_id_of(gpu: Gpu, place: int) -> int | None:
    """Return the placement id of a place as `build_fleet_state` numbers it; None where the driver chooses."""
    return (place & -place).bit_length() - 1 if gpu.accepts_placements else None


def plan_room_moves(
    snapshot: Snapshot,
    gpus: Sequence[Gpu],
    profiles: Sequence[tuple[str, int]],
    pinned: frozenset[str] = frozenset(),
    max_moves: int | None = None,
) -> MovesPlan:
    """Return the fewest moves after which all these fit on the GPUs. `pinned`: VMs that stay, by uuid.

    Raises:
        NoCapacity: no moves of movable VMs make enough room.
        NotFound, InvalidInput: a profile is unknown or ambiguous on these GPUs.
        VgpuctlError: moves would, but cannot be made; as `check_order`.
    """
    types = [find_types(snapshot, gpus, profile) for profile, _ in profiles]
    gpus = drop_ambiguous_gpus(gpus, types)
    names = [
        require_one_profile(matching_types, profile)
        for matching_types, (profile, _) in zip(types, profiles, strict=True)
    ]
    requested = [name for name, (_, number) in zip(names, profiles, strict=True) for _ in range(number)]
    movable = _movable_fleet(snapshot, gpus, pinned)

    def search(spare: FreeFunctions) -> MigrationPlan | None:
        return plan_migrations(
            movable.fleet_state.fleet,
            movable.placed,
            requested,
            max_moves,
            fixed_gpus=movable.fixed_gpus,
            free_functions=spare,
        )

    migration_plan = search(EMPTY_MAPPING)
    if migration_plan is None:
        raise _no_room_error(snapshot, gpus, profiles, movable, max_moves)
    moved_twice = movable.vms_moved_twice(migration_plan)
    if moved_twice:
        return replace(plan_room_moves(snapshot, gpus, profiles, pinned | moved_twice, max_moves), is_minimal=False)
    return _feasible_plan(snapshot, movable, migration_plan, search)


def plan_defragmentation(
    snapshot: Snapshot, gpus: Sequence[Gpu], pinned: frozenset[str] = frozenset(), max_moves: int | None = None
) -> MovesPlan:
    """Return at most `max_moves` moves after which more of the largest profiles fit; none if none helps.

    Raises:
        VgpuctlError: as `check_order`.
    """
    movable = _movable_fleet(snapshot, gpus, pinned)

    def search(spare: FreeFunctions) -> MigrationPlan:
        return MigrationPlan(
            improvement(movable.fleet_state.fleet, movable.placed, max_moves, movable.fixed_gpus, spare),
            (),
            is_minimal=False,
        )

    migration_plan = search(EMPTY_MAPPING)
    moved_twice = movable.vms_moved_twice(migration_plan)
    if moved_twice:
        return plan_defragmentation(snapshot, gpus, pinned | moved_twice, max_moves)
    return _feasible_plan(snapshot, movable, migration_plan, search)


def _feasible_plan(
    snapshot: Snapshot,
    movable: _MovableFleet,
    migration_plan: MigrationPlan,
    search: Callable[[FreeFunctions], MigrationPlan | None],
) -> MovesPlan:
    """Return the plan; if its moves are refused, search again for one whose moves find free functions.

    Raises:
        VgpuctlError: there is no such plan; as `check_order`.
    """
    plan = movable.to_plan(migration_plan, EMPTY_MAPPING)
    try:
        check_order(snapshot, plan.order)
    except VgpuctlError:
        alternative = search(movable.spare_functions)
        if alternative is None or movable.vms_moved_twice(alternative):
            raise
        plan = movable.to_plan(alternative, movable.spare_functions)
        check_order(snapshot, plan.order)
    return plan


def find_blocking_carriers(
    snapshot: Snapshot, gpus: Sequence[Gpu], profile: str
) -> Mapping[str, tuple[str, ...] | None]:
    """Return by GPU the carriers of the fewest vGPUs that must leave it to make room for one more of the profile.

    Empty when one more already fits; None when it would not fit even then, or that is unknown.
    """
    fleet_state = build_fleet_state(snapshot, gpus)
    allocated = [
        (PlacedVgpu(index, slot.profile, slot.place), slot.vgpu)
        for index, slots in enumerate(fleet_state.allocated)
        for slot in slots
    ]
    result: dict[str, tuple[str, ...] | None] = {gpu.address: None for gpu in gpus}
    for number, gpu in enumerate(fleet_state.gpus):
        blocking = find_fewest_blocking(fleet_state.fleet, [placed for placed, _ in allocated], number, profile)
        result[gpu.address] = None if blocking is None else tuple(allocated[index][1].carrier for index in blocking)
    return result


def _movable_fleet(snapshot: Snapshot, gpus: Sequence[Gpu], pinned: frozenset[str]) -> _MovableFleet:
    fleet_state = build_fleet_state(snapshot, gpus)
    ambiguous = find_ambiguous_names(gpus)
    placed: list[PlacedVgpu] = []
    owners: list[tuple[Vm, AssignedVgpu]] = []
    for number, slots in enumerate(fleet_state.allocated):
        for slot in slots:
            owner = _movable_owner(snapshot, slot.vgpu)
            if owner is not None and owner[0].uuid not in pinned and slot.profile not in ambiguous:
                placed.append(PlacedVgpu(number, slot.profile, slot.place))
                owners.append(owner)
    fixed_gpus = frozenset(n for n, gpu in enumerate(fleet_state.gpus) if not gpu.accepts_placements)
    spare = {
        number: len(list_free_functions(gpu, snapshot.vgpus_on(gpu.address)))
        for number, gpu in enumerate(fleet_state.gpus)
        if gpu.backend is not Backend.MDEV_PF
    }
    return _MovableFleet(fleet_state, tuple(placed), tuple(owners), fixed_gpus, spare)


def _movable_owner(snapshot: Snapshot, vgpu: Vgpu) -> tuple[Vm, AssignedVgpu] | None:
    """Return the VM that may be moved with this vGPU, and its assignment; None if it cannot be moved."""
    vm = snapshot.vm(vgpu.vm_uuid or "")
    record = vm.record if vm is not None else None
    if vm is None or record is None or vgpu.owner is not Ownership.MANAGED or pin_reason(vm) is not None:
        return None
    stuck_gpus = {write.gpu for write in snapshot.stuck_writes}
    if vgpu.target_placement_id is not None or any(v.gpu in stuck_gpus for v in record.vgpus):
        return None
    assigned = next((v for v in record.vgpus if v.carrier == vgpu.carrier and v.profile is not None), None)
    return (vm, assigned) if assigned is not None else None


def pin_reason(vm: Vm, *, may_wait: bool = False) -> str | None:
    """Say why a VM must keep its slots; None when it may be moved. `may_wait`: also one that waits for a place."""
    record = vm.record
    if record is None or not record.created_vm:
        return "vgpuctl did not make it"
    if record.state is not RecordState.READY:
        return f"its record says {record.state}"
    if vm.state not in MOVABLE_STATES:
        return f"it is {vm.state}"
    if not vm.persistent:
        return "it was undefined while it runs, and would be gone"
    if record.exchange is not None:
        return "its place is being exchanged"
    if record.waiting_vgpus() and not may_wait:
        return "it waits for a place"
    if record.reserve_while_running:
        return "it has its places only while it runs"
    constraints = replace(recorded_constraints(record.request_fields), policy=None)
    if constraints != NO_CONSTRAINTS or record.spread_group is not None or vm.memory_nodes:
        return "it is bound to a GPU, a NUMA node, a scheduler or a group"
    return None


def _no_room_error(
    snapshot: Snapshot,
    gpus: Sequence[Gpu],
    profiles: Sequence[tuple[str, int]],
    movable: _MovableFleet,
    max_moves: int | None,
) -> NoCapacity:
    text = ", ".join(p if n == 1 else f"{n} × {p}" for p, n in profiles)
    fit = check_fit(snapshot, gpus, profiles)
    lines = [
        f"{row.gpu.address}: {row.profile}: {'; '.join(row.room.reasons) or f'{row.room.guaranteed} more'}"
        for row in fit.rooms
    ]
    lines += [f"{address}: {why}" for address, why in sorted(movable.fleet_state.excluded_gpus.items())]
    pinned = sorted({f"{vm.name} stays: {why}" for vm in snapshot.vms if vm.record and (why := pin_reason(vm))})
    limit = "" if max_moves is None else f" with {max_moves} moves or fewer"
    number = len({vm.uuid for vm, _ in movable.owners})
    return NoCapacity(
        f"no room for {text} can be made{limit} by moving the {number} VMs that may move",
        hint=f"vgpuctl explain {shlex.quote(profiles[0][0])}",
        details=[*lines, *pinned],
        movable=sorted({vm.name for vm, _ in movable.owners}),
    )
