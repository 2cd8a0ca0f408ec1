# SPDX-License-Identifier: Apache-2.0
"""Put several vGPUs on several GPUs, all of them or none: exactly, each GPU with each rest tried once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vgpuctl.capacity.mixed_size import pack
from vgpuctl.capacity.room import room
from vgpuctl.model.gpu import Gpu, Owner, Vgpu, VgpuType
from vgpuctl.value import NOTHING, Value, replace


class Slot(Value):
    """Where one vGPU goes; `placement_id` on a mixed-size GPU, where it can be chosen."""

    gpu: Gpu
    function: str
    type: VgpuType
    placement_id: int | None = None


class Item(Value):
    """One profile that is wanted: its type on each GPU that knows it, by address."""

    types: Mapping[str, VgpuType]
    text: str

    @property
    def framebuffer_mib(self) -> int:
        """The most that one takes anywhere."""
        return max(((t.framebuffer_mib or 0) for t in self.types.values()), default=0)


class Host(Value):
    """A GPU that is open, and what is taken on it."""

    gpu: Gpu
    taken: tuple[Vgpu, ...]


_Counts = tuple[int, ...]


def search(
    hosts: Sequence[Host], items: Sequence[tuple[Item, int]], alike: Mapping[str, object] = NOTHING
) -> tuple[tuple[Slot, ...], ...] | None:
    """Return a slot for each of so many of each item; None when they do not all fit.

    Each GPU in turn takes as many as it can, of the first item before the others, as long as the rest finds room.
    `alike`: by address something that is equal for GPUs which take the same; of neighbours that are alike the first
    one takes no less than the next, so that nothing is tried once for each of them.
    """
    classes = [alike.get(host.gpu.address, n) for n, host in enumerate(hosts)]
    follows = [n > 0 and classes[n] == classes[n - 1] for n in range(len(hosts))]
    counts = tuple(count for _, count in items)
    found = _Search(hosts, [item for item, _ in items], follows).fill(0, counts, counts)
    if found is None:
        return None
    return tuple(tuple(slot for n, slot in found if n == number) for number in range(len(items)))


class _Search:
    """What was found out on the way: what each GPU takes, and which rest does not fit on the GPUs from one on."""

    def __init__(self, hosts: Sequence[Host], items: Sequence[Item], follows: Sequence[bool]) -> None:
        """`follows`: which GPUs are alike to the one before them."""
        self._hosts = hosts
        self._items = items
        self._follows = follows
        self._slots: dict[tuple[int, _Counts], tuple[Slot, ...] | None] = {}
        self._failed: set[tuple[int, _Counts, _Counts]] = set()

    def fill(self, host: int, rest: _Counts, before: _Counts) -> tuple[tuple[int, Slot], ...] | None:
        """Return the slots of the rest on the GPUs from one on, each with the number of its item.

        `before`: what the GPU before that one takes.
        """
        if not any(rest):
            return ()
        if host == len(self._hosts):
            return None
        most = before if self._follows[host] else rest
        if (host, rest, most) in self._failed:
            return None
        first = next(n for n, count in enumerate(rest) if count)
        for takes in self._parts(host, rest, (0,) * len(rest), 0):
            if takes > most:
                continue
            if not takes[first] and all(self._follows[host + 1 :]):
                break  # those after it take no more of the first item than it does
            left = tuple(had - has for had, has in zip(rest, takes, strict=True))
            more = self.fill(host + 1, left, takes)
            if more is not None:
                which = [n for n, count in enumerate(takes) for _ in range(count)]
                return (*zip(which, self._on(host, takes) or (), strict=True), *more)
        self._failed.add((host, rest, most))
        return None

    def _parts(self, host: int, rest: _Counts, takes: _Counts, number: int) -> Iterator[_Counts]:
        """Return every part of the rest that a GPU takes beside these, the most of the first item first."""
        if number == len(rest):
            yield takes
            return
        chain = [takes]
        while len(chain) <= rest[number]:
            more = (*takes[:number], len(chain), *takes[number + 1 :])
            if self._on(host, more) is None:
                break
            chain.append(more)
        for part in reversed(chain):
            yield from self._parts(host, rest, part, number + 1)

    def _on(self, host: int, takes: _Counts) -> tuple[Slot, ...] | None:
        """Return the slots of so many of each item on one GPU, in the order of the items; None: they do not fit."""
        if not any(takes):
            return ()
        key = (host, takes)
        if key not in self._slots:
            last = max(n for n, count in enumerate(takes) if count)
            before = self._on(host, (*takes[:last], takes[last] - 1, *takes[last + 1 :]))
            wanted = self._items[last].types.get(self._hosts[host].gpu.address)
            fits = before is not None and wanted is not None
            self._slots[key] = with_one_more(self._hosts[host], before or (), wanted) if fits and wanted else None
        return self._slots[key]


def with_one_more(host: Host, slots: tuple[Slot, ...], wanted: VgpuType) -> tuple[Slot, ...] | None:
    """Return the slots on a GPU with one more vGPU; None when it does not fit.

    On a mixed-size GPU all of them are placed anew, so that no choice stands in the way of a later one.
    """
    gpu, taken = host.gpu, host.taken
    if not gpu.mixed_size or not slots:
        space = room(gpu, (*taken, *as_taken(slots)), wanted)
        function = space.functions[0] if space.some else None
    else:
        space = room(gpu, taken, wanted)
        used = {slot.function for slot in slots}
        function = next((f for f in space.functions if f not in used), None) if space.some else None
    if function is None:
        return None
    more = (*slots, Slot(gpu, function, wanted))
    if not gpu.mixed_size or space.sure is None:
        return more
    ids = pack(gpu, taken, [slot.type for slot in more])
    if ids is None:
        return None
    if not gpu.chooses_places:
        return more
    return tuple(replace(slot, placement_id=at) for slot, at in zip(more, ids, strict=True))


def as_taken(slots: Sequence[Slot]) -> list[Vgpu]:
    """Return what is planned as those after it see it."""
    return [
        Vgpu(
            carrier=f"planned-{n}",
            gpu=s.gpu.address,
            function=s.function,
            owner=Owner.OURS,
            present=False,
            backend=s.gpu.backend,
            type_id=s.type.type_id,
            profile=s.type.profile,
            framebuffer_mib=s.type.framebuffer_mib,
            placement_id=s.placement_id,
        )
        for n, s in enumerate(slots)
    ]
