# SPDX-License-Identifier: Apache-2.0
"""Whether vGPUs of several profiles fit on GPUs together, where each goes, and which are too many when they do not.

Each is taken to be for a VM of its own. Where the driver keeps to itself how many fit, "no" is not said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vgpuctl.capacity.asked import as_asked
from vgpuctl.capacity.kinds import Numbers, fleet_of
from vgpuctl.capacity.mixed_size import pack
from vgpuctl.capacity.place import rooms_for, sure_in
from vgpuctl.capacity.profiles import find, without_namesakes
from vgpuctl.capacity.room import Room
from vgpuctl.model.gpu import NVIDIA, Backend, Gpu, VgpuType
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.fleet import Fleet
from vgpuctl.placement.joint import joint, too_many
from vgpuctl.value import Value

_POOL = "how large the pool of a GPU is that its types share is not known: its driver tells how many fit of each alone"


class Spot(Value):
    """Where one vGPU goes. `placement_id`: on a mixed-size GPU, where it can be chosen."""

    gpu: Gpu
    profile: str
    placement_id: int | None = None


class Barrier(Value):
    """The room that a GPU has for one profile, where not all that is wanted of it fits."""

    gpu: Gpu
    profile: str
    room: Room


class Fit(Value):
    """Whether everything fits, None when that is not known; then `why` says why not.

    `spots` has a place for each when it does. `too_many` is some of what was wanted that does not fit, `fewest` whether
    no fewer are too many; `barriers` are what each GPU has room for of that.
    """

    fits: bool | None
    wanted: Mapping[str, int]
    spots: tuple[Spot, ...] = ()
    too_many: tuple[tuple[str, int], ...] = ()
    fewest: bool = True
    barriers: tuple[Barrier, ...] = ()
    why: str | None = None


def fit(snapshot: Snapshot, gpus: Sequence[Gpu], profiles: Sequence[tuple[str, int]]) -> Fit:
    """Say whether so many of each profile fit on these GPUs together, as they are now.

    Raises:
        NotFound, NoCapacity, InvalidInput: a profile cannot be meant on these GPUs.
    """
    found = {text: find(snapshot, gpus, text) for text, _ in profiles}
    gpus = without_namesakes(gpus, list(found.values()))
    numbers = fleet_of(snapshot, gpus)
    asked = as_asked(numbers, found)
    types = {asked.names[text]: some for text, some in found.items()}
    counted: Counter[str] = Counter()
    for text, number in profiles:
        counted[asked.names[text]] += number
    wanted = {p: n for p, n in counted.items() if n}
    answer = joint(asked.fleet, wanted)
    if answer.fits:
        return Fit(True, wanted, spots=_spots(snapshot, numbers, answer.where, types))
    rooms = [
        Barrier(gpu, profile, room)
        for profile in wanted
        for gpu, room in rooms_for(snapshot, gpus, types[profile])
        if gpu.address in types[profile]
    ]
    unknown = sorted({b.gpu.address for b in rooms if _more_than_counted(numbers.gpus, asked.fleet, b)})
    if unknown and len(wanted) == 1:
        return _of_one(snapshot, wanted, rooms, types)
    if unknown:
        return Fit(None, wanted, why=f"how much fits on {', '.join(unknown)} is not known: only trying tells")
    if answer.fits is None:
        return Fit(None, wanted, why="there are too many ways to place them for all to be tried")
    largest = asked.fleet
    if any(gpu.vendor_id != NVIDIA and gpu.backend is Backend.MDEV_PF for gpu in gpus):
        more = fleet_of(snapshot, gpus, largest=True)
        largest = as_asked(more, found).fleet
        if set(more.left_out) != set(numbers.left_out) or joint(largest, wanted).fits is not False:
            return Fit(None, wanted, why=_POOL)
    few = too_many(largest, wanted)
    barriers = tuple(b for b in rooms if b.profile in few.few)
    return Fit(False, wanted, too_many=tuple(few.few.items()), fewest=few.fewest, barriers=barriers)


def _of_one(
    snapshot: Snapshot,
    wanted: Mapping[str, int],
    rooms: Sequence[Barrier],
    types: Mapping[str, Mapping[str, VgpuType]],
) -> Fit:
    """Say whether so many of one profile fit by what each GPU has room for, as where numbers for others are lacking."""
    ((profile, number),) = wanted.items()
    sure = sure_in([(b.gpu, b.room) for b in rooms])
    if sure < number and all(b.room.free is not None for b in rooms):
        return Fit(False, wanted, too_many=((profile, number - sure),), barriers=tuple(rooms))
    if sure < number:
        gpus = ", ".join(b.gpu.address for b in rooms if b.room.free is None)
        return Fit(None, wanted, why=f"at least {sure} fit; whether more do on {gpus} is not known: only trying tells")
    spots: list[Spot] = []
    for b in rooms:
        kinds = [types[profile][b.gpu.address]] * min(b.room.sure or 0, number - len(spots))
        spots += _on_one(snapshot, b.gpu, kinds)
    return Fit(True, wanted, spots=tuple(spots))


def _on_one(snapshot: Snapshot, gpu: Gpu, kinds: Sequence[VgpuType]) -> list[Spot]:
    """Return the spots of these on one GPU, where vgpuctl chooses them at their placements."""
    ids = pack(gpu, snapshot.taken_on(gpu.address), kinds) if gpu.chooses_places else None
    return [Spot(gpu, t.profile, ids[n] if ids is not None else None) for n, t in enumerate(kinds)]


def _more_than_counted(gpus: Sequence[Gpu], fleet: Fleet, barrier: Barrier) -> bool:
    """Say whether a GPU may have room for more of a profile than there are numbers for."""
    free = barrier.room.free
    if free is None:
        return True
    at = next((n for n, gpu in enumerate(gpus) if gpu.address == barrier.gpu.address), None)
    if at is None:
        return free > 0
    group = fleet.group_of(at)
    return free > fleet.kind(group).left(group.state, barrier.profile)


def _spots(
    snapshot: Snapshot,
    numbers: Numbers,
    where: Mapping[int, Mapping[str, int]],
    types: Mapping[str, Mapping[str, VgpuType]],
) -> tuple[Spot, ...]:
    """Return a place for each, by GPU; the larger first."""
    spots: list[Spot] = []
    for number in sorted(where):
        gpu = numbers.gpus[number]
        kinds = [types[p][gpu.address] for p, n in where[number].items() for _ in range(n)]
        kinds.sort(key=lambda t: (-(t.framebuffer_mib or 0), t.profile))
        spots += _on_one(snapshot, gpu, kinds)
    return tuple(spots)
