# SPDX-License-Identifier: Apache-2.0
"""A small linear program, to which columns are added while it is solved: revised simplex with an explicit inverse.

Made for few rows (ten or so) and columns that are found one at a time. It starts from the slacks, so limits may not be
negative. In Bland's order where a step gains nothing, so it ends.
"""

from __future__ import annotations

from collections.abc import Sequence

_SMALL = 1e-9


class Simplex:
    """The most of `sum(gain * x)` with x >= 0 and, in each row, `sum(column * x) <= limit`."""

    def __init__(self, limits: Sequence[float]) -> None:
        rows = len(limits)
        self._columns: list[tuple[float, ...]] = [_unit(rows, i) for i in range(rows)]
        self._gains = [0.0] * rows
        self._basis = list(range(rows))
        self._inverse = [list(column) for column in self._columns]
        self._level = [float(limit) for limit in limits]

    def add(self, column: Sequence[float], gain: float) -> None:
        """Add a variable: what one of it takes of each row, and what it gains."""
        self._columns.append(tuple(column))
        self._gains.append(gain)

    @property
    def value(self) -> float:
        """What the solution gains."""
        return sum(self._gains[j] * level for j, level in zip(self._basis, self._level, strict=True))

    def duals(self) -> list[float]:
        """Return what one more of each row's limit would gain."""
        duals = [0.0] * len(self._basis)
        for j, row in zip(self._basis, self._inverse, strict=True):
            gain = self._gains[j]
            if gain:
                duals = [dual + gain * x for dual, x in zip(duals, row, strict=True)]
        return duals

    def solve(self) -> None:
        """Go on to the best solution with the columns there are."""
        gained = True
        while True:
            duals = self.duals()
            entering = self._entering(duals, first=not gained)
            if entering is None:
                return
            gained = self._pivot(entering) > _SMALL

    def _entering(self, duals: Sequence[float], *, first: bool) -> int | None:
        best, most = None, _SMALL
        basis = set(self._basis)
        for j, column in enumerate(self._columns):
            if j in basis:
                continue
            more = self._gains[j] - sum(map(float.__mul__, duals, column))
            if more > most:
                if first:
                    return j
                best, most = j, more
        return best

    def _pivot(self, entering: int) -> float:
        """Let a column in, and return how much of it there is now."""
        column = self._columns[entering]
        turned = [sum(map(float.__mul__, row, column)) for row in self._inverse]
        ratios = [
            (max(0.0, self._level[i]) / turned[i], self._basis[i], i) for i in range(len(turned)) if turned[i] > _SMALL
        ]
        if not ratios:
            raise ArithmeticError("the program has no end: a column takes nothing of any row")
        step, _, out = min(ratios)
        pivot = [x / turned[out] for x in self._inverse[out]]
        for i, row in enumerate(self._inverse):
            if i != out and turned[i]:
                part = turned[i]
                self._inverse[i] = [x - part * p for x, p in zip(row, pivot, strict=True)]
                self._level[i] -= part * step
        self._inverse[out], self._level[out], self._basis[out] = pivot, step, entering
        return step


def _unit(rows: int, i: int) -> tuple[float, ...]:
    return tuple(float(i == j) for j in range(rows))
