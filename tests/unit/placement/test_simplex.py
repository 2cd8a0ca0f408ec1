"""The linear program, against every corner."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.placement.simplex import Simplex

ROWS = 3


def best_corner(limits: list[int], columns: list[list[int]], gains: list[int]) -> Fraction:
    """Return the best value over all corners: every choice of ROWS columns or slacks that solves the rows."""
    whole = [*columns, *([int(i == j) for j in range(ROWS)] for i in range(ROWS))]
    worths = [*gains, *([0] * ROWS)]
    best = Fraction(0)
    for basis in combinations(range(len(whole)), ROWS):
        levels = solved([whole[j] for j in basis], limits)
        if levels is not None and min(levels) >= 0:
            best = max(best, sum((worths[j] * level for j, level in zip(basis, levels, strict=True)), Fraction(0)))
    return best


def solved(columns: list[list[int]], limits: list[int]) -> list[Fraction] | None:
    """Solve a square system by elimination; None: it has not one solution."""
    rows = [[Fraction(column[i]) for column in columns] + [Fraction(limits[i])] for i in range(ROWS)]
    for i in range(ROWS):
        pivot = next((r for r in range(i, ROWS) if rows[r][i]), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for r in range(ROWS):
            if r != i:
                rows[r] = [x - rows[r][i] * y for x, y in zip(rows[r], rows[i], strict=True)]
    return [row[-1] for row in rows]


numbers = st.lists(st.integers(0, 4), min_size=ROWS, max_size=ROWS)


@given(limits=numbers, columns=st.lists(numbers.filter(any), min_size=1, max_size=5), data=st.data())
def test_columns_added_one_at_a_time_come_to_the_best_corner(
    limits: list[int], columns: list[list[int]], data: st.DataObject
) -> None:
    gains = data.draw(st.lists(st.integers(0, 9), min_size=len(columns), max_size=len(columns)))
    program = Simplex([float(x) for x in limits])
    for column, gain in zip(columns, gains, strict=True):
        program.add([float(x) for x in column], float(gain))
        program.solve()
    assert program.value == pytest.approx(float(best_corner(limits, columns, gains)))
    duals = program.duals()
    assert min(duals) >= -1e-9
    assert sum(d * x for d, x in zip(duals, limits, strict=True)) == pytest.approx(program.value)


def test_an_unbounded_program_fails() -> None:
    program = Simplex([1.0])
    program.add([0.0], 1.0)
    with pytest.raises(ArithmeticError, match="no end"):
        program.solve()
