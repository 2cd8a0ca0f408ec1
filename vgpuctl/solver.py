# SPDX-License-Identifier: Apache-2.0
"""Integer programs, solved by HiGHS; the one module that imports it.

The package `highspy` is the extra `solver`: joint questions and moves need it, creating a VM never does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from vgpuctl import extras
from vgpuctl.errors import HostCannot
from vgpuctl.value import Value

if TYPE_CHECKING:
    from highspy import Highs, HighsLp

TIME_LIMIT_SECONDS = 20.0
"""A program that takes longer gets the best solution so far, which is not proven to be the best."""

_TOLERANCE = 1e-6
"""HiGHS' own for integers; objectives here differ by more."""

# HiGHS' presolve has called programs infeasible that have solutions, in 1.14 (github.com/ERGO-Code/HiGHS/issues/3090)
# and again in 1.16.0, on moves within two GPUs. Nothing could check such a "no", and without presolve it takes no
# longer here.


class SolverFailed(HostCannot):
    """HiGHS cannot be loaded, or found neither a solution nor a proof that there is none in time."""


class Solution(Value):
    """The value of each column. `is_proven`: no solution has a higher objective."""

    values: tuple[int, ...]
    objective: float
    is_proven: bool


class _Row(NamedTuple):
    coefficients: Mapping[int, float]
    lower: float
    upper: float


class Program:
    """An integer program: columns with bounds, and rows that limit sums of them."""

    def __init__(self) -> None:
        self._upper: list[int] = []
        self._rows: list[_Row] = []

    def add_column(self, upper: int) -> int:
        """Add an integer column between 0 and `upper`; return its number."""
        self._upper.append(upper)
        return len(self._upper) - 1

    def add_row(
        self, coefficients: Mapping[int, float], *, lower: float = float("-inf"), upper: float = float("inf")
    ) -> int:
        """Limit a sum of columns, each times its coefficient; return the number of the row."""
        self._rows.append(_Row(coefficients, lower, upper))
        return len(self._rows) - 1

    def set_lower(self, row: int, lower: float) -> None:
        """Change the lower limit of a row."""
        self._rows[row] = self._rows[row]._replace(lower=lower)

    def maximize(self, objective: Mapping[int, float], bound: float = float("inf")) -> Solution | None:
        """Return the best solution; None when there is none.

        `bound`: no solution is better than this, so one that reaches it is the best.

        Raises:
            SolverFailed: HiGHS cannot be loaded, or found no answer in time.
        """
        if not self._upper:  # HiGHS calls such a model empty, whatever its rows are
            is_possible = all(row.lower <= 0 <= row.upper for row in self._rows)
            return Solution((), 0.0, is_proven=True) if is_possible else None
        solver = _quiet_solver()
        from highspy import HighsModelStatus, SolutionStatus

        for option, value in (
            ("threads", 1),
            ("random_seed", 0),
            ("mip_rel_gap", 0.0),
            ("time_limit", TIME_LIMIT_SECONDS),
            ("presolve", "off"),
            ("objective_target", bound - _TOLERANCE),
        ):
            solver.setOptionValue(option, value)
        solver.passModel(self._model(objective))
        solver.run()
        status, info = solver.getModelStatus(), solver.getInfo()
        if status == HighsModelStatus.kInfeasible:
            return None
        if info.primal_solution_status != SolutionStatus.kSolutionStatusFeasible:
            raise SolverFailed(
                f"HiGHS found no answer in {TIME_LIMIT_SECONDS:.0f} seconds: {status.name}",
                hint="ask for fewer vGPUs or profiles at a time",
                check="solver",
            )
        ends = (HighsModelStatus.kOptimal, HighsModelStatus.kObjectiveTarget)
        return Solution(
            tuple(round(value) for value in solver.getSolution().col_value),
            info.objective_function_value,
            is_proven=status in ends,
        )

    def _model(self, objective: Mapping[int, float]) -> HighsLp:
        from highspy import HighsLp, HighsVarType, MatrixFormat, ObjSense

        model = HighsLp()
        model.sense_ = ObjSense.kMaximize
        model.num_col_ = len(self._upper)
        model.col_cost_ = [objective.get(column, 0.0) for column in range(len(self._upper))]
        model.col_lower_ = [0.0] * len(self._upper)
        model.col_upper_ = [float(upper) for upper in self._upper]
        model.integrality_ = [HighsVarType.kInteger] * len(self._upper)
        model.num_row_ = len(self._rows)
        model.row_lower_ = [row.lower for row in self._rows]
        model.row_upper_ = [row.upper for row in self._rows]
        model.a_matrix_.format_ = MatrixFormat.kRowwise
        model.a_matrix_.start_ = [0, *accumulate(len(row.coefficients) for row in self._rows)]
        model.a_matrix_.index_ = [column for row in self._rows for column in row.coefficients]
        model.a_matrix_.value_ = [value for row in self._rows for value in row.coefficients.values()]
        return model


def _quiet_solver() -> Highs:
    """Return HiGHS without its output: on stdout is the JSON document.

    Raises:
        SolverFailed: it cannot be loaded.
    """
    try:
        from highspy import Highs
    except ImportError as error:
        raise SolverFailed(
            f"this needs HiGHS (highspy), which {sys.executable} cannot load: {error}",
            hint=extras.install_command("highspy"),
            check="solver",
            library="highspy",
        ) from error

    class QuietHighs(Highs):
        def enableCallbacks(self) -> None:
            """Turn the output off first: the constructor of HiGHS 1.16 calls this, which prints its name."""
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()  # type: ignore[no-untyped-call]

    solver = QuietHighs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    return solver
