# SPDX-License-Identifier: Apache-2.0
"""Put several vGPUs on several GPUs, all of them or none: exactly, each GPU with each rest tried once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vgpuctl.capacity.mixed_size import pack
from vgpuctl.capacity.room import room
from vgpuctl.model.gpu import Backend, Gpu, Owner, Vgpu, VgpuType
from vgpuctl.value import Value, replace


class Slot(Value):
    """Where one vGPU goes; `placement_id` on a mixed-size GPU, where the driver lets it be chosen."""

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


_Rest = tuple[int, ...]


def search(hosts: Sequence[Host], items: Sequence[tuple[Item, int]]) -> tuple[tuple[Slot, ...], ...] | None:
    """Return a slot for each of so many of each item; None when they do not all fit.

    Each GPU in turn takes as many as it can, of the first item before the others, as long as the rest finds room.
    """
    failed: set[tuple[int, _Rest]] = set()

    def fill(number: int, rest: _Rest) -> tuple[tuple[int, Slot], ...] | None:
        if not any(rest):
            return ()
        if number == len(hosts) or (number, rest) in failed:
            return None
        for left, slots in _takes(hosts[number], items, rest):
            more = fill(number + 1, left)
            if more is not None:
                which = [n for n, (had, has) in enumerate(zip(rest, left, strict=True)) for _ in range(had - has)]
                return (*zip(which, slots, strict=True), *more)
        failed.add((number, rest))
        return None

    found = fill(0, tuple(count for _, count in items))
    if found is None:
        return None
    return tuple(tuple(slot for n, slot in found if n == number) for number in range(len(items)))


def _takes(host: Host, items: Sequence[tuple[Item, int]], rest: _Rest) -> Iterator[tuple[_Rest, tuple[Slot, ...]]]:
    """Return every part of the rest that a GPU takes, with what is left then; the most of the first item first."""

    def of(number: int, left: _Rest, slots: tuple[Slot, ...]) -> Iterator[tuple[_Rest, tuple[Slot, ...]]]:
        if number == len(items):
            yield left, slots
            return
        wanted = items[number][0].types.get(host.gpu.address)
        chain = [slots]
        while wanted is not None and len(chain) <= left[number]:
            more = with_one_more(host, chain[-1], wanted)
            if more is None:
                break
            chain.append(more)
        for count in range(len(chain) - 1, -1, -1):
            yield from of(number + 1, (*left[:number], left[number] - count, *left[number + 1 :]), chain[count])

    return of(0, rest, ())


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
    if not gpu.mixed_size or space.free is None:
        return more
    ids = pack(gpu, taken, [slot.type for slot in more])
    if ids is None:
        return None
    if gpu.backend is not Backend.VENDOR_VF:
        return more  # mdevs go where the driver puts them
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
