# SPDX-License-Identifier: Apache-2.0
"""What free slices are worth when only so many vGPUs may be made in them, as on a GPU with few virtual functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

Place = tuple[int, float, str]
"""Where a profile begins, its worth, and its name."""


class Few:
    """Best fillings of runs of free slices by how many vGPUs they have; each place is weighed once for all states.

    `ending`: for each slice the places that end before it.
    """

    def __init__(self, ending: Sequence[Sequence[Place]]) -> None:
        self._ending = ending
        self._most = 0
        self._rows: dict[int, list[list[float]]] = {}

    def worth(self, runs: Iterable[tuple[int, int]], most: int) -> float:
        """Return the most that runs (first slice, the one after the last) are worth with at most so many vGPUs."""
        if most > self._most:
            self._most, self._rows = most, {}
        best = [0.0]
        for start, end in runs:
            here = self._row(start, end)
            best = [
                max(best[n - i] + here[i] for i in range(max(0, n - len(best) + 1), min(n, len(here) - 1) + 1))
                for n in range(min(most, len(best) + len(here) - 2) + 1)
            ]
        return best[-1]

    def _row(self, start: int, end: int) -> list[float]:
        """Return what a run is worth with at most 0, 1, 2 … vGPUs, as far as more of them are worth more."""
        row = self._rows.setdefault(start, [[0.0]])
        for places in self._ending[start + len(row) : end + 1]:
            best = list(row[-1])
            for begin, worth, _ in places:
                for number, before in enumerate(row[begin - start][: self._most] if begin >= start else (), 1):
                    if number == len(best):
                        best.append(best[-1])
                    best[number] = max(best[number], before + worth)
            row.append(list(accumulate(best, max)))
        return row[end - start]
