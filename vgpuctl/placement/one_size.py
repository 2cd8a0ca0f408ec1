# SPDX-License-Identifier: Apache-2.0
"""GPUs on which all vGPUs have the same framebuffer at a time: NVIDIA's time-sliced vGPUs without mixed sizes.

Source: NVIDIA's open kernel modules, kernel_vgpu_mgr.c. Drivers older than 550 take one type at a time (`one_type`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from vgpuctl.placement.kind import Filling, Move, State


class OneSize:
    """A kind whose state is (what all on it must be, how many there are); (0, 0) when it is empty."""

    def __init__(
        self,
        name: str,
        framebuffer_mib: int,
        sizes: Mapping[str, int],
        most: Mapping[str, int],
        *,
        one_type: bool = False,
    ) -> None:
        """`most`: how many of each profile the GPU takes, also counting the carriers that it has."""
        self.name = name
        self.framebuffer_mib = framebuffer_mib
        self.sizes = dict(sizes)
        self.empty: State = (0, 0)
        self._most = dict(most)
        self._lock: dict[str, object] = {p: p if one_type else mib for p, mib in sizes.items()}

    def lock(self, profile: str) -> object:
        """Return what all on a GPU must be beside one of this profile: its framebuffer, or its own kind."""
        return self._lock[profile]

    def takes(self, profile: str) -> Hashable:
        """See `Kind.takes`."""
        return (self._lock[profile], self._most[profile]) if profile in self._most else None

    def moves(self, state: State, profile: str) -> tuple[Move, ...]:
        """See `Kind.moves`. There is one: it does not matter where a vGPU is."""
        if self.left(state, profile) < 1:
            return ()
        number = state[1]
        return (Move(0, (self._lock[profile], number + 1)),)

    def everywhere(self, state: State, profile: str) -> tuple[Move, ...]:
        """See `Kind.everywhere`."""
        return self.moves(state, profile)

    def at(self, state: State, profile: str, place: int) -> State | None:
        """See `Kind.at`."""
        return next((move.after for move in self.moves(state, profile) if move.place == place), None)

    def without(self, state: State, profile: str, place: int) -> State:
        """See `Kind.without`."""
        lock, number = state
        return (lock, number - 1) if number > 1 else self.empty

    def left(self, state: State, profile: str) -> int:
        """See `Kind.left`."""
        number: int
        lock, number = state
        if profile not in self._most or lock not in (0, self._lock[profile]):
            return 0
        return max(0, self._most[profile] - number)

    def fits(self, state: State, wanted: Mapping[str, int]) -> bool:
        """See `Kind.fits`: all of one size. Those that allow fewer beside them come first; later ones do not count."""
        some = [p for p, number in wanted.items() if number]
        if not some:
            return True
        if any(p not in self._most for p in some) or len({self._lock[p] for p in some}) > 1:
            return False
        total = 0
        for profile in sorted(some, key=lambda p: self._most[p]):
            total += wanted[profile]
            if total > self.left(state, profile):
                return False
        return True

    def filling(self, worth: Mapping[str, float]) -> Filling:
        """See `Kind.filling`."""
        return _Filling(self, {p: w for p, w in worth.items() if p in self._most and w > 0})


class _Filling:
    """With the profiles of one size: the one that is worth most takes what it can, then the next."""

    def __init__(self, kind: OneSize, worth: Mapping[str, float]) -> None:
        self._kind = kind
        self._worth_of = worth
        self._sizes: dict[object, list[str]] = {}
        for profile in sorted(worth, key=lambda p: (-worth[p], p)):
            self._sizes.setdefault(kind.lock(profile), []).append(profile)

    def worth(self, state: State) -> float:
        """See `Filling.worth`."""
        return max((self._total(one) for one in self._ways(state)), default=0.0)

    def counts(self, state: State) -> Mapping[str, int]:
        """See `Filling.counts`."""
        return {p: n for p, n in max(self._ways(state), key=self._total, default={}).items() if n}

    def _total(self, counts: Mapping[str, int]) -> float:
        return sum(self._worth_of[p] * n for p, n in counts.items())

    def _ways(self, state: State) -> list[dict[str, int]]:
        """Return the best filling with each size. A profile leaves to those that allow more what it does not take."""
        ways = []
        for profiles in self._sizes.values():
            left = {p: self._kind.left(state, p) for p in profiles}
            counts: dict[str, int] = {}
            for profile in profiles:
                wider = [limit for limit in left.values() if limit >= left[profile]]
                taken = [sum(n for p, n in counts.items() if left[p] <= limit) for limit in wider]
                counts[profile] = max(0, min(limit - n for limit, n in zip(wider, taken, strict=True)))
            ways.append(counts)
        return ways
