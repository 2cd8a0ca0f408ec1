# SPDX-License-Identifier: Apache-2.0
"""Let a placement policy choose the GPU of each vGPU, one after the other; `room` still has the last word.

A policy that looks at GPUs alone leaves the place on a mixed-size GPU to `mixed_size`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice

from vgpuctl.capacity.asked import Asked, as_asked
from vgpuctl.capacity.kinds import Numbers, fleet_of
from vgpuctl.capacity.mixed_size import cheapest
from vgpuctl.capacity.profiles import means
from vgpuctl.capacity.room import room
from vgpuctl.capacity.search import Host, Item, Slot, as_taken, with_one_more
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.fleet import Choice, Fleet
from vgpuctl.placement.kind import Move
from vgpuctl.placement.policy import BY_GPU, Policy
from vgpuctl.spec.fields import DEFAULT_PLACEMENT
from vgpuctl.value import NOTHING

_UNSEEN = 8
"""So many requests, spread over all profiles alike, are added to what is there: a few VMs do not tell what will come,
and who counts on them alone gives the second GPU to their size before the first is full."""

_TRIES = 500
"""A command that places on a few GPUs pays five milliseconds for looking ahead."""


def one_by_one(
    snapshot: Snapshot, hosts: Sequence[Host], items: Sequence[Item], policy: str | None, vm: str | None = None
) -> tuple[Slot, ...] | None:
    """Return a slot for each item in turn, where a policy puts it; None when one finds no room in numbers.

    Then there may still be room: for another order, or where no numbers are known.
    """
    if not hosts or any(not item.types for item in items):
        return None
    profiles = frozenset(t.profile for item in items for t in item.types.values())
    numbers = fleet_of(snapshot, [h.gpu for h in hosts], vm, profiles)
    asked = as_asked(numbers, {item.text: item.types for item in items})
    by_address = {h.gpu.address: h for h in hosts}
    name = policy or snapshot.placement.policy or DEFAULT_PLACEMENT
    chooser = _Chooser(name, snapshot, numbers, asked, len(items))
    slots: dict[str, tuple[Slot, ...]] = {}
    order: list[Slot] = []
    for item in items:
        profile = asked.names[item.text]
        choice = chooser.choose(profile)
        if choice is None:
            return None
        gpu = numbers.gpus[choice.gpu]
        wanted = item.types.get(gpu.address)
        if wanted is None:
            return None
        there = slots.get(gpu.address, ())
        host = Host(gpu, (*by_address[gpu.address].taken, *as_taken(there)))
        if gpu.chooses_places:
            space = room(gpu, host.taken, wanted)
            at = _start(choice.move) if chooser.names_places else cheapest(gpu, host.taken, wanted)
            move = next((m for m in _moves(asked.fleet, choice, profile) if _start(m) == at), None)
            if not space.some or move is None:
                return None
            slot, choice = Slot(gpu, space.functions[0], wanted, at), choice._replace(move=move)
        else:
            more = with_one_more(host, (), wanted)
            if more is None:
                return None
            (slot,) = more
        slots[gpu.address] = (*there, slot)
        order.append(slot)
        asked.fleet.put(choice.gpu, choice.move)
    return tuple(order)


def gpu_for_plain_vf(snapshot: Snapshot, gpus: Sequence[Gpu], policy: str | None, vm: str | None) -> Gpu | None:
    """Return the GPU that gives the next plain VF; None when none has one that is free."""
    from vgpuctl.capacity.kinds import PLAIN_VF

    numbers = fleet_of(snapshot, gpus, vm)
    name = policy or snapshot.placement.policy or DEFAULT_PLACEMENT
    chooser = _Chooser(name, snapshot, numbers, as_asked(numbers, NOTHING))
    choice = chooser.choose(PLAIN_VF)
    return numbers.gpus[choice.gpu] if choice is not None else None


class _Chooser:
    """A policy by its name, made only when there is something to choose."""

    def __init__(self, name: str, snapshot: Snapshot, numbers: Numbers, asked: Asked, together: int = 1) -> None:
        self._name = name
        self._snapshot = snapshot
        self._numbers = numbers
        self._asked = asked
        self._together = together
        self._policy: Policy | None = None

    @property
    def names_places(self) -> bool:
        """Whether it also chooses among the places of a GPU."""
        return self._name not in BY_GPU

    def choose(self, profile: str) -> Choice | None:
        """Return where the next vGPU goes."""
        some = list(islice(self._asked.fleet.choices(profile), 2))
        if len(some) < 2:
            return some[0] if some else None
        if self._policy is None:
            self._policy = self._made()
        return self._policy.choose(self._asked.fleet, profile)

    def _made(self) -> Policy:
        if self._name in BY_GPU:
            return BY_GPU[self._name]()
        from vgpuctl.placement.least_waste import LeastWaste  # its solver is read only where a choice is open

        weights = self._asked.weights(demand(self._snapshot, self._numbers))
        return LeastWaste(weights, together=self._together, tries=_TRIES)


def demand(snapshot: Snapshot, numbers: Numbers) -> Mapping[str, float]:
    """Return how often each profile of these GPUs is asked for, beside the others.

    As host.yaml says; else as many as there are of each, also for VMs that are off, and a few of all alike.
    """
    known = {t.profile: t for gpu in numbers.gpus for t in gpu.types}
    sizes = {p for kind in numbers.fleet.kinds for p, mib in kind.sizes.items() if mib}
    said = {
        profile: sum(weight for text, weight in snapshot.placement.demand.items() if means(known[profile], text))
        for profile in sizes
        if profile in known
    }
    said = {profile: weight for profile, weight in said.items() if weight}
    if said:
        return said
    ours = {vm.uuid: vm.promise.vgpus for vm in snapshot.vms if vm.promise is not None}
    promised = [v.profile for vgpus in ours.values() for v in vgpus]
    others = [v.profile for v in snapshot.vgpus if v.vm_uuid not in ours]  # of a VM that is being made, or of none
    there = Counter(p for p in (*promised, *others) if p in sizes)
    return {p: there[p] + _UNSEEN / len(sizes) for p in sorted(sizes)}


def _moves(fleet: Fleet, choice: Choice, profile: str) -> tuple[Move, ...]:
    return fleet.kind(choice.group).moves(choice.group.state, profile)


def _start(move: Move) -> int:
    """Return the placement id of a move on a mixed-size GPU: the lowest slice that it covers."""
    return (move.place & -move.place).bit_length() - 1
