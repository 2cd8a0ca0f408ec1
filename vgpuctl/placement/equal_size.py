# SPDX-License-Identifier: Apache-2.0
"""GPUs on which all vGPUs have the same framebuffer at a time: NVIDIA's time-sliced vGPUs without mixed sizes.

Source: NVIDIA's open kernel modules, kernel_vgpu_mgr.c. Drivers older than 550 take one type at a time (`one_type`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from vgpuctl.placement.gpu_kind import Filling, Placement, State


class EqualSizeKind:
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
        self.name = name
        self.framebuffer_mib = framebuffer_mib
        self.sizes = dict(sizes)
        self.empty: State = (0, 0)
        self._max_vgpus = dict(max_vgpus)
        self._lock: dict[str, object] = {p: p if one_type else mib for p, mib in sizes.items()}

    def lock_of(self, profile: str) -> object:
        """Return what all vGPUs on a GPU with this profile must share: its framebuffer, or its type."""
        return self._lock[profile]

    def footprint(self, profile: str) -> Hashable:
        """See `GpuKind.footprint`."""
        return (self._lock[profile], self._max_vgpus[profile]) if profile in self._max_vgpus else None

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
        if profile not in self._max_vgpus or lock not in (0, self._lock[profile]):
            return 0
        return max(0, self._max_vgpus[profile] - vgpu_count)

    def fits(self, state: State, requested: Mapping[str, int]) -> bool:
        """See `GpuKind.fits`: all must be of one size.

        Profiles with a lower maximum are counted first, so that vGPUs counted later do not reduce their room.
        """
        profiles = [p for p, count in requested.items() if count]
        if not profiles:
            return True
        if any(p not in self._max_vgpus for p in profiles) or len({self._lock[p] for p in profiles}) > 1:
            return False
        total = 0
        for profile in sorted(profiles, key=lambda p: self._max_vgpus[p]):
            total += requested[profile]
            if total > self.count_remaining(state, profile):
                return False
        return True

    def best_filling(self, values: Mapping[str, float]) -> Filling:
        """See `GpuKind.best_filling`."""
        return _EqualSizeFilling(self, {p: w for p, w in values.items() if p in self._max_vgpus and w > 0})


class _EqualSizeFilling:
    """A filling with profiles of one size: the most valuable profile takes what it can, then the next."""

    def __init__(self, kind: EqualSizeKind, values: Mapping[str, float]) -> None:
        self._kind = kind
        self._values = values
        self._sizes: dict[object, list[str]] = {}
        for profile in sorted(values, key=lambda p: (-values[p], p)):
            self._sizes.setdefault(kind.lock_of(profile), []).append(profile)

    def value(self, state: State) -> float:
        """See `Filling.value`."""
        return max((self._total_value(counts) for counts in self._fillings_by_size(state)), default=0.0)

    def counts(self, state: State) -> Mapping[str, int]:
        """See `Filling.counts`."""
        return {p: n for p, n in max(self._fillings_by_size(state), key=self._total_value, default={}).items() if n}

    def _total_value(self, counts: Mapping[str, int]) -> float:
        return sum(self._values[p] * n for p, n in counts.items())

    def _fillings_by_size(self, state: State) -> list[dict[str, int]]:
        """Return the best filling with each size. A profile leaves its unused room to profiles with a higher limit."""
        fillings = []
        for profiles in self._sizes.values():
            limits = {p: self._kind.count_remaining(state, p) for p in profiles}
            counts: dict[str, int] = {}
            for profile in profiles:
                wider = [limit for limit in limits.values() if limit >= limits[profile]]
                taken = [sum(n for p, n in counts.items() if limits[p] <= limit) for limit in wider]
                counts[profile] = max(0, min(limit - n for limit, n in zip(wider, taken, strict=True)))
            fillings.append(counts)
        return fillings
