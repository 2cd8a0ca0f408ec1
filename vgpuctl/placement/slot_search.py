# SPDX-License-Identifier: Apache-2.0
"""Put the vGPUs of one VM on GPUs, all of them or none: one search, in the order of the placement policy.

A policy takes a GPU and a place for each vGPU in turn. Where that leaves a later vGPU without room, the search goes
back and tries the next place in the policy's order. It tries each situation once, and stops after many alternatives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import TypeAlias

from vgpuctl.config.arguments import DEFAULT_PLACEMENT_POLICY
from vgpuctl.gpu.division import Room
from vgpuctl.gpu.mixed_size import pack_vgpus, placement_id_of
from vgpuctl.gpu.room import PLAIN_VF, compute_room
from vgpuctl.model.gpu import Gpu, Ownership, Vgpu, VgpuType
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.fleet import GpuGroup, PlacementChoice, build_fleet_state, fleet_by_profile
from vgpuctl.placement.policy import POLICIES, PlacementPolicy
from vgpuctl.value import Value, replace

MAX_ALTERNATIVES = 2000
"""How often the search may try another place than the policy's first choice: up to about a second."""

_Steps: TypeAlias = tuple[tuple[str, int | None], ...]
"""The vGPUs put on one GPU, in their order: the requested text, and the place by the GPU's numbers; None: without."""


class Slot(Value):
    """Where one vGPU goes; `placement_id` on a mixed-size GPU, where vgpuctl can choose it."""

    gpu: Gpu
    function: str
    vgpu_type: VgpuType
    placement_id: int | None = None


class ProfileRequest(Value):
    """One requested profile: its type on each GPU that has it, by address."""

    types: Mapping[str, VgpuType]
    text: str

    @property
    def framebuffer_mib(self) -> int:
        """The most that one vGPU of it takes anywhere."""
        return max(((t.framebuffer_mib or 0) for t in self.types.values()), default=0)


class OpenGpu(Value):
    """A GPU that accepts new vGPUs, and the vGPUs on it."""

    gpu: Gpu
    taken: tuple[Vgpu, ...]


class SearchResult(Value):
    """`slots`: one for each request, in their order; None: they do not all fit, or `is_cut`: none was found in time."""

    slots: tuple[Slot, ...] | None
    is_cut: bool = False


def search_slots(
    snapshot: Snapshot,
    open_gpus: Sequence[OpenGpu],
    requests: Sequence[ProfileRequest],
    policy: str | None,
    vm: str | None = None,
    *,
    max_alternatives: int = MAX_ALTERNATIVES,
) -> SearchResult:
    """Find a slot for each of these requests in turn, where the policy puts it, or elsewhere if one gets none then.

    `max_alternatives`: how often the search may try another place than the policy's; 0: only where the policy puts it.
    """
    if not open_gpus or any(not request.types for request in requests):
        return SearchResult(None)
    search = _SlotSearch(snapshot, open_gpus, requests, policy, vm, max_alternatives)
    return SearchResult(search.run(), search.is_cut)


class _SlotSearch:
    """The vGPUs that have a slot so far, the others of the request, and which combinations leave no room for those.

    A GPU takes vGPUs by its numbers, at a place. It may also take one more by its `room` alone: where it has no
    numbers, or where its driver may take more than they say. Its numbers do not count any more then.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        open_gpus: Sequence[OpenGpu],
        requests: Sequence[ProfileRequest],
        policy: str | None,
        vm: str | None,
        max_alternatives: int,
    ) -> None:
        self.is_cut = False
        self._alternatives_left = max_alternatives
        self._requests = requests
        self._open_gpus = {entry.gpu.address: entry for entry in open_gpus}
        self._types = {request.text: request.types for request in requests}
        profiles = frozenset(t.profile for types in self._types.values() for t in types.values())
        state = build_fleet_state(snapshot, [entry.gpu for entry in open_gpus], vm, profiles)
        by_profile = fleet_by_profile(state, self._types)
        self._fleet = by_profile.fleet
        self._name_by_text = by_profile.name_by_text
        self._addresses = [gpu.address for gpu in state.gpus]
        self._first_groups = {address: self._fleet.group_of(n) for n, address in enumerate(self._addresses)}
        self._policy = make_policy(snapshot, policy)
        self._steps: dict[str, _Steps] = dict.fromkeys(self._open_gpus, ())
        self._path: list[tuple[str, int]] = []
        self._slots: dict[tuple[str, _Steps], tuple[Slot, ...] | None] = {}
        self._failed: set[Hashable] = set()

    def run(self) -> tuple[Slot, ...] | None:
        """Return a slot for each request, in their order; None when none was found."""
        ways = [self._ways(self._requests[0])]
        while ways:
            if not next(ways[-1], False):
                ways.pop()
            elif len(self._path) < len(self._requests):
                ways.append(self._ways(self._requests[len(self._path)]))
            else:
                slots = {address: self._slots_on(address, steps) or () for address, steps in self._steps.items()}
                return tuple(slots[address][number] for address, number in self._path)
        return None

    def _ways(self, request: ProfileRequest) -> Iterator[bool]:
        """Put the next vGPU at each place in turn, the policy's choice first; yield True while it is there."""
        if self._failed and self._is_hopeless():
            return
        choice = self._policy.choose(self._fleet, self._name_by_text[request.text])
        if choice is not None and self._is_counted(self._addresses[choice.gpu]):
            yield from self._try(request, self._addresses[choice.gpu], choice)
        if self.is_cut or self._is_hopeless():
            return
        for address, other in self._list_alternatives(request, choice):
            if not self._alternatives_left:
                self.is_cut = True
            if self.is_cut:
                return
            self._alternatives_left -= 1
            yield from self._try(request, address, other)
        self._failed.add(self._situation())

    def _try(self, request: ProfileRequest, address: str, choice: PlacementChoice | None) -> Iterator[bool]:
        """Put a vGPU on a GPU, if it fits, yield True, and take it away again. `choice` None: by the room alone."""
        before = self._steps[address]
        steps = (*before, (request.text, choice.placement.place if choice is not None else None))
        if self._slots_on(address, steps) is None:
            return
        self._steps[address] = steps
        self._path.append((address, len(before)))
        if choice is not None:
            self._fleet.add_vgpu(choice.gpu, choice.placement)
        yield True
        if choice is not None:
            self._fleet.remove_vgpu(choice.gpu, self._name_by_text[request.text], choice.placement.place)
        self._path.pop()
        self._steps[address] = before

    def _list_alternatives(
        self, request: ProfileRequest, first: PlacementChoice | None
    ) -> Iterator[tuple[str, PlacementChoice | None]]:
        """Yield the other places in the policy's order, on one of the GPUs that are alike; then GPUs by their room."""
        gpus: dict[Hashable, int] = {}
        for gpu, address in enumerate(self._addresses):
            if self._is_counted(address):
                gpus.setdefault(self._situation_of(address, self._fleet.group_of(gpu)), gpu)
        name = self._name_by_text[request.text]
        for choice in self._policy.order_choices(self._fleet, name, gpus.values()):
            if choice != first:
                yield self._addresses[choice.gpu], choice
        yield from ((address, None) for address in self._uncounted)

    def _is_counted(self, address: str) -> bool:
        return all(place is not None for _, place in self._steps[address])

    def _slots_on(self, address: str, steps: _Steps) -> tuple[Slot, ...] | None:
        """Return the slots of these vGPUs on one GPU, in their order; None: they do not fit."""
        if not steps:
            return ()
        key = (address, steps)
        if key not in self._slots:
            before, (text, place) = self._slots_on(address, steps[:-1]), steps[-1]
            vgpu_type = self._types[text].get(address)
            self._slots[key] = (
                _add_at(self._open_gpus[address], before, vgpu_type, place)
                if before is not None and vgpu_type is not None
                else None
            )
        return self._slots[key]

    def _is_hopeless(self) -> bool:
        """Return whether the rest of the request cannot fit, by what failed before or by the numbers."""
        rest = Counter(self._name_by_text[request.text] for request in self._requests[len(self._path) :])
        return self._situation() in self._failed or any(self._most_left(name) < count for name, count in rest.items())

    def _most_left(self, name: str) -> float:
        """Return how many more of a profile fit at most; what a GPU takes by its room alone counts as at the start."""
        groups = (self._fleet.group_of(gpu) for gpu, at in enumerate(self._addresses) if at not in self._uncounted)
        counted = sum(self._fleet.kind_of(group).count_remaining(group.state, name) for group in groups)
        uncounted = [self._rooms[at, name].guaranteed for at in self._uncounted if (at, name) in self._rooms]
        return counted + sum(inf if number is None else number for number in uncounted)

    def _situation(self) -> Hashable:
        """Return a value that is equal where the same vGPUs are left, and the GPUs take the same of them."""
        groups = {address: self._fleet.group_of(gpu) for gpu, address in enumerate(self._addresses)}
        return frozenset(Counter(self._situation_of(address, groups.get(address)) for address in self._steps).items())

    def _situation_of(self, address: str, group: GpuGroup | None) -> Hashable:
        texts = tuple(sorted(text for text, _ in self._steps[address]))
        return group, texts, address if address in self._uncounted else None

    @cached_property
    def _rooms(self) -> dict[tuple[str, str], Room]:
        """The room on each GPU, fullest first, for each requested profile that it has, before the first vGPU."""
        return {
            (address, self._name_by_text[text]): compute_room(entry.gpu, entry.taken, types[address])
            for address, entry in self._open_gpus.items()
            for text, types in self._types.items()
            if address in types
        }

    @cached_property
    def _uncounted(self) -> Mapping[str, None]:
        """The GPUs, fullest first, that have no numbers, or may take more of a requested profile than these say."""
        exceeding = (address for (address, name), room in self._rooms.items() if self._may_exceed(address, name, room))
        return dict.fromkeys(exceeding)

    def _may_exceed(self, address: str, name: str, room: Room) -> bool:
        if address not in self._first_groups:
            return True
        group = self._first_groups[address]
        counted = self._fleet.kind_of(group).count_remaining(group.state, name)
        return room.has_room and (room.free is None or room.free > counted)


def _add_at(
    open_gpu: OpenGpu, before: tuple[Slot, ...], vgpu_type: VgpuType, place: int | None
) -> tuple[Slot, ...] | None:
    """Return the slots on a GPU with one more vGPU, at a place of its numbers; None when there is no room after all."""
    gpu = open_gpu.gpu
    if place is None or not gpu.accepts_placements:
        return add_slot(open_gpu, before, vgpu_type)
    room = compute_room(gpu, (*open_gpu.taken, *make_planned_vgpus(before)), vgpu_type)
    if not room.has_room:
        return None
    return (*before, Slot(gpu, room.functions[0], vgpu_type, placement_id_of(place)))


def add_slot(open_gpu: OpenGpu, slots: tuple[Slot, ...], vgpu_type: VgpuType) -> tuple[Slot, ...] | None:
    """Return the slots on a GPU with one more vGPU; None when it does not fit.

    On a mixed-size GPU the function places all of them again, so that no choice blocks a later one.
    """
    gpu, taken = open_gpu.gpu, open_gpu.taken
    if not gpu.mixed_size or not slots:
        room = compute_room(gpu, (*taken, *make_planned_vgpus(slots)), vgpu_type)
        function = room.functions[0] if room.has_room else None
    else:
        room = compute_room(gpu, taken, vgpu_type)
        used = {slot.function for slot in slots}
        function = next((f for f in room.functions if f not in used), None) if room.has_room else None
    if function is None:
        return None
    all_slots = (*slots, Slot(gpu, function, vgpu_type))
    if not gpu.mixed_size or room.guaranteed is None:
        return all_slots
    ids = pack_vgpus(gpu, taken, [slot.vgpu_type for slot in all_slots])
    if ids is None:
        return None
    if not gpu.accepts_placements:
        return all_slots
    return tuple(replace(slot, placement_id=placement_id) for slot, placement_id in zip(all_slots, ids, strict=True))


def make_planned_vgpus(slots: Sequence[Slot]) -> list[Vgpu]:
    """Return planned slots as vGPUs, as later steps of the placement see them."""
    return [
        Vgpu(
            carrier=f"planned-{n}",
            gpu=s.gpu.address,
            function=s.function,
            owner=Ownership.MANAGED,
            present=False,
            backend=s.gpu.backend,
            type_id=s.vgpu_type.type_id,
            profile=s.vgpu_type.profile,
            framebuffer_mib=s.vgpu_type.framebuffer_mib,
            placement_id=s.placement_id,
        )
        for n, s in enumerate(slots)
    ]


def choose_gpu_for_vf(snapshot: Snapshot, gpus: Sequence[Gpu], policy: str | None, vm: str | None) -> Gpu | None:
    """Return the GPU that provides the next plain VF; None when no GPU has a free one."""
    state = build_fleet_state(snapshot, gpus, vm)
    choice = make_policy(snapshot, policy).choose(state.fleet, PLAIN_VF)
    return state.gpus[choice.gpu] if choice is not None else None


def make_policy(snapshot: Snapshot, name: str | None) -> PlacementPolicy:
    """Return a policy: the named one, else that of host.yaml, else the default."""
    return POLICIES[name or snapshot.placement_spec.policy or DEFAULT_PLACEMENT_POLICY]()
