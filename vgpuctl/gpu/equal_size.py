# SPDX-License-Identifier: Apache-2.0
"""GPUs on which all vGPUs have the same framebuffer at a time: NVIDIA's time-sliced vGPUs without mixed sizes.

Source: NVIDIA's open kernel modules, kernel_vgpu_mgr.c: one size on a GPU, a maximum for each type, one vGPU on a VF,
at most 32 vGPUs. Drivers older than 550 take one type at a time (`one_type`). Where a maximum is not known (no NVML),
only the driver's list says whether one more fits.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from vgpuctl.gpu.division import (
    HOW_MANY_UNKNOWN,
    MAX_TIME_SLICED,
    AllocatedSlot,
    Division,
    DivisionOnVfs,
    GpuNumbers,
    Remaining,
    Room,
    find_type,
    framebuffer_of,
    full_reason,
    name_holders,
    sizes_of,
)
from vgpuctl.gpu.gpu_kind import AlikeKind, Columns, Placement, State
from vgpuctl.model.gpu import Backend, Vgpu, VgpuType
from vgpuctl.model.numbers import format_mib

if TYPE_CHECKING:
    from vgpuctl.solver import Program


class _EqualSize(Division):
    """The rule of one size, on a PF and on VFs."""

    @property
    def rule(self) -> str:
        """See `Division.rule`."""
        if self.gpu.has_single_type:
            return "all vGPUs on it are of one type, because its driver is older than 550"
        return "all vGPUs on it have the same framebuffer size"

    def numbers(self, types: Sequence[VgpuType], read_profiles: Set[str] | None = None) -> GpuNumbers | None:
        """See `Division.numbers`.

        A GPU takes as many of a type as are on it and still fit. A type that the lock excludes now counts by its rules.
        """
        locks = {self._lock_of(v) for v in self.taken}
        if None in locks or len(locks) > 1 or len({v.framebuffer_mib for v in self.taken}) > 1:
            return None
        lock = next(iter(locks), 0)
        max_vgpus: dict[str, int] = {}
        for vgpu_type in types:
            if vgpu_type.gi_profile_id is not None:
                continue
            is_read = read_profiles is None or vgpu_type.profile in read_profiles
            free = self.room(vgpu_type).free if is_read else 0
            if is_read and free is not None and lock in (0, self._lock_of(vgpu_type)):
                max_vgpus[vgpu_type.profile] = len(self.taken) + free
            elif free is not None and vgpu_type.max_per_gpu is not None:
                max_vgpus[vgpu_type.profile] = min(self._carriers_when_empty, vgpu_type.max_per_gpu)
        sizes = {p: mib for p, mib in sizes_of(types).items() if p in max_vgpus}
        max_vgpus = {p: max_vgpus[p] for p in sizes}
        framebuffer = framebuffer_of(self.gpu, [mib * max_vgpus[p] for p, mib in sizes.items()])
        kind = EqualSizeKind(self.gpu.model, framebuffer, sizes, max_vgpus, one_type=self.gpu.has_single_type)
        allocated = tuple(AllocatedSlot(v, v.profile, 0) for v in self.taken if v.profile is not None)
        return GpuNumbers(kind, (lock, len(self.taken)), allocated)

    @property
    def _carriers_when_empty(self) -> int:
        """How many vGPUs its functions carry when the GPU is empty."""
        return MAX_TIME_SLICED

    def _lock_of(self, vgpu: Vgpu | VgpuType) -> object:
        """Return what all vGPUs on the GPU share with this one."""
        return vgpu.profile if self.gpu.has_single_type else vgpu.framebuffer_mib

    def _limit(self, vgpu_type: VgpuType) -> int | None:
        """Return the most of a type on the GPU; None when that is not known.

        A vGPU that is only recorded must still fit when it is created last, so its type's maximum counts too.
        """
        recorded = [find_type(self.gpu, v) for v in self.taken if not v.present]
        maxima = [t.max_per_gpu for t in (vgpu_type, *recorded) if t is not None and t.max_per_gpu is not None]
        return min(*maxima, MAX_TIME_SLICED) if maxima else None

    def _lock_reason(self, vgpu_type: VgpuType) -> str | None:
        """Return which vGPUs exclude this type: a GPU takes one framebuffer size, with an old driver one type."""
        others = [v for v in self.taken if v.profile not in (None, vgpu_type.profile)]
        if self.gpu.has_single_type and others:
            other_profiles = ", ".join(sorted({str(v.profile) for v in others}))
            return (
                f"it has {len(others)} of another type: {other_profiles}, held by {name_holders(others)}; its driver, "
                "older than 550, allows one type at a time"
            )
        size = vgpu_type.framebuffer_mib
        others = [v for v in self.taken if size is not None and v.framebuffer_mib not in (None, size)]
        if not others:
            return None
        named = {f"{v.profile or v.type_id} ({format_mib(v.framebuffer_mib)})" for v in others if v.framebuffer_mib}
        sizes = ", ".join(sorted(named))
        return f"it has {len(others)} of another size: {sizes}, held by {name_holders(others)}"


class EqualSizeOnPf(_EqualSize):
    """A GPU whose PF is the parent of all its vGPUs (before Ampere): the driver says how many of each type it adds."""

    def room(self, vgpu_type: VgpuType) -> Room:
        """See `Division.room`."""
        function = self.gpu.functions[0]
        if function.problem:
            return Room(0, (), (f"{function.address}: {function.problem}",))
        locked = self._lock_reason(vgpu_type)
        if locked:
            return Room(0, (), (locked,))
        offered = (function.available_instances or {}).get(vgpu_type.type_id)
        if offered is None:
            return Room(0, (), (f"its driver does not offer {vgpu_type.profile}",))
        free = max(0, offered - sum(not v.present for v in self.taken))
        limit = self._limit(vgpu_type)
        if limit is not None:
            free = min(free, max(0, limit - len(self.taken)))
        if free == 0:
            return Room(0, (), (full_reason(self.taken, limit, f"the driver reports {offered} available"),))
        return Room(free, (function.address,))


class EqualSizeOnVfs(_EqualSize, DivisionOnVfs):
    """A GPU with a vGPU on each VF, all of one size."""

    def remaining(self, vgpu_type: VgpuType, *, is_confirmed: bool) -> Remaining:
        """See `DivisionOnVfs.remaining`."""
        locked = self._lock_reason(vgpu_type)
        may_mix = self.gpu.mixed_size is None and self.gpu.backend is Backend.MDEV_VF  # without NVML it is not known
        if locked and is_confirmed and may_mix:
            return Remaining(None, f"{HOW_MANY_UNKNOWN}, and its driver offers it alongside other sizes")
        if locked:
            return Remaining(0, locked)
        return self.remaining_up_to(None if vgpu_type.max_per_gpu is None else self._limit(vgpu_type))

    @property
    def _carriers_when_empty(self) -> int:
        return min(MAX_TIME_SLICED, sum(1 for f in self.gpu.functions if not f.problem))


class EqualSizeKind(AlikeKind):
    """A kind whose state is (size or type of all vGPUs, number of vGPUs); (0, 0) when it is empty."""

    def __init__(
        self,
        name: str,
        framebuffer_mib: int,
        sizes: Mapping[str, int],
        max_vgpus: Mapping[str, int],
        *,
        one_type: bool = False,
    ) -> None:
        """`max_vgpus`: how many of each profile the GPU takes, limited also by its carriers."""
        super().__init__(name, framebuffer_mib, tuple(sizes.items()), tuple(max_vgpus.items()), one_type)
        self.name = name
        self.framebuffer_mib = framebuffer_mib
        self.sizes = dict(sizes)
        self.empty: State = (0, 0)
        self.max_vgpus = dict(max_vgpus)
        self.one_type = one_type
        self._lock: dict[str, object] = {p: p if one_type else mib for p, mib in sizes.items()}

    def footprint(self, profile: str) -> Hashable:
        """See `GpuKind.footprint`."""
        return (self._lock[profile], self.max_vgpus[profile]) if profile in self.max_vgpus else None

    def placements(self, state: State, profile: str) -> tuple[Placement, ...]:
        """See `GpuKind.placements`. There is one: the place of a vGPU does not matter."""
        if self.count_remaining(state, profile) < 1:
            return ()
        vgpu_count = state[1]
        return (Placement(0, (self._lock[profile], vgpu_count + 1)),)

    def all_placements(self, state: State, profile: str) -> tuple[Placement, ...]:
        """See `GpuKind.all_placements`."""
        return self.placements(state, profile)

    def add(self, state: State, profile: str, place: int) -> State | None:
        """See `GpuKind.add`."""
        return next(
            (placement.state_after for placement in self.placements(state, profile) if placement.place == place), None
        )

    def remove(self, state: State, profile: str, place: int) -> State:
        """See `GpuKind.remove`."""
        lock, vgpu_count = state
        return (lock, vgpu_count - 1) if vgpu_count > 1 else self.empty

    def count_remaining(self, state: State, profile: str) -> int:
        """See `GpuKind.count_remaining`."""
        vgpu_count: int
        lock, vgpu_count = state
        if profile not in self.max_vgpus or lock not in (0, self._lock[profile]):
            return 0
        return max(0, self.max_vgpus[profile] - vgpu_count)

    def sizes_in_use(self, state: State) -> frozenset[int]:
        """See `GpuKind.sizes_in_use`."""
        return frozenset(mib for profile, mib in self.sizes.items() if self._lock[profile] == state[0])

    def fits(self, state: State, requested: Mapping[str, int]) -> bool:
        """See `GpuKind.fits`: all must be of one size.

        Profiles with a lower maximum are counted first, so that vGPUs counted later do not reduce their room.
        """
        profiles = [p for p, count in requested.items() if count]
        if not profiles:
            return True
        if any(p not in self.max_vgpus for p in profiles) or len({self._lock[p] for p in profiles}) > 1:
            return False
        total = 0
        for profile in sorted(profiles, key=lambda p: self.max_vgpus[p]):
            total += requested[profile]
            if total > self.count_remaining(state, profile):
                return False
        return True

    def add_rows(self, program: Program, state: State, columns: Columns, number: int) -> None:
        """See `GpuKind.add_rows`."""
        lock, vgpu_count = state
        add_one_size_rows(program, lock, vgpu_count, self._lock, self.max_vgpus, columns, number)


def add_one_size_rows(
    program: Program,
    lock: object,
    vgpu_count: int,
    locks: Mapping[str, object],
    max_vgpus: Mapping[str, int],
    columns: Columns,
    number: int,
) -> None:
    """Add the rows of so many GPUs, or GPU instances, each of which takes vGPUs of one size at a time.

    `lock`, `vgpu_count`: what is on it and stays. `locks`: what all vGPUs on it share with one of this profile.
    Of profiles of one size with different maxima, those with the lower one are created first.
    """
    columns_by_lock: dict[object, list[tuple[int, int]]] = {}
    for (profile, _), same in columns.items():
        columns_by_lock.setdefault(locks[profile], []).extend((max_vgpus[profile], column) for column in same)
    with_size = {size: program.add_column(number) for size in columns_by_lock if lock in (0, size)}
    program.add_row(dict.fromkeys(with_size.values(), 1), upper=number)
    for size, limited in columns_by_lock.items():
        for limit in sorted({limit for limit, _ in limited}):
            row = {column: 1 for other, column in limited if other <= limit}
            program.add_row({**row, with_size[size]: -max(0, limit - vgpu_count)}, upper=0)
