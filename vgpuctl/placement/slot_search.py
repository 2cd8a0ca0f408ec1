# SPDX-License-Identifier: Apache-2.0
"""Put several vGPUs on several GPUs, all of them or none: an exact search that tries each GPU with each rest once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vgpuctl.gpu.mixed_size import pack_vgpus
from vgpuctl.gpu.room import compute_room
from vgpuctl.model.gpu import Gpu, Ownership, Vgpu, VgpuType
from vgpuctl.value import EMPTY_MAPPING, Value, replace


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


_Counts = tuple[int, ...]


def search_slots(
    open_gpus: Sequence[OpenGpu],
    requests: Sequence[tuple[ProfileRequest, int]],
    class_by_address: Mapping[str, object] = EMPTY_MAPPING,
) -> tuple[tuple[Slot, ...], ...] | None:
    """Return slots for the requested number of each profile; None when they do not all fit.

    Each GPU in turn takes as many as it can, the first request before the others, as long as the rest finds room.
    `class_by_address`: by address a value that is equal for interchangeable GPUs. Of interchangeable neighbours the
    first takes no less than the next, so the search does not try the same thing for each of them.
    """
    classes = [class_by_address.get(open_gpu.gpu.address, n) for n, open_gpu in enumerate(open_gpus)]
    follows = [n > 0 and classes[n] == classes[n - 1] for n in range(len(open_gpus))]
    counts = tuple(count for _, count in requests)
    numbered_slots = _SlotSearch(open_gpus, [request for request, _ in requests], follows).fill(0, counts, counts)
    if numbered_slots is None:
        return None
    return tuple(tuple(slot for n, slot in numbered_slots if n == number) for number in range(len(requests)))


class _SlotSearch:
    """The results so far: what each GPU takes, and which rest does not fit on the GPUs from one on."""

    def __init__(
        self, open_gpus: Sequence[OpenGpu], requests: Sequence[ProfileRequest], same_as_previous: Sequence[bool]
    ) -> None:
        """`same_as_previous`: which GPUs are interchangeable with the one before them."""
        self._open_gpus = open_gpus
        self._requests = requests
        self._same_as_previous = same_as_previous
        self._slots: dict[tuple[int, _Counts], tuple[Slot, ...] | None] = {}
        self._failed: set[tuple[int, _Counts, _Counts]] = set()

    def fill(self, gpu_index: int, rest: _Counts, previous_counts: _Counts) -> tuple[tuple[int, Slot], ...] | None:
        """Return the slots of the rest on the GPUs from `gpu_index` on, each with the number of its request.

        `previous_counts`: what the previous GPU takes.
        """
        if not any(rest):
            return ()
        if gpu_index == len(self._open_gpus):
            return None
        max_counts = previous_counts if self._same_as_previous[gpu_index] else rest
        if (gpu_index, rest, max_counts) in self._failed:
            return None
        first = next(n for n, count in enumerate(rest) if count)
        for takes in self._list_shares(gpu_index, rest, (0,) * len(rest), 0):
            if takes > max_counts:
                continue
            if not takes[first] and all(self._same_as_previous[gpu_index + 1 :]):
                break  # later GPUs take no more of the first request than this one
            remaining = tuple(
                requested_count - placed_count for requested_count, placed_count in zip(rest, takes, strict=True)
            )
            rest_slots = self.fill(gpu_index + 1, remaining, takes)
            if rest_slots is not None:
                request_numbers = [n for n, count in enumerate(takes) for _ in range(count)]
                return (*zip(request_numbers, self._slots_on_gpu(gpu_index, takes) or (), strict=True), *rest_slots)
        self._failed.add((gpu_index, rest, max_counts))
        return None

    def _list_shares(self, gpu_index: int, rest: _Counts, takes: _Counts, number: int) -> Iterator[_Counts]:
        """Yield every part of the rest that a GPU takes in addition to `takes`, the most of the first request first."""
        if number == len(rest):
            yield takes
            return
        chain = [takes]
        while len(chain) <= rest[number]:
            next_counts = (*takes[:number], len(chain), *takes[number + 1 :])
            if self._slots_on_gpu(gpu_index, next_counts) is None:
                break
            chain.append(next_counts)
        for part in reversed(chain):
            yield from self._list_shares(gpu_index, rest, part, number + 1)

    def _slots_on_gpu(self, gpu_index: int, takes: _Counts) -> tuple[Slot, ...] | None:
        """Return the slots for these counts of each request on one GPU, in request order; None: they do not fit."""
        if not any(takes):
            return ()
        key = (gpu_index, takes)
        if key not in self._slots:
            last = max(n for n, count in enumerate(takes) if count)
            before = self._slots_on_gpu(gpu_index, (*takes[:last], takes[last] - 1, *takes[last + 1 :]))
            vgpu_type = self._requests[last].types.get(self._open_gpus[gpu_index].gpu.address)
            fits = before is not None and vgpu_type is not None
            self._slots[key] = (
                add_slot(self._open_gpus[gpu_index], before or (), vgpu_type) if fits and vgpu_type else None
            )
        return self._slots[key]


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
