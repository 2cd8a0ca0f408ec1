# SPDX-License-Identifier: Apache-2.0
"""Choose where the vGPUs of one VM go: all of them, or none with the reasons.

Of the GPUs that may take them and have room a placement policy takes one, for each vGPU after the other, the larger
ones first. Where that leaves one without room, or no numbers are known, every combination decides: fullest GPU first,
ties to the lowest address. The same input always gives the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vgpuctl.capacity.closed import why_not_allowed, why_shut
from vgpuctl.capacity.profiles import check_combination, find, fitting, the_one
from vgpuctl.capacity.room import Room, room, why_unknown
from vgpuctl.capacity.search import Host, Item, Slot, search
from vgpuctl.capacity.where import Barred, bound, selected, why_barred
from vgpuctl.errors import InvalidInput, NoCapacity, Stuck
from vgpuctl.model.address import address_key
from vgpuctl.model.gpu import Gpu, Vgpu, VgpuType
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import StuckWrite
from vgpuctl.model.wish import ANYWHERE, Where
from vgpuctl.value import replace


def free_in(rooms: Sequence[tuple[Gpu, Room]]) -> int | None:
    """Return how many more fit in these rooms of one profile together; None when one of them cannot say."""
    free = [space.free for _, space in rooms]
    known = [n for n in free if n is not None]
    return sum(known) if len(known) == len(free) else None


def sure_in(rooms: Sequence[tuple[Gpu, Room]]) -> int:
    """Return how many more fit for sure in these rooms of one profile together."""
    return sum(space.sure or 0 for _, space in rooms)


def place(
    snapshot: Snapshot,
    profiles: Sequence[tuple[str, int]],
    where: Where | None = None,
    exclude: frozenset[str] = frozenset(),
    vm: str | None = None,
    uuid: str | None = None,
    beside: Sequence[str] = (),
) -> tuple[Slot, ...]:
    """Return a slot for every vGPU wanted, in the order asked for.

    `vm`: for which host.yaml may reserve a GPU; `uuid`: of the VM, which may be bound to a spread group or a NUMA node.
    `beside`: the profiles that the VM has and keeps; of what leaves the model open only what can be beside them.

    Raises:
        NoCapacity: they do not all fit; facts hold each GPU's numbers and reasons.
        Stuck: a kernel write has not come back on every GPU that could serve.
        NotFound, InvalidInput, Refused: the profiles or GPUs cannot be meant on this host.
    """
    where = bound(snapshot, where or ANYWHERE, uuid)
    gpus = tuple(g for g in selected(snapshot, where) if g.address not in exclude)
    barred = {g.address: why for g in gpus if (why := why_barred(snapshot, g, where, uuid)) is not None}
    found = {text: fitting(_meant(snapshot, gpus, barred, text), beside) for text, _ in profiles}
    if sum(count for _, count in profiles) > 1:
        check_combination([the_one(found[text], text) for text, count in profiles for _ in range(count)])
    items = {text: Item(_allowed(gpus, types), text) for text, types in found.items()}
    may_serve = [g for g in gpus if g.address not in barred and any(g.address in types for types in found.values())]
    _refuse_stuck(snapshot, may_serve)
    may_take = [g for g in gpus if g.address not in barred and why_shut(snapshot, g, "vgpu", vm) is None]
    hosts = _hosts(snapshot, may_take)
    totals = _totals(profiles)
    largest = sorted(totals.items(), key=lambda t: (-items[t[0]].framebuffer_mib, t[0]))
    ordered = [items[text] for text, count in largest for _ in range(count)]
    chosen = _chosen(snapshot, hosts, ordered, where.policy, vm) if _open(hosts) else None
    if chosen is None:
        chosen = _together(snapshot, hosts, [(items[text], count) for text, count in largest], vm)
    if chosen is None:
        raise _no_room(snapshot, gpus, profiles, found, vm, barred)
    slots: dict[str, list[Slot]] = {}
    for item, slot in zip(ordered, chosen, strict=True):
        slots.setdefault(item.text, []).append(slot)
    return tuple(slots[text].pop(0) for text, count in profiles for _ in range(count))


def _meant(snapshot: Snapshot, gpus: Sequence[Gpu], barred: Mapping[str, Barred], text: str) -> Mapping[str, VgpuType]:
    """Return what a profile means on each GPU; one that is left out does not make it mean two things."""
    left = [g for g in gpus if g.address not in barred]
    try:
        return find(snapshot, gpus, text)
    except InvalidInput:
        if not left or not barred:
            raise
        return find(snapshot, left, text)


def _open(hosts: Sequence[Host]) -> bool:
    """Say whether there is something to choose: several GPUs, or the places of one."""
    return len(hosts) > 1 or any(host.gpu.mixed_size for host in hosts)


def _chosen(
    snapshot: Snapshot, hosts: Sequence[Host], items: Sequence[Item], policy: str | None, vm: str | None
) -> tuple[Slot, ...] | None:
    from vgpuctl.capacity.by_policy import one_by_one  # numbers and policies are read only where a choice is open

    return one_by_one(snapshot, hosts, items, policy, vm)


def _hosts(snapshot: Snapshot, gpus: Sequence[Gpu]) -> tuple[Host, ...]:
    """Return the GPUs with what is on each, fullest first."""
    there: dict[str, list[Vgpu]] = {g.address: [] for g in gpus}
    for vgpu in snapshot.vgpus:
        if vgpu.gpu in there:
            there[vgpu.gpu].append(vgpu)
    hosts = (Host(g, tuple(there[g.address])) for g in gpus)
    return tuple(sorted(hosts, key=lambda h: (-len(h.taken), address_key(h.gpu.address))))


def _together(
    snapshot: Snapshot, hosts: Sequence[Host], wanted: Sequence[tuple[Item, int]], vm: str | None
) -> tuple[Slot, ...] | None:
    """Return a slot for each vGPU in the order wanted, found by trying every combination."""
    gpus = [h.gpu for h in hosts]
    if not all(_enough(snapshot, gpus, item.types, count, vm) for item, count in wanted):
        return None
    from vgpuctl.capacity.kinds import fleet_of

    profiles = {t.profile for item, _ in wanted for t in item.types.values()}
    numbers = fleet_of(snapshot, gpus, vm, profiles)
    alike = {gpu.address: numbers.fleet.group_of(n) for n, gpu in enumerate(numbers.gpus)}
    found = search(hosts, wanted, alike)
    return None if found is None else tuple(slot for slots in found for slot in slots)


def _allowed(gpus: Sequence[Gpu], types: Mapping[str, VgpuType]) -> dict[str, VgpuType]:
    """Return the types by GPU without those that host.yaml does not let be placed there."""
    known = ((gpu, types[gpu.address]) for gpu in gpus if gpu.address in types)
    return {gpu.address: wanted for gpu, wanted in known if why_not_allowed(gpu, wanted) is None}


def _totals(profiles: Sequence[tuple[str, int]]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for text, count in profiles:
        totals[text] += count
    return totals


def _enough(snapshot: Snapshot, gpus: Sequence[Gpu], types: Mapping[str, VgpuType], count: int, vm: str | None) -> bool:
    """Say whether that many may fit on these GPUs together: without it, the search tries every combination.

    It finds no more than fit for sure, where a number is known.
    """
    rooms = rooms_for(snapshot, [g for g in gpus if g.address in types], types, vm)
    return any(space.sure is None for _, space in rooms) or sure_in(rooms) >= count


def stuck_error(write: StuckWrite) -> Stuck:
    """Return the refusal to work on a GPU on which a kernel write has not come back."""
    return Stuck(
        f"{write.gpu}: process {write.process.pid} waits in the kernel writing {write.path}",
        hint="it ends when the device is released; then run the command again",
        gpu=write.gpu,
        pid=write.process.pid,
    )


def _refuse_stuck(snapshot: Snapshot, gpus: Sequence[Gpu]) -> None:
    """Refuse when a kernel write is stuck on every GPU that could serve."""
    writes = {s.gpu: s for s in snapshot.stuck}
    if gpus and all(g.address in writes for g in gpus):
        raise stuck_error(writes[gpus[0].address])


def rooms_for(
    snapshot: Snapshot, gpus: Sequence[Gpu], types: Mapping[str, VgpuType], vm: str | None = None
) -> tuple[tuple[Gpu, Room], ...]:
    """Return the room of one profile on each GPU, also where the GPU does not know the profile.

    `vm`: for which; a GPU that is reserved for some VMs has room for those alone.
    """
    rooms = []
    for gpu in gpus:
        wanted = types.get(gpu.address)
        if wanted is None:
            rooms.append((gpu, Room(0, (), (why_unknown(gpu),))))
            continue
        space = room(gpu, snapshot.taken_on(gpu.address), wanted)
        closed = why_shut(snapshot, gpu, "vgpu", vm) or why_not_allowed(gpu, wanted)
        if closed is not None:
            space = replace(space, free=0, functions=(), reasons=(closed, *space.reasons))
        rooms.append((gpu, space))
    return tuple(rooms)


def _no_room(
    snapshot: Snapshot,
    gpus: Sequence[Gpu],
    profiles: Sequence[tuple[str, int]],
    found: Mapping[str, Mapping[str, VgpuType]],
    vm: str | None,
    barred: Mapping[str, Barred],
) -> NoCapacity:
    text = ", ".join(p if c == 1 else f"{c} × {p}" for p, c in profiles)
    details = []
    lines = []
    lost: dict[str, dict[str, int]] = {}
    for profile, count in profiles:
        for gpu, space in rooms_for(snapshot, gpus, found[profile], vm):
            if gpu.address not in found[profile]:
                continue
            bar = barred.get(gpu.address)
            alone = len(profiles) > 1 and (space.sure or 0) >= count
            seen = f"{space.sure} × {profile} alone, not beside the others" if alone else f"{space.sure} of {count}"
            reasons = list(space.reasons) or [f"room for {seen}" if bar is None else f"room for {space.sure}"]
            if bar is not None:
                reasons.insert(0, f"left out by {bar.word}: {bar.why}")
                numbers = lost.setdefault(bar.word, {})
                numbers[gpu.address] = max(numbers.get(gpu.address, 0), space.sure or 0)
            known = {"free": space.free, "free_at_least": space.sure or 0}
            details.append({"gpu": gpu.address, "profile": profile, **known, "reasons": reasons})
            lines.append(f"{gpu.address}: {'; '.join(reasons)}")
    where = f" on {gpus[0].address}" if len(gpus) == 1 else ""
    first, *others = sorted({t.profile for t in found[profiles[0][0]].values()})
    addresses = {g.address for g in gpus}
    idle = sorted({str(v.vm) for v in snapshot.vgpus if v.idle and v.gpu in addresses})
    hint = f"vgpuctl explain {first if others else profiles[0][0]}"
    if idle:
        hint = f"vgpuctl reconcile frees what {', '.join(idle)} have no use for while off; {hint}"
    left_out = _left_out(lost, len({address for types in found.values() for address in types}))
    said = "; ".join([f"no room for {text}{where}", *left_out])
    excluded = {word: sorted(numbers) for word, numbers in lost.items()}
    more: dict[str, object] = {"excluded": excluded, "left_out": left_out} if excluded else {}
    return NoCapacity(said, hint=hint, gpus=details, details=lines, **more)


def _left_out(lost: Mapping[str, Mapping[str, int]], number: int) -> list[str]:
    """Say which words of the wish leave GPUs out, of so many that know a profile, and how much would fit on these."""
    return [
        f"{word} leaves out {len(free)} of {number} GPUs, on which {sum(free.values())} would fit"
        for word, free in lost.items()
    ]
