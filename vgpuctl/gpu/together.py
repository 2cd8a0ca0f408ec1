# SPDX-License-Identifier: Apache-2.0
"""Whether vGPUs that cover neighbouring slices fit together between what is on a GPU already."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

Shape = tuple[int, tuple[int, ...]]
"""What a vGPU covers: so many slices, from one of these on, the lowest first."""

_Numbers = tuple[tuple[int, int], ...]
"""So many of each shape, by its number."""


class Together:
    """What fits in the free slices of one state; it remembers what was asked.

    Filled from left to right, vGPUs in whatever order, only where the last one ends counts for those to come. So there
    is one answer for each number of each shape: how few slices they need. All that are asked for at once cover no
    more slices than are free, which keeps these few.
    """

    def __init__(self, free: int) -> None:
        """`free`: a bit for each slice that is free."""
        self._free = free
        self._shapes: dict[Shape, int] = {}
        self._sizes: list[int] = []
        self._starts: list[list[int]] = []
        self._ends: dict[_Numbers, int | None] = {(): 0}

    def fit(self, wanted: Mapping[Shape, int]) -> bool:
        """Say whether so many of each shape fit together, exactly."""
        if sum(number * size for (size, _), number in wanted.items()) > self._free.bit_count():
            return False
        return self._end(tuple(sorted((self._number(shape), n) for shape, n in wanted.items() if n))) is not None

    def _number(self, shape: Shape) -> int:
        """Return the number of a shape, with the free places that it has."""
        known = self._shapes.get(shape)
        if known is None:
            known = self._shapes[shape] = len(self._shapes)
            size, starts = shape
            mask = (1 << size) - 1
            self._sizes.append(size)
            self._starts.append([start for start in starts if (self._free >> start) & mask == mask])
        return known

    def _end(self, numbers: _Numbers) -> int | None:
        """Return the lowest slice behind all of these when they are packed to the left; None: they do not fit."""
        if numbers not in self._ends:
            ends = [self._with_last(numbers, n) for n in range(len(numbers))]
            self._ends[numbers] = min((end for end in ends if end is not None), default=None)
        return self._ends[numbers]

    def _with_last(self, numbers: _Numbers, last: int) -> int | None:
        """Return the same when one of this shape is the last."""
        shape, number = numbers[last]
        before = self._end((*numbers[:last], *(((shape, number - 1),) if number > 1 else ()), *numbers[last + 1 :]))
        if before is None:
            return None
        starts = self._starts[shape]
        at = bisect_left(starts, before)
        return starts[at] + self._sizes[shape] if at < len(starts) else None
