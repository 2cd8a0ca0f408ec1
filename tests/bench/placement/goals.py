# SPDX-License-Identifier: Apache-2.0
"""What the default policy was meant to reach, and what was measured: differences in percentage points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import mean
from typing import NamedTuple

from tests.bench.placement.fleets import MIG, MIXED, ONE_SIZE, OTHER_PAIR, SETTINGS, VDI_PAIR
from tests.bench.placement.results import Results
from tests.bench.placement.runs import ARRIVALS, BEST_FIT, CHURN, FGD, FGD_BEST_FIT, FIRST_FIT, OURS, Cell, Row

PEERS = (FIRST_FIT, BEST_FIT, FGD, FGD_BEST_FIT)
FULL = (100, 130)
BEHIND = 1.5


class Goal(NamedTuple):
    """A sentence, what was measured in its worst cell, and whether it holds there; None: not measured."""

    says: str
    measured: str
    reached: bool | None


def goals(results: Results) -> Iterator[Goal]:
    """Yield every goal."""
    rows = list(results.values())
    one = _of(rows, ONE_SIZE)
    fullest = _where(one, lambda r: r.workload == ARRIVALS and r.policy != FIRST_FIT)
    yield _worst("one model, one size, arrivals: as much as best-fit and FGD", fullest, lambda r: r.difference >= 0)
    churn = _where(one, lambda r: r.workload == CHURN)
    tied = _where(churn, lambda r: r.policy != FIRST_FIT)
    yield _worst("the same in churn: within 0.5 of best-fit and FGD", tied, lambda r: r.difference >= -0.5)
    behind_first = _where(churn, lambda r: r.policy == FIRST_FIT)
    yield _worst("the same in churn: not behind first-fit", behind_first, lambda r: _at_best(r) >= 0)
    for group in (MIXED, MIG):
        peers = _where(_of(rows, group), lambda r: r.policy in PEERS)
        says = f"one model, {group}: no cell more than 0.5 behind any of them, less two standard errors"
        yield _worst(
            says, peers, lambda r: r.difference + 2 * r.error >= -0.5, key=lambda r: r.difference + 2 * r.error
        )
    for name, least in (("2-8 GiB", 4), ("2-8 GiB even", 6), ("2-16 GiB even", 4.5), ("2-24 GiB even", 3)):
        setting = f"RTX PRO 6000 mixed, {name}"
        chosen = [r for r in _arrivals_from(rows, 2) if r.setting == setting and r.policy in (FGD, FGD_BEST_FIT)]
        yield _at_least(f"{setting}, from 2 GPUs: at least {least:g} over FGD at 100 and 130 %", chosen, least)
    for setting in ("H100 MIG, weighted", "H100 MIG, uniform"):
        chosen = [r for r in _arrivals_from(rows, 4) if r.setting == setting and r.policy == FIRST_FIT]
        yield _at_least(f"{setting}, from 4 GPUs: at least 0.8 over first-fit at 100 and 130 %", chosen, 0.8)
    vdi = [r for r in _of(rows, VDI_PAIR) if r.gpus > 1 and r.workload == ARRIVALS and r.policy in PEERS]
    vdi = [r for r in vdi if r.policy != BEST_FIT]
    for load, least in ((100, 2.0), (130, 4.0)):
        says = f"two models, VDI, 2 to 16 GPUs, {load} %: at least {least:g} over first-fit in both orders and over FGD"
        yield _at_least(says, [r for r in vdi if r.load == load], least)
    yield _at_least("the same at 80 %: not more than 0.5 behind", [r for r in vdi if r.load == 80], -0.5)
    yield _over_the_mean(results)


def losses(results: Results) -> list[Row]:
    """Return the cells of other mixes of two models in which the better of first-fit and best-fit has much more."""
    better = [min(pair, key=lambda r: r.difference) for pair in _pairs(results)]
    return sorted((r for r in better if r.difference < -BEHIND), key=lambda r: r.difference)


def _over_the_mean(results: Results) -> Goal:
    says = "two models, other mixes and pairs: on average at least 1.5 above the mean of first-fit and best-fit"
    gains = [mean(row.difference for row in pair) for pair in _pairs(results)]
    if not gains:
        return Goal(says, "not measured", None)
    return Goal(says, f"{mean(gains):+.2f} in {len(gains)} cells", mean(gains) >= 1.5)


def _pairs(results: Results) -> list[tuple[Row, Row]]:
    """Return the rows of first-fit and best-fit of each cell and load of other mixes, from 2 GPUs up, arrivals."""
    keys = [(cell, load) for cell, load, policy in results if policy == OURS]
    chosen = [(c, n) for c, n in keys if _is_other_pair(c) and n >= 80]
    return [(results[c, n, FIRST_FIT], results[c, n, BEST_FIT]) for c, n in chosen]


def _is_other_pair(cell: Cell) -> bool:
    return SETTINGS[cell.setting].group == OTHER_PAIR and cell.gpus > 1 and cell.workload == ARRIVALS


def _at_best(row: Row) -> float:
    return row.difference + 2 * row.error


def _of(rows: Iterable[Row], group: str) -> list[Row]:
    return [row for row in rows if SETTINGS[row.setting].group == group]


def _where(rows: Iterable[Row], condition: Callable[[Row], bool]) -> list[Row]:
    return [row for row in rows if condition(row)]


def _arrivals_from(rows: Iterable[Row], gpus: int) -> list[Row]:
    return [row for row in rows if row.workload == ARRIVALS and row.gpus >= gpus and row.load in FULL]


def _at_least(says: str, rows: list[Row], least: float) -> Goal:
    return _worst(says, rows, lambda row: row.difference >= least)


def _worst(
    says: str, rows: list[Row], holds: Callable[[Row], bool], key: Callable[[Row], float] = lambda row: row.difference
) -> Goal:
    if not rows:
        return Goal(says, "not measured", None)
    worst = min(rows, key=key)
    failed = sum(not holds(row) for row in rows)
    count = f"; {failed} of {len(rows)} cells below it" if failed else ""
    return Goal(says, f"least {describe(worst)}{count}", not failed)


def describe(row: Row) -> str:
    """Return a difference with its standard error, and where it was measured."""
    where = f"{row.setting}, {row.gpus} GPUs, {row.load} %, {row.workload}"
    return f"{row.difference:+.2f} ± {row.error:.2f} against {row.policy} ({where})"
