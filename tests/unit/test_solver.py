"""Integer programs: their best solution, proven or not, and what is said without HiGHS."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vgpuctl.solver import Program, SolverFailed


def knapsack(weights: tuple[int, ...], capacity: int) -> Program:
    program = Program()
    columns = [program.add_column(1) for _ in weights]
    program.add_row(dict(zip(columns, weights, strict=True)), upper=capacity)
    return program


def test_the_best_solution_is_in_whole_numbers() -> None:
    solution = knapsack((3, 4, 5), 8).maximize({0: 3, 1: 4, 2: 5})
    assert solution is not None
    assert (solution.values, solution.objective, solution.is_proven) == ((1, 0, 1), 8, True)


def test_a_lower_limit_that_cannot_be_kept_leaves_no_solution() -> None:
    program = knapsack((3, 4, 5), 8)
    row = program.add_row({0: 1, 1: 1, 2: 1}, lower=3)
    assert program.maximize({0: 1}) is None
    program.set_lower(row, 2)
    solution = program.maximize({2: 1})
    assert solution is not None
    assert solution.values == (1, 0, 1)


def test_what_reaches_the_bound_is_the_best() -> None:
    solution = knapsack((3, 4, 5), 8).maximize({0: 3, 1: 4, 2: 5}, 8)
    assert solution is not None
    assert (solution.objective, solution.is_proven) == (8, True)


def test_two_moves_within_two_gpus_are_found() -> None:
    """HiGHS 1.16.0 calls this one infeasible with its presolve: a move on one GPU frees a place on the other."""
    program = Program()
    for upper in (3, 3, 3, 1, 1, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1):
        program.add_column(upper)
    for columns in ((0, 3), (1, 3, 4), (2, 4), (5, 8), (6, 8, 9), (7, 9)):
        program.add_row(dict.fromkeys(columns, 1), upper=1)
    program.add_row(dict.fromkeys((0, 1, 2, 5, 6, 7), 1), lower=2, upper=2)
    program.add_row(dict.fromkeys((3, 4, 8, 9), 1), lower=1, upper=1)
    for kept, column in ((10, 0), (11, 1), (12, 8)):
        program.add_row({kept: 1, column: -1}, upper=0)
    for columns in ((0, 3, 13), (1, 3, 13, 4, 14), (2, 4, 14), (5, 8, 15), (6, 8, 15, 9, 16), (7, 9, 16)):
        program.add_row(dict.fromkeys(columns, 1), upper=1)
    program.add_row(dict.fromkeys((13, 14, 15, 16), 1), lower=1)
    solution = program.maximize({10: 1, 11: 1, 12: 1})
    assert solution is not None
    assert solution.objective == 2


def test_no_answer_in_time_is_neither_yes_nor_no(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program()
    columns = [program.add_column(1000) for _ in range(60)]
    for offset in range(7):
        row = {column: 7919 * (column + 3) % (1009 + offset) + 1 for column in columns}
        program.add_row(row, lower=123_457 + offset, upper=123_457 + offset)
    monkeypatch.setattr("vgpuctl.solver.TIME_LIMIT_SECONDS", 0.0)
    with pytest.raises(SolverFailed, match="no answer"):
        program.maximize({0: 1})


@pytest.mark.parametrize(("lower", "possible"), [(0, True), (1, False)])
def test_without_columns_the_rows_decide(lower: float, possible: bool) -> None:
    program = Program()
    program.add_row({}, lower=lower)
    solution = program.maximize({})
    assert (solution is not None) == possible


def test_without_highs_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(SolverFailed) as missing:
        knapsack((1,), 1).maximize({0: 1})
    assert missing.value.hint == f"{sys.executable} -m pip install 'vgpuctl[solver]'"


def test_nothing_is_printed() -> None:
    """HiGHS prints its name at most once in a process."""
    code = (
        "from vgpuctl.solver import Program; program = Program(); program.add_column(1); "
        "program.maximize({0: 1}); program.maximize({0: 1})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
