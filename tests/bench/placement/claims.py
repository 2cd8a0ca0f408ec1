# SPDX-License-Identifier: Apache-2.0
"""The claims about placement in numbers, each with its measurement: reached or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.bench.placement.fleets import BY_NAME, PRO_6000_SETS, SAME_SIZE
from tests.bench.placement.runs import (
    ARRIVALS,
    CHURN,
    MIGRATION,
    MOVERS,
    MOVING,
    OFFERED,
    OURS,
    POLICIES,
    UNRANKED,
    Row,
)
from tests.bench.placement.table import Difference, Results, average, difference

FGD = ("fgd", "fgd-best-fit")
"""Fragmentation gradient descent as published, and with best-fit ties: a claim over it is over the better."""
RANKED = tuple(name for name in POLICIES if name not in (OURS, UNRANKED))
FULL_LOADS = (100, 130)


class Claim(NamedTuple):
    """A claim, its measurement, and whether it was reached; `reached` is None where nothing was run."""

    says: str
    found: str
    reached: bool | None


class Cell(NamedTuple):
    """A fleet at a load, and least-waste less another there."""

    setting: str
    gpus: int
    workload: str
    load: int
    policy: str
    difference: Difference


def cells(results: Results, policies: Sequence[str], workload: str) -> Iterator[Cell]:
    """Return least-waste less each of these, wherever both were run."""
    for setting, gpus, kind, load, policy in sorted(results):
        ours = results.get((setting, gpus, workload, load, OURS))
        if kind == workload and policy in policies and ours:
            found = difference(ours, results[setting, gpus, workload, load, policy])
            if found is not None:
                yield Cell(setting, gpus, workload, load, policy, found)


def claims(results: Results) -> Iterator[Claim]:
    """Return all claims about admitted requests."""
    yield _never_behind(results)
    yield _optimal_on_one_model(results)
    yield _over_fgd(results, "a40-a16", 16, 3)
    yield _over_fgd(results, "a40-a16", 160, 5)
    for setting in ("h100-mig", "h100-mig-uniform", "h100-mig-uniform-5"):
        yield _over_fgd(results, setting, 16, 1)
        yield _over_fgd(results, setting, 160, 1.8 if setting == "h100-mig" else 1)
    for name, _, _ in PRO_6000_SETS:
        for setting in (f"pro6000-{name}", f"pro6000-{name}-even"):
            for gpus in (16, 160):
                yield _over_fgd(results, setting, gpus, 3 if name == "2-24" else 5)
    yield _not_less_than_same_size(results)
    yield _near_migration(results, 160, one=0.5, two=1)
    yield _near_migration(results, 16, one=1.5, two=6)
    yield _over_fgd(results, "a40-a16", 160, 3, CHURN)
    yield _over_fgd(results, "h100-mig", 160, 0.5, CHURN)
    yield _over_fgd(results, "a40-a16", 16, 3, CHURN)
    yield _over_fgd(results, "h100-mig", 16, 0.5, CHURN)
    for policy in MOVERS:
        yield _gap_by_moves(results, "two models", ("a40-a16", "a40-a10"), 90, policy)
        yield _gap_by_moves(results, "MIG", ("h100-mig", "h100-mig-uniform-5"), 70, policy)


def _gap_by_moves(results: Results, what: str, settings: Sequence[str], share: float, policy: str) -> Claim:
    """How much of what free migration has more than least-waste moves win back.

    At most two for a request: for each that is refused by itself, or on average for all that least-waste refuses.
    """
    how = "each by itself" if policy == MOVING else "on average, saved up"
    says = f"{what}, 16 GPUs, 100 %: at most 2 moves for a refused request, {how}, and 15 for 100 requests win back "
    says += f"{share:g} % of what free migration has more"
    gap = won = moves = asked = refused = 0.0
    for setting in settings:
        at = (setting, 16, ARRIVALS, 100)
        ours, moving, free, offered = (results.get((*at, p), {}) for p in (OURS, policy, MIGRATION, OFFERED))
        for seed in ours.keys() & moving.keys() & free.keys() & offered.keys():
            mine = float(ours[seed].framebuffer_percent)
            gap += max(0.0, float(free[seed].framebuffer_percent) - mine)
            won += float(moving[seed].framebuffer_percent) - mine
            moves += moving[seed].moves
            asked += _number(offered[seed])
            refused += _number(offered[seed]) - _number(ours[seed])
    if not gap:
        return Claim(says, "not run", None)
    found = (
        f"{100 * won / gap:.0f} %, {moves / refused:.2f} moves for a refused request, {100 * moves / asked:.2f} for 100"
    )
    few = moves <= 2 * refused and moves <= 0.15 * asked
    return Claim(says, found, 100 * won / gap >= share and few)


def _number(row: Row) -> int:
    return sum(int(n) for n in row.counts.split())


def _never_behind(results: Results) -> Claim:
    says = "never more than 0.5 point behind the best ranked peer (arrivals; any fleet, size and load)"
    worst = min(cells(results, RANKED, ARRIVALS), key=lambda c: c.difference.mean, default=None)
    if worst is None:
        return Claim(says, "not run", None)
    return Claim(says, f"least {_said(worst)}", worst.difference.mean >= -0.5)


def _optimal_on_one_model(results: Results) -> Claim:
    says = "one model, same size: what free migration admits, in every run"
    settings = [name for name, s in BY_NAME.items() if len(s.cards) == 1 and s.cards[0].most]
    gaps = [
        float(rows[seed].framebuffer_percent) - float(ours[seed].framebuffer_percent)
        for (setting, gpus, kind, load, policy), rows in results.items()
        if setting in settings and policy == MIGRATION
        for ours in [results.get((setting, gpus, kind, load, OURS), {})]
        for seed in ours.keys() & rows.keys()
    ]
    if not gaps:
        return Claim(says, "not run", None)
    missed = sum(abs(gap) > 1e-9 for gap in gaps)
    return Claim(says, f"{len(gaps) - missed} of {len(gaps)} runs; at most {max(gaps):.2f} points less", not missed)


def _over_fgd(results: Results, setting: str, gpus: int, points: float, workload: str = ARRIVALS) -> Claim:
    says = f"{BY_NAME[setting].title}, {gpus} GPUs{', churn' * (workload == CHURN)}: at least {points:g} over FGD"
    found = [
        c for c in cells(results, FGD, workload) if c.setting == setting and c.gpus == gpus and c.load in FULL_LOADS
    ]
    if not found:
        return Claim(says, "not run", None)
    least = [
        min((c for c in found if c.load == load), key=lambda c: c.difference.mean)
        for load in sorted({c.load for c in found})
    ]
    text = ", ".join(f"{_points(c.difference)} at {c.load} %" for c in least)
    return Claim(says, text, all(c.difference.mean >= points for c in least))


def _not_less_than_same_size(results: Results) -> Claim:
    says = "RTX PRO 6000: mixed size admits no more than 0.2 point less than the same demand gets in same-size mode"
    found: list[Cell] = []
    for (setting, gpus, workload, load, policy), rows in results.items():
        twin = results.get((setting + SAME_SIZE, gpus, workload, load, OURS))
        if policy == OURS and workload == ARRIVALS and twin:
            less = difference(rows, twin)
            if less:
                found.append(Cell(setting, gpus, workload, load, "same size", less))
    worst = min(found, key=lambda c: c.difference.mean, default=None)
    if worst is None:
        return Claim(says, "not run", None)
    return Claim(says, f"least {_said(worst)}", worst.difference.mean >= -0.2)


def _near_migration(results: Results, gpus: int, *, one: float, two: float) -> Claim:
    """`two`: at 16 GPUs it is meant for 100 % only."""
    says = f"{gpus} GPUs: within {one:g} point of free migration; two models {two:g}{' (at 100 %)' * (gpus == 16)}"
    failed: list[Cell] = []
    found = [c for c in cells(results, [MIGRATION], ARRIVALS) if c.gpus == gpus]
    for cell in found:
        both = len(BY_NAME[cell.setting].cards) > 1
        limit = two if both and (gpus != 16 or cell.load == 100) else one
        if cell.difference.mean < -limit:
            failed.append(cell)
    if not found:
        return Claim(says, "not run", None)
    worst = "; ".join(_said(c) for c in failed) if failed else _said(min(found, key=lambda c: c.difference.mean))
    return Claim(
        says,
        f"{len(found) - len(failed)} of {len(found)} fleets and loads; {'not' if failed else 'least'}: {worst}",
        not failed,
    )


def losses(results: Results, workload: str) -> list[Cell]:
    """Return where least-waste has less than a ranked peer, the worst first; of each fleet and load the best peer."""
    worst: dict[tuple[str, int, int], Cell] = {}
    for cell in cells(results, RANKED, workload):
        key = (cell.setting, cell.gpus, cell.load)
        if key not in worst or cell.difference.mean < worst[key].difference.mean:
            worst[key] = cell
    return sorted((c for c in worst.values() if c.difference.mean < -0.005), key=lambda c: c.difference.mean)


def best_peer(results: Results, setting: str, gpus: int, workload: str, load: int) -> str | None:
    """Return the ranked peer that has the most framebuffer on average."""
    there = [p for p in RANKED if (setting, gpus, workload, load, p) in results]
    return max(there, key=lambda p: average(results[setting, gpus, workload, load, p]), default=None)


def _points(found: Difference) -> str:
    return f"{found.mean:+.2f} ± {found.error:.2f}"


def _said(cell: Cell) -> str:
    return f"{_points(cell.difference)} against {cell.policy} ({cell.setting}, {cell.gpus} GPUs, {cell.load} %)"
