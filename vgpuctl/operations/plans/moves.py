# SPDX-License-Identifier: Apache-2.0
"""Which VMs to stop, move and start so that more vGPUs fit: the fewest, in a feasible order.

Only VMs that vgpuctl made are moved, each vGPU at most once. GPUs that host.yaml cordons or reserves are not touched.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

from vgpuctl.backends import backend_for
from vgpuctl.config.vm_request import request_of_record
from vgpuctl.errors import NoCapacity, VgpuctlError
from vgpuctl.gpu.division import AllocatedSlot, list_free_functions
from vgpuctl.gpu.gpu_kind import GpuKind, State
from vgpuctl.gpu.profiles import drop_ambiguous_gpus, find_ambiguous_names, find_types, require_one_profile
from vgpuctl.model.gpu import Gpu, Ownership, Vgpu
from vgpuctl.model.numbers import count_text, format_ranges
from vgpuctl.model.request import GpuConstraints
from vgpuctl.model.results.moves import MoveResult, StayResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, RecordState, Vm, VmState
from vgpuctl.operations.plans.move_order import MoveEntry, VmLeave, VmMove, check_order, move_off_gpu
from vgpuctl.operations.plans.selection import shorten
from vgpuctl.placement.fit import PlannedVgpu, check_fit
from vgpuctl.placement.fleet import FleetState, Leave, Migration, MigrationPlan, PlacedVgpu, build_fleet_state
from vgpuctl.placement.moves import MovableFleet, find_fewest_blocking, plan_larger_pieces, plan_room
from vgpuctl.value import Value, replace

MOVABLE_STATES = (VmState.RUNNING, VmState.STOPPED)


class MovesPlan(Value):
    """The moves in order, and the slots that the requested vGPUs get; `is_minimal`: fewer moves would not do.

    `source_gpu`: the GPU that shall become empty; `stays`: the vGPUs that remain on it.
    """

    order: tuple[MoveEntry, ...]
    spots: tuple[PlannedVgpu, ...] = ()
    is_minimal: bool = True
    source_gpu: str | None = None
    stays: tuple[StayResult, ...] = ()

    @property
    def moves(self) -> tuple[VmMove, ...]:
        """All moves in order."""
        return tuple(entry for entry in self.order if isinstance(entry, VmMove))

    def results(self) -> tuple[MoveResult, ...]:
        """Return the moves; `round` is the position in the order, in which leaves count too."""
        return tuple(entry.result(number) for number, entry in enumerate(self.order, 1) if isinstance(entry, VmMove))


class _OwnedVgpus(Value):
    """The numeric state of the GPUs, the movable vGPUs on them, and the owner of each of those."""

    fleet_state: FleetState
    movable: MovableFleet
    owners: tuple[tuple[Vm, AssignedVgpu], ...]

    def to_plan(self, migration_plan: MigrationPlan) -> MovesPlan:
        """Return the migration plan with VMs and addresses instead of numbers."""
        left = {entry.vgpu_index for entry in migration_plan.order if isinstance(entry, Leave)}
        entries = tuple(
            VmLeave(*self.owners[entry.vgpu_index])
            if isinstance(entry, Leave)
            else self._move(entry, waits=entry.vgpu_index in left)
            for entry in migration_plan.order
        )
        spots = tuple(self._slot(entry) for entry in migration_plan.places)
        return MovesPlan(entries, spots, migration_plan.is_minimal)

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
        SolverFailed: HiGHS is not installed, or found no answer in time.
        VgpuctlError: moves would, but cannot be made; as `check_order`.
    """
    types = [find_types(snapshot, gpus, profile) for profile, _ in profiles]
    gpus = drop_ambiguous_gpus(gpus, types)
    names = [
        require_one_profile(matching_types, profile)
        for matching_types, (profile, _) in zip(types, profiles, strict=True)
    ]
    requested = [name for name, (_, number) in zip(names, profiles, strict=True) for _ in range(number)]
    owned = _owned_vgpus(snapshot, gpus, pinned)
    migration_plan = plan_room(owned.movable, requested, max_moves)
    if migration_plan is None:
        raise _no_room_error(snapshot, gpus, profiles, owned, max_moves)
    moved_twice = owned.vms_moved_twice(migration_plan)
    if moved_twice:
        return replace(plan_room_moves(snapshot, gpus, profiles, pinned | moved_twice, max_moves), is_minimal=False)
    return _checked_plan(snapshot, owned, migration_plan)


def plan_defragmentation(
    snapshot: Snapshot, gpus: Sequence[Gpu], pinned: frozenset[str] = frozenset(), max_moves: int | None = None
) -> MovesPlan:
    """Return at most `max_moves` moves after which more of the largest profiles fit; none if none helps.

    Raises:
        SolverFailed: HiGHS is not installed, or found no answer in time.
        VgpuctlError: as `check_order`.
    """
    owned = _owned_vgpus(snapshot, gpus, pinned)
    migration_plan = plan_larger_pieces(owned.movable, max_moves)
    moved_twice = owned.vms_moved_twice(migration_plan)
    if moved_twice:
        return replace(plan_defragmentation(snapshot, gpus, pinned | moved_twice, max_moves), is_minimal=False)
    return _checked_plan(snapshot, owned, migration_plan)


def plan_empty_gpu(snapshot: Snapshot, address: str, pinned: frozenset[str] = frozenset()) -> MovesPlan:
    """Return moves that take vGPUs off a GPU, those of running VMs first, and the vGPUs for which there is none.

    Each goes where create-vm would place it then, with the restrictions of its VM. `pinned`: VMs that stay, by uuid.
    """
    moves: list[MoveEntry] = []
    stays: list[StayResult] = []
    after = snapshot
    for vgpu in sorted(snapshot.vgpus_on(address), key=lambda vgpu: _leave_order(snapshot, vgpu)):
        owner = _movable_owner(snapshot, vgpu, leaves_gpu=True)
        stay = StayResult(vgpu.vm, vgpu.carrier, vgpu.profile, _why_stays(snapshot, vgpu))
        if owner is None or owner[0].uuid in pinned:
            stays.append(stay)
            continue
        try:
            move, after = move_off_gpu(after, *owner)
        except VgpuctlError as error:
            details = error.facts.get("details")
            reasons = tuple(map(str, details)) if isinstance(details, list) else ()
            stays.append(replace(stay, why=error.message, reasons=reasons))
        else:
            moves.append(move)
    return MovesPlan(tuple(moves), source_gpu=address, stays=tuple(stays))


def stays_error(stays: Sequence[StayResult], gpu: str) -> NoCapacity:
    """Return the error for vGPUs that cannot leave a GPU: who stays, why, and how its VMs can be off at least."""
    by_reason: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for stay in stays:
        by_reason.setdefault((stay.profile or "whole GPU", stay.why, stay.reasons), []).append(stay.vm or stay.carrier)
    details = []
    for (profile, why, reasons), names in by_reason.items():
        details += [f"{shorten(names)} ({profile}): {why}", *(f"  {reason}" for reason in reasons)]
    vms = sorted({stay.vm for stay in stays if stay.vm is not None})
    stop = f"vgpuctl stop-vm {shlex.join(vms)} turns them off where they are; " if vms else ""
    return NoCapacity(
        f"{count_text(len(stays), 'vGPU')} on {gpu} cannot be moved",
        hint=f"{stop}vgpuctl set-vm VM --gpu ADDRESS gives a VM that is off another place",
        details=details,
        gpu=gpu,
        stays=vms,
    )


def _leave_order(snapshot: Snapshot, vgpu: Vgpu) -> tuple[bool, int, str]:
    """Order vGPUs: of running VMs first, then larger ones, which find room less easily."""
    vm = snapshot.vm(vgpu.vm_uuid or "")
    return (vm is None or vm.state is not VmState.RUNNING, -(vgpu.framebuffer_mib or 0), vgpu.vm or vgpu.carrier)


def _why_stays(snapshot: Snapshot, vgpu: Vgpu) -> str:
    vm = snapshot.vm(vgpu.vm_uuid or "")
    if vm is None:
        return "no VM that vgpuctl sees has it"
    reason = pin_reason(vm, leaves_gpu=True) or "its memory is saved, or its GPU is blocked"
    places_again = vm.record is not None and vm.record.reserve_while_running
    return f"{reason}: vgpuctl stop-vm and start-vm place it elsewhere" if places_again else reason


def _checked_plan(snapshot: Snapshot, owned: _OwnedVgpus, migration_plan: MigrationPlan) -> MovesPlan:
    """Return the plan, checked move by move on the host as those before it leave it.

    Raises:
        VgpuctlError: as `check_order`.
    """
    plan = owned.to_plan(migration_plan)
    check_order(snapshot, plan.order)
    return plan


def find_blocking_carriers(
    snapshot: Snapshot, gpus: Sequence[Gpu], profile: str
) -> Mapping[str, tuple[str, ...] | None]:
    """Return by GPU the carriers of the fewest vGPUs that must leave it to make room for one more of the profile.

    Empty when one more already fits; None when it would not fit even then, or that is unknown.
    """
    fleet_state = build_fleet_state(snapshot, gpus)
    result: dict[str, tuple[str, ...] | None] = {gpu.address: None for gpu in gpus}
    for number, gpu in enumerate(fleet_state.gpus):
        group, slots = fleet_state.fleet.group_of(number), fleet_state.allocated[number]
        blocking = find_fewest_blocking(
            fleet_state.fleet.kind_of(group), group.state, [(slot.profile, slot.place) for slot in slots], profile
        )
        result[gpu.address] = None if blocking is None else tuple(slots[index].vgpu.carrier for index in blocking)
    return result


def _owned_vgpus(snapshot: Snapshot, gpus: Sequence[Gpu], pinned: frozenset[str]) -> _OwnedVgpus:
    fleet_state = build_fleet_state(snapshot, gpus)
    fleet = fleet_state.fleet
    ambiguous = find_ambiguous_names(gpus)
    placed: list[PlacedVgpu] = []
    owners: list[tuple[Vm, AssignedVgpu]] = []
    for number, slots in enumerate(fleet_state.allocated):
        group = fleet.group_of(number)
        for slot in slots:
            owner = _movable_owner(snapshot, slot.vgpu)
            if (
                owner is not None
                and owner[0].uuid not in pinned
                and slot.profile not in ambiguous
                and _is_removable(fleet.kind_of(group), group.state, slot)
            ):
                placed.append(PlacedVgpu(number, slot.profile, slot.place))
                owners.append(owner)
    free_functions = {
        number: len(list_free_functions(gpu, snapshot.vgpus_on(gpu.address)))
        for number, gpu in enumerate(fleet_state.gpus)
        if backend_for(gpu.backend).on_vfs
    }
    movable = MovableFleet(
        fleet,
        tuple(placed),
        frozenset(n for n, gpu in enumerate(fleet_state.gpus) if not gpu.accepts_placements),
        free_functions,
        frozenset(n for n, (vm, _) in enumerate(owners) if vm.state is VmState.RUNNING),
    )
    return _OwnedVgpus(fleet_state, movable, tuple(owners))


def _is_removable(kind: GpuKind, state: State, slot: AllocatedSlot) -> bool:
    """Return whether a vGPU could be at its place again: its GPU may have more than its driver takes now."""
    return kind.add(kind.remove(state, slot.profile, slot.place), slot.profile, slot.place) is not None


def _movable_owner(snapshot: Snapshot, vgpu: Vgpu, *, leaves_gpu: bool = False) -> tuple[Vm, AssignedVgpu] | None:
    """Return the VM that may be moved with this vGPU, and its assignment; None if it cannot be moved."""
    vm = snapshot.vm(vgpu.vm_uuid or "")
    record = vm.record if vm is not None else None
    if vm is None or record is None or vgpu.owner is not Ownership.MANAGED:
        return None
    if pin_reason(vm, leaves_gpu=leaves_gpu) is not None:
        return None
    stuck_gpus = {write.gpu for write in snapshot.stuck_writes}
    if vgpu.target_placement_id is not None or any(v.gpu in stuck_gpus for v in record.vgpus):
        return None
    assigned = next((v for v in record.vgpus if v.carrier == vgpu.carrier and v.profile is not None), None)
    return (vm, assigned) if assigned is not None else None


def pin_reason(vm: Vm, *, may_wait: bool = False, leaves_gpu: bool = False) -> str | None:
    """Say why a VM must keep its slots; None when it may be moved.

    `may_wait`: also one that waits for a place. `leaves_gpu`: also a restricted one; its move keeps the restrictions.
    """
    record = vm.record
    if record is None or not record.created_vm:
        return "vgpuctl did not create it"
    if record.state is not RecordState.READY:
        return f"its record says {record.state}"
    if vm.state not in MOVABLE_STATES:
        return f"it is {vm.state}"
    if not vm.persistent:
        return "it runs without a definition and would be lost"
    if record.waiting_vgpus() and not may_wait:
        return "it waits for a place"
    if record.reserve_while_running:
        return "it reserves its places only while it runs"
    restrictions = () if leaves_gpu else _list_restrictions(vm, request_of_record(record.request_fields).constraints)
    return f"it is restricted: {', '.join(restrictions)}" if restrictions else None


def _list_restrictions(vm: Vm, constraints: GpuConstraints) -> tuple[str, ...]:
    """Return what restricts the place of a VM's vGPUs, as its spec names it."""
    values = {
        "gpu": ", ".join(constraints.gpus),
        "not_gpu": ", ".join(constraints.not_gpus),
        "numa_node": constraints.numa_node,
        "scheduler": constraints.scheduler,
        "spread_group": constraints.spread_group,
        "memory on NUMA node": format_ranges(vm.memory_nodes),
    }
    return tuple(f"{name} {value}" for name, value in values.items() if value not in (None, ""))


def _no_room_error(
    snapshot: Snapshot,
    gpus: Sequence[Gpu],
    profiles: Sequence[tuple[str, int]],
    owned: _OwnedVgpus,
    max_moves: int | None,
) -> NoCapacity:
    text = ", ".join(p if n == 1 else f"{n} × {p}" for p, n in profiles)
    fit = check_fit(snapshot, gpus, profiles)
    lines = [
        f"{row.gpu.address}: {row.profile}: {'; '.join(row.room.reasons) or f'{row.room.guaranteed} more'}"
        for row in fit.rooms
    ]
    lines += [f"{address}: {why}" for address, why in sorted(owned.fleet_state.excluded_gpus.items())]
    pinned = sorted({f"{vm.name} stays: {why}" for vm in snapshot.vms if vm.record and (why := pin_reason(vm))})
    limit = "" if max_moves is None else f" with {max_moves} moves or fewer"
    number = len({vm.uuid for vm, _ in owned.owners})
    which = "no VM may move" if not number else f"{count_text(number, 'VM')} may move"
    return NoCapacity(
        f"no moves make room for {text}{limit}; {which}",
        hint=f"vgpuctl explain {shlex.quote(profiles[0][0])}",
        details=[*lines, *pinned],
        movable=sorted({vm.name for vm, _ in owned.owners}),
    )
