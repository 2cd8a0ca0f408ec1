# SPDX-License-Identifier: Apache-2.0
"""Choose where the vGPUs of one VM go: all of them, or none with the reasons; and which whole GPUs it gets.

Larger vGPUs go first, each where the placement policy puts it. Where that leaves one without room, `slot_search` tries
other places. The same input always gives the same answer.

Several whole GPUs are near each other: the smallest group of GPUs that has enough free ones. The groups, from the
nearest: GPUs behind one PCIe switch, GPUs below one host bridge, GPUs of one NUMA node, all. These are the steps of
`nvidia-smi topo -m`: PIX and PXB, PHB, NODE, SYS. What the kernel shows of them: the bridges above a device are its
path in /sys/devices, and `numa_node` is a file of it (Documentation/ABI/testing/sysfs-bus-pci). Where NVML has NVLinks,
GPUs that these connect are a group before all others. Among groups that are equally near, the one with the fewest free
GPUs is used, so that larger groups stay whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vgpuctl.errors import InvalidInput, NoCapacity, Stuck
from vgpuctl.gpu.division import Room
from vgpuctl.gpu.profiles import check_combination, find_types, keep_combinable, require_one_profile
from vgpuctl.gpu.room import compute_room, why_profile_unknown
from vgpuctl.model.gpu import Gpu, Vgpu, VgpuType
from vgpuctl.model.names import address_sort_key
from vgpuctl.model.request import NO_CONSTRAINTS, GpuConstraints
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import StuckWrite
from vgpuctl.placement.constraints import (
    Excluded,
    add_spread_group,
    select_allowed_gpus,
    unapplied_error,
    unapplied_settings,
    why_excluded,
    why_profile_forbidden,
    why_restricted,
    why_unschedulable,
)
from vgpuctl.placement.slot_search import MAX_ALTERNATIVES, OpenGpu, ProfileRequest, Slot, search_slots
from vgpuctl.value import Value, replace

_CUT_LINE = f"the search ended after {MAX_ALTERNATIVES} other places, and not all were tried: there may be a way"


def sum_free(rooms: Sequence[tuple[Gpu, Room]]) -> int | None:
    """Return how many more of one profile fit in these rooms together; None when one of them is unknown."""
    free = [room.free for _, room in rooms]
    numbers = [n for n in free if n is not None]
    return sum(numbers) if len(numbers) == len(free) else None


def sum_guaranteed(rooms: Sequence[tuple[Gpu, Room]]) -> int:
    """Return how many more of one profile are guaranteed to fit in these rooms together."""
    return sum(room.guaranteed or 0 for _, room in rooms)


def place_vgpus(
    snapshot: Snapshot,
    profiles: Sequence[tuple[str, int]],
    constraints: GpuConstraints | None = None,
    vm: str | None = None,
    uuid: str | None = None,
    existing_profiles: Sequence[str] = (),
) -> tuple[Slot, ...]:
    """Return a slot for every requested vGPU, in the order of the request.

    `vm`: its name, because host.yaml may reserve a GPU for it; `uuid`: of the VM, which may have a spread group or NUMA
    nodes. `existing_profiles`: profiles that the VM has and keeps; if the model is open, only types that can be
    combined with them.

    Raises:
        NoCapacity: they do not all fit; facts hold each GPU's numbers and reasons.
        Stuck: on every GPU that could serve, a kernel write has not returned.
        HostCannot: there is no room on the others, and a GPU that could serve lacks settings of host.yaml.
        NotFound, InvalidInput, Refused: this host cannot serve the profiles or GPUs.
    """
    constraints = add_spread_group(snapshot, constraints or NO_CONSTRAINTS, uuid)
    gpus = tuple(g for g in select_allowed_gpus(snapshot, constraints) if g.address not in snapshot.refusing_gpus)
    excluded = {g.address: why for g in gpus if (why := why_excluded(snapshot, g, constraints, uuid)) is not None}
    types_of = {
        text: keep_combinable(_find_types(snapshot, gpus, excluded, text), existing_profiles) for text, _ in profiles
    }
    if sum(count for _, count in profiles) > 1:
        check_combination([require_one_profile(types_of[text], text) for text, count in profiles for _ in range(count)])
    request_of = {text: ProfileRequest(_drop_forbidden_types(gpus, types), text) for text, types in types_of.items()}
    serving = [g for g in gpus if g.address not in excluded and any(g.address in types for types in types_of.values())]
    _refuse_stuck(snapshot, serving)
    open_gpus = [g for g in gpus if g.address not in excluded and why_unschedulable(snapshot, g, "vgpu", vm) is None]
    candidates = list_open_gpus(snapshot, open_gpus)
    totals = _count_by_profile(profiles)
    largest = sorted(totals.items(), key=lambda t: (-request_of[t[0]].framebuffer_mib, t[0]))
    ordered = [request_of[text] for text, count in largest for _ in range(count)]
    result = search_slots(snapshot, candidates, ordered, constraints.policy, vm)
    if result.slots is None:
        _refuse_unapplied(snapshot, serving, vm)
        raise _no_room_error(snapshot, gpus, profiles, types_of, vm, excluded, is_cut=result.is_cut)
    slots: dict[str, list[Slot]] = {}
    for request, slot in zip(ordered, result.slots, strict=True):
        slots.setdefault(request.text, []).append(slot)
    return tuple(slots[text].pop(0) for text, count in profiles for _ in range(count))


def _find_types(
    snapshot: Snapshot, gpus: Sequence[Gpu], excluded: Mapping[str, Excluded], text: str
) -> Mapping[str, VgpuType]:
    """Return the type of a profile on each GPU; an excluded GPU never makes a profile ambiguous."""
    allowed = [g for g in gpus if g.address not in excluded]
    try:
        return find_types(snapshot, gpus, text)
    except InvalidInput:
        if not allowed or not excluded:
            raise
        return find_types(snapshot, allowed, text)


def list_open_gpus(snapshot: Snapshot, gpus: Sequence[Gpu]) -> tuple[OpenGpu, ...]:
    """Return the GPUs with the vGPUs on each, fullest first."""
    vgpus_by_gpu: dict[str, list[Vgpu]] = {g.address: [] for g in gpus}
    for vgpu in snapshot.vgpus:
        if vgpu.gpu in vgpus_by_gpu:
            vgpus_by_gpu[vgpu.gpu].append(vgpu)
    open_gpus = (OpenGpu(g, tuple(vgpus_by_gpu[g.address])) for g in gpus)
    return tuple(sorted(open_gpus, key=lambda entry: (-len(entry.taken), address_sort_key(entry.gpu.address))))


def _drop_forbidden_types(gpus: Sequence[Gpu], types: Mapping[str, VgpuType]) -> dict[str, VgpuType]:
    """Return the types by GPU, without those that host.yaml does not allow there."""
    gpu_types = ((gpu, types[gpu.address]) for gpu in gpus if gpu.address in types)
    return {gpu.address: vgpu_type for gpu, vgpu_type in gpu_types if why_profile_forbidden(gpu, vgpu_type) is None}


def _count_by_profile(profiles: Sequence[tuple[str, int]]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for text, count in profiles:
        totals[text] += count
    return totals


def stuck_write_error(write: StuckWrite) -> Stuck:
    """Return the refusal to work on a GPU on which a kernel write has not returned."""
    return Stuck(
        f"{write.gpu}: process {write.process.pid} waits in the kernel writing {write.path}",
        hint="it ends when the device is released; then run the command again",
        gpu=write.gpu,
        pid=write.process.pid,
    )


def _refuse_stuck(snapshot: Snapshot, gpus: Sequence[Gpu]) -> None:
    """Refuse when a kernel write is stuck on every GPU that could serve."""
    writes = {s.gpu: s for s in snapshot.stuck_writes}
    if gpus and all(g.address in writes for g in gpus):
        raise stuck_write_error(writes[gpus[0].address])


def _refuse_unapplied(snapshot: Snapshot, gpus: Sequence[Gpu], vm: str | None) -> None:
    """Refuse when a GPU that could serve only lacks settings of host.yaml: restore-host helps, making room does not."""
    for gpu in gpus:
        if why_restricted(gpu, "vgpu", vm) is None and (differences := unapplied_settings(snapshot, gpu)):
            raise unapplied_error(gpu, differences)


def list_rooms(
    snapshot: Snapshot, gpus: Sequence[Gpu], types: Mapping[str, VgpuType], vm: str | None = None
) -> tuple[tuple[Gpu, Room], ...]:
    """Return the room of one profile on each GPU, including GPUs that do not have the profile.

    `vm`: the VM that it is for; a GPU that is reserved for some VMs has room only for those.
    """
    rooms = []
    for gpu in gpus:
        vgpu_type = types.get(gpu.address)
        if vgpu_type is None:
            restriction = why_restricted(gpu, "vgpu", vm)
            reasons = (why_profile_unknown(gpu),) if restriction is None else (restriction, why_profile_unknown(gpu))
            rooms.append((gpu, Room(0, (), reasons)))
            continue
        room = compute_room(gpu, snapshot.vgpus_on(gpu.address), vgpu_type)
        reason = why_unschedulable(snapshot, gpu, "vgpu", vm) or why_profile_forbidden(gpu, vgpu_type)
        if reason is not None:
            others = () if gpu.is_lost else room.reasons  # what is not known of a lost GPU does not matter
            room = replace(room, free=0, functions=(), reasons=(reason, *others))
        rooms.append((gpu, room))
    return tuple(rooms)


def is_unused_sibling(gpu: Gpu, gpus: Sequence[Gpu], types: Mapping[str, VgpuType]) -> bool:
    """Return whether a GPU offers nothing now, and another one of its model offers the profile."""
    return not gpu.types and any(g.model == gpu.model and g.address in types for g in gpus)


def _no_room_error(
    snapshot: Snapshot,
    gpus: Sequence[Gpu],
    profiles: Sequence[tuple[str, int]],
    types_by_text: Mapping[str, Mapping[str, VgpuType]],
    vm: str | None,
    excluded_gpus: Mapping[str, Excluded],
    *,
    is_cut: bool,
) -> NoCapacity:
    text = ", ".join(p if c == 1 else f"{c} × {p}" for p, c in profiles)
    details = []
    lines = [_CUT_LINE] if is_cut else []
    free_by_constraint: dict[str, dict[str, int]] = {}
    for profile, count in profiles:
        for gpu, room in list_rooms(snapshot, gpus, types_by_text[profile], vm):
            if gpu.address not in types_by_text[profile] and not is_unused_sibling(gpu, gpus, types_by_text[profile]):
                continue
            exclusion = excluded_gpus.get(gpu.address)
            alone = len(profiles) > 1 and (room.guaranteed or 0) >= count
            text_of_room = (
                f"{room.guaranteed} × {profile} alone, not together with the others"
                if alone
                else f"{room.guaranteed} of {count}"
            )
            reasons = list(room.reasons) or [
                f"room for {text_of_room}" if exclusion is None else f"room for {room.guaranteed}"
            ]
            if exclusion is not None:
                reasons.insert(0, f"excluded by {exclusion.constraint}: {exclusion.reason}")
                free_by_gpu = free_by_constraint.setdefault(exclusion.constraint, {})
                free_by_gpu[gpu.address] = max(free_by_gpu.get(gpu.address, 0), room.guaranteed or 0)
            numbers = {"free": room.free, "free_at_least": room.guaranteed or 0}
            details.append({"gpu": gpu.address, "profile": profile, **numbers, "reasons": reasons})
            lines.append(f"{gpu.address}: {'; '.join(reasons)}")
    where = f" on {gpus[0].address}" if len(gpus) == 1 else ""
    first, *others = sorted({t.profile for t in types_by_text[profiles[0][0]].values()})
    addresses = {g.address for g in gpus}
    idle = sorted({str(v.vm) for v in snapshot.vgpus if v.idle and v.gpu in addresses})
    hint = f"vgpuctl explain {first if others else profiles[0][0]}"
    if idle:
        hint = f"vgpuctl reconcile-host frees the vGPUs of {', '.join(idle)}, which are off; {hint}"
    left_out = _describe_excluded(
        free_by_constraint, len({address for types in types_by_text.values() for address in types})
    )
    message = "; ".join([f"no room for {text}{where}", *left_out])
    excluded = {constraint: sorted(free_by_gpu) for constraint, free_by_gpu in free_by_constraint.items()}
    facts: dict[str, object] = {"excluded": excluded, "left_out": left_out} if excluded else {}
    facts |= {"gpu": gpus[0].address} if len(gpus) == 1 else {}
    return NoCapacity(message, hint=hint, gpus=details, details=lines, **facts)


def _describe_excluded(free_by_constraint: Mapping[str, Mapping[str, int]], number: int) -> list[str]:
    """Say which constraints exclude GPUs that have the profile, and how many vGPUs would fit on these."""
    return [
        f"{constraint} excludes {len(free)} of {number} GPUs, on which {sum(free.values())} would fit"
        for constraint, free in free_by_constraint.items()
    ]


class _Member(Value):
    """A GPU with the groups that it is in, from the largest to the smallest; its own port is none of them."""

    gpu: Gpu
    groups: tuple[object, ...]


_Group = tuple[_Member, ...]


def choose_near(gpus: Sequence[Gpu], count: int, beside: Sequence[Gpu] = ()) -> tuple[Gpu, ...] | None:
    """Return `count` of these GPUs that are near each other, in their order; None if there are fewer.

    `beside`: GPUs that the VM has already: the new ones are near these too.
    """
    if count > len(gpus):
        return None
    members = _members((*gpus, *beside))
    free, own = members[: len(gpus)], members[len(gpus) :]
    choices = [(_pick(group, count, 0), len(group)) for group in _smallest_groups(free, count, 0)]
    best = min(choices, key=lambda choice: (*_spread((*choice[0], *own)), choice[1], choice[0][0].gpu.address))[0]
    chosen = {member.gpu.address for member in best}
    return tuple(gpu for gpu in gpus if gpu.address in chosen)


def _spread(group: _Group) -> tuple[int, int, int]:
    """Return over how many NVLink groups, NUMA nodes and PCIe switches GPUs are spread."""
    keys = [member.groups for member in group]
    return len({k[0] for k in keys}), len({k[1] for k in keys}), len({k[1:] for k in keys})


def _members(gpus: Sequence[Gpu]) -> _Group:
    islands = _nvlink_groups(gpus)
    return tuple(_Member(g, (islands.get(g.address), g.numa_node, *g.pci_path[:-1])) for g in gpus)


def _nvlink_groups(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return a name for the group of each GPU that NVLink connects with others, directly or over others."""
    names = {a: min(g.address, *g.nvlink_peers) for g in gpus if g.nvlink_peers for a in (g.address, *g.nvlink_peers)}
    changed = True
    while changed:
        changed = False
        for gpu in gpus:
            linked = (gpu.address, *(gpu.nvlink_peers or ()))
            lowest = min((names[a] for a in linked if a in names), default=None)
            for address in linked if lowest is not None else ():
                if names.get(address) != lowest:
                    names[address], changed = str(lowest), True
    return names


def _subgroups(group: _Group, level: int) -> list[_Group]:
    parts: dict[object, list[_Member]] = {}
    for member in group:
        key = member.groups[level] if level < len(member.groups) else None
        parts.setdefault(key, []).append(member)
    return [tuple(part) for part in parts.values()]


def _is_smallest(group: _Group, level: int) -> bool:
    return all(level >= len(member.groups) for member in group)


def _smallest_groups(group: _Group, count: int, level: int) -> list[_Group]:
    """Return the groups with at least `count` GPUs of which no part has as many."""
    if _is_smallest(group, level):
        return [group]
    enough = [part for part in _subgroups(group, level) if len(part) >= count]
    return [small for part in enough for small in _smallest_groups(part, count, level + 1)] or [group]


def _pick(group: _Group, count: int, level: int) -> _Group:
    """Return `count` GPUs of a group: from the smallest part that has enough, else the largest parts first."""
    if count == len(group) or _is_smallest(group, level):
        return group[:count]
    parts = _subgroups(group, level)
    enough = [part for part in parts if len(part) >= count]
    if enough:
        return _pick(min(enough, key=len), count, level + 1)
    largest = max(parts, key=len)
    taken = {member.gpu.address for member in largest}
    rest = tuple(member for member in group if member.gpu.address not in taken)
    return (*largest, *_pick(rest, count - len(largest), level))
