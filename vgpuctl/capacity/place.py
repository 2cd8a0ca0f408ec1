# SPDX-License-Identifier: Apache-2.0
"""Choose where the vGPUs of one VM go: all of them, or none with the reasons.

GPUs that already run vGPUs come first, fullest first, so that empty ones stay open for other sizes; ties go to
the lowest address. The same input always gives the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vgpuctl.capacity.closed import why_closed, why_not_allowed
from vgpuctl.capacity.mixed_size import pack
from vgpuctl.capacity.profiles import check_combination, find
from vgpuctl.capacity.room import Room, room, why_unknown
from vgpuctl.errors import NoCapacity, NotFound, Stuck
from vgpuctl.model.address import address_key, normal_pci
from vgpuctl.model.gpu import Backend, Gpu, Owner, Vgpu, VgpuType
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import StuckWrite
from vgpuctl.value import Value, replace


class Slot(Value):
    """Where one vGPU goes; `placement_id` on a mixed-size GPU, where the driver lets it be chosen."""

    gpu: Gpu
    function: str
    type: VgpuType
    placement_id: int | None = None


class _Item(Value):
    types: Mapping[str, VgpuType]
    text: str


def select_gpus(snapshot: Snapshot, wanted: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that an address or a model name means; None means all that are GPUs.

    Raises:
        NotFound: nothing matches; the message lists what there is.
    """
    if wanted is None:
        return tuple(g for g in snapshot.gpus if g.display_class)
    address = normal_pci(wanted) or wanted
    exact = tuple(g for g in snapshot.gpus if g.address == address)
    if exact:
        return exact
    by_model = tuple(g for g in snapshot.gpus if g.display_class and g.called(wanted))
    if by_model:
        return by_model
    there = ", ".join(f"{g.address} ({g.model})" for g in snapshot.gpus if g.display_class) or "none"
    raise NotFound(
        f"no GPU '{wanted}' on this host",
        hint=f"GPUs here: {there}; vgpuctl list-gpus --all also lists other devices",
        gpu=wanted,
    )


def joint_free(
    snapshot: Snapshot, gpus: Sequence[Gpu], types: Mapping[str, VgpuType], vm: str | None = None
) -> int | None:
    """Return how many more of one profile fit on these GPUs together; None when one of them cannot say."""
    owners = [g for g in gpus if g.address in types]
    free = [r.free for _, r in rooms_for(snapshot, owners, types, vm)]
    known = [n for n in free if n is not None]
    return sum(known) if len(known) == len(free) else None


def place(
    snapshot: Snapshot,
    profiles: Sequence[tuple[str, int]],
    gpu: str | None,
    exclude: frozenset[str] = frozenset(),
    vm: str | None = None,
) -> tuple[Slot, ...]:
    """Return a slot for every vGPU wanted, in the order asked for. `vm`: for which host.yaml may reserve a GPU.

    Raises:
        NoCapacity: they do not all fit; facts hold each GPU's numbers and reasons.
        Stuck: a kernel write has not come back on every GPU that could serve.
        NotFound, InvalidInput, Refused: the profiles cannot be meant on this host.
    """
    gpus = tuple(g for g in select_gpus(snapshot, gpu) if g.address not in exclude)
    found = {text: find(snapshot, gpus, text) for text, _ in profiles}
    check_combination([next(iter(found[text].values())).profile for text, count in profiles for _ in range(count)])
    allowed = {text: _allowed(gpus, types) for text, types in found.items()}
    wanted = [_Item(allowed[text], text) for text, count in profiles for _ in range(count)]
    ordered = sorted(range(len(wanted)), key=lambda n: (-_size(wanted[n]), wanted[n].text, n))
    stuck = {s.gpu for s in snapshot.stuck}
    _refuse_stuck(snapshot, [g for g in gpus if any(g.address in types for types in found.values())])
    open_ones = [g for g in gpus if g.address not in stuck and why_closed(g, "vgpu", vm) is None]
    usable = _fullest_first(snapshot, open_ones)
    enough = all(_enough(snapshot, usable, allowed[t], n, vm) for t, n in _totals(profiles).items())
    chosen = _search(snapshot, usable, [wanted[n] for n in ordered], ()) if enough else None
    if chosen is None:
        raise _no_room(snapshot, gpus, profiles, found, vm)
    slots = dict(zip(ordered, chosen, strict=True))
    return tuple(slots[n] for n in range(len(wanted)))


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
    """Say whether that many fit on these GPUs together: without it, the search tries every combination."""
    free = joint_free(snapshot, gpus, types, vm)
    return free is None or free >= count


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


def _size(item: _Item) -> int:
    return max(((t.framebuffer_mib or 0) for t in item.types.values()), default=0)


def _search(
    snapshot: Snapshot, gpus: Sequence[Gpu], items: Sequence[_Item], chosen: tuple[Slot, ...]
) -> tuple[Slot, ...] | None:
    """Try the GPUs in order for the first item, then the rest; equal items keep their GPUs' order."""
    if not items:
        return chosen
    item = items[0]
    again = len(chosen) > 0 and _equal(chosen[-1], item)
    started = not again
    for gpu in gpus:
        started = started or gpu.address == chosen[-1].gpu.address
        wanted = item.types.get(gpu.address)
        if not started or wanted is None:
            continue
        more = _with_one_more(snapshot.taken_on(gpu.address), gpu, chosen, wanted)
        rest = _search(snapshot, gpus, items[1:], more) if more is not None else None
        if rest is not None:
            return rest
    return None


def _with_one_more(
    taken: Sequence[Vgpu], gpu: Gpu, chosen: tuple[Slot, ...], wanted: VgpuType
) -> tuple[Slot, ...] | None:
    """Return what is chosen with one more vGPU on this GPU; None when it does not fit.

    On a mixed-size GPU all that are chosen there are placed anew, so that no choice stands in the way of a later one.
    """
    mine = [n for n, slot in enumerate(chosen) if slot.gpu.address == gpu.address]
    if not gpu.mixed_size or not mine:
        space = room(gpu, (*taken, *_as_taken(chosen, gpu)), wanted)
        function = space.functions[0] if space.some else None
    else:
        space = room(gpu, taken, wanted)
        used = {chosen[n].function for n in mine}
        function = next((f for f in space.functions if f not in used), None) if space.some else None
    if function is None:
        return None
    more = (*chosen, Slot(gpu, function, wanted))
    if not gpu.mixed_size or space.free is None:
        return more
    ids = pack(gpu, taken, [slot.type for slot in more if slot.gpu.address == gpu.address])
    if ids is None:
        return None
    if gpu.backend is not Backend.VENDOR_VF:
        return more  # mdevs go where the driver puts them
    placed = dict(zip((*mine, len(chosen)), ids, strict=True))
    return tuple(replace(slot, placement_id=placed.get(n, slot.placement_id)) for n, slot in enumerate(more))


def _equal(slot: Slot, item: _Item) -> bool:
    known = item.types.get(slot.gpu.address)
    return known is not None and known.name == slot.type.name


def _fullest_first(snapshot: Snapshot, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    return tuple(sorted(gpus, key=lambda g: (-len(snapshot.taken_on(g.address)), address_key(g.address))))


def _as_taken(chosen: Sequence[Slot], gpu: Gpu) -> list[Vgpu]:
    return [
        Vgpu(
            carrier=f"planned-{n}",
            gpu=gpu.address,
            function=s.function,
            owner=Owner.OURS,
            present=False,
            backend=gpu.backend,
            type_id=s.type.type_id,
            profile=s.type.profile,
            framebuffer_mib=s.type.framebuffer_mib,
            placement_id=s.placement_id,
        )
        for n, s in enumerate(chosen)
        if s.gpu.address == gpu.address
    ]


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
        if any(s.gpu == gpu.address for s in snapshot.stuck):
            space = replace(space, free=0, functions=(), reasons=("a kernel write on it is stuck", *space.reasons))
        closed = why_closed(gpu, "vgpu", vm) or why_not_allowed(gpu, wanted)
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
) -> NoCapacity:
    text = ", ".join(p if c == 1 else f"{c} × {p}" for p, c in profiles)
    details = []
    lines = []
    for profile, count in profiles:
        for gpu, space in rooms_for(snapshot, gpus, found[profile], vm):
            if gpu.address not in found[profile]:
                continue
            alone = len(profiles) > 1 and (space.free or 0) >= count
            seen = f"{space.free} × {profile} alone, not beside the others" if alone else f"{space.free} of {count}"
            reasons = list(space.reasons) or [f"room for {seen}"]
            details.append({"gpu": gpu.address, "profile": profile, "free": space.free, "reasons": reasons})
            lines.append(f"{gpu.address}: {'; '.join(reasons)}")
    where = f" on {gpus[0].address}" if len(gpus) == 1 else ""
    first = profiles[0][0]
    addresses = {g.address for g in gpus}
    idle = sorted({str(v.vm) for v in snapshot.vgpus if v.idle and v.gpu in addresses})
    hint = f"vgpuctl explain {first}"
    if idle:
        hint = f"vgpuctl reconcile frees what {', '.join(idle)} have no use for while off; {hint}"
    return NoCapacity(f"no room for {text}{where}", hint=hint, gpus=details, details=lines)
