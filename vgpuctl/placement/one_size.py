# SPDX-License-Identifier: Apache-2.0
"""GPUs on which all vGPUs have the same framebuffer at a time: NVIDIA's time-sliced vGPUs without mixed sizes.

Source: NVIDIA's open kernel modules, kernel_vgpu_mgr.c. Drivers older than 550 take one type at a time (`one_type`).
"""

from __future__ import annotations

from collections.abc import Mapping

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

    def moves(self, state: State, profile: str) -> tuple[Move, ...]:
        """See `Kind.moves`. There is one: it does not matter where a vGPU is."""
        if self.left(state, profile) < 1:
            return ()
        number = state[1]
        return (Move(0, (self._lock[profile], number + 1)),)

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
        """See `Kind.fits`: all of one size, and no more than the one that allows the fewest."""
        some = [p for p, number in wanted.items() if number]
        if not some:
            return True
        if any(p not in self._most for p in some) or len({self._lock[p] for p in some}) > 1:
            return False
        return sum(wanted[p] for p in some) <= min(self.left(state, p) for p in some)

    def filling(self, worth: Mapping[str, float]) -> Filling:
        """See `Kind.filling`."""
        return _Filling(self, {p: w for p, w in worth.items() if p in self._most and w > 0})


class _Filling:
    """With one profile: two of one size share the GPU's places, so the one that is worth more takes them all."""

    def __init__(self, kind: OneSize, worth: Mapping[str, float]) -> None:
        self._kind = kind
        self._worth_of = worth

    def worth(self, state: State) -> float:
        """See `Filling.worth`."""
        return max((w * self._kind.left(state, p) for p, w in self._worth_of.items()), default=0.0)

    def counts(self, state: State) -> Mapping[str, int]:
        """See `Filling.counts`."""
        left = {p: self._kind.left(state, p) for p in self._worth_of}
        best = max(left, key=lambda p: self._worth_of[p] * left[p], default=None)
        return {best: left[best]} if best is not None and left[best] else {}
