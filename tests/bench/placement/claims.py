# SPDX-License-Identifier: Apache-2.0
"""The claims about placement in numbers: each with its measurement, and whether it is reached."""

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
"""Fragmentation gradient descent as published, and with best-fit ties. A claim must beat the better of the two."""
RANKED = tuple(name for name in POLICIES if name not in (OURS, UNRANKED))
FULL_LOADS = (100, 130)


class Claim(NamedTuple):
    """A claim, its measurement, and whether it is reached. `reached` is None if nothing was run."""

    says: str
    measured: str
    reached: bool | None


class Cell(NamedTuple):
    """A fleet at a load, and the result of least-waste minus that of `policy`."""

    setting: str
    gpus: int
    workload: str
    load: int
    policy: str
    difference: Difference


def cells(results: Results, policies: Sequence[str], workload: str) -> Iterator[Cell]:
    """Yield least-waste minus each of these policies, wherever both were run."""
    for setting, gpus, kind, load, policy in sorted(results):
        ours = results.get((setting, gpus, workload, load, OURS))
        if kind == workload and policy in policies and ours:
            result = difference(ours, results[setting, gpus, workload, load, policy])
            if result is not None:
                yield Cell(setting, gpus, workload, load, policy, result)


def claims(results: Results) -> Iterator[Claim]:
    """Yield all claims about admitted requests."""
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
    """Claim how much of the gap between least-waste and free migration is closed by moves.

    A request gets at most two moves: each refused request by itself, or on average over all that least-waste refuses.
    """
    how = "each by itself" if policy == MOVING else "on average, saved up"
    says = f"{what}, 16 GPUs, 100 %: at most 2 moves for a refused request, {how}, and 15 for 100 requests win back "
    says += f"{share:g} % of what free migration has more"
    gap = won = moves = total = refused = 0.0
    for setting in settings:
        at = (setting, 16, ARRIVALS, 100)
        ours, moving, free, offered = (results.get((*at, p), {}) for p in (OURS, policy, MIGRATION, OFFERED))
        for seed in ours.keys() & moving.keys() & free.keys() & offered.keys():
            without_moves = float(ours[seed].framebuffer_percent)
            gap += max(0.0, float(free[seed].framebuffer_percent) - without_moves)
            won += float(moving[seed].framebuffer_percent) - without_moves
            moves += moving[seed].moves
            total += _total(offered[seed])
            refused += _total(offered[seed]) - _total(ours[seed])
    if not gap:
        return Claim(says, "not run", None)
    result = (
        f"{100 * won / gap:.0f} %, {moves / refused:.2f} moves for a refused request, {100 * moves / total:.2f} for 100"
    )
    within_limits = moves <= 2 * refused and moves <= 0.15 * total
    return Claim(says, result, 100 * won / gap >= share and within_limits)


def _total(row: Row) -> int:
    return sum(int(n) for n in row.counts.split())


def _never_behind(results: Results) -> Claim:
    says = "never more than 0.5 point behind the best ranked peer (arrivals; any fleet, size and load)"
    worst = min(cells(results, RANKED, ARRIVALS), key=lambda c: c.difference.mean, default=None)
    if worst is None:
        return Claim(says, "not run", None)
    return Claim(says, f"least {_summary(worst)}", worst.difference.mean >= -0.5)


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
    result = [
        c for c in cells(results, FGD, workload) if c.setting == setting and c.gpus == gpus and c.load in FULL_LOADS
    ]
    if not result:
        return Claim(says, "not run", None)
    least = [
        min((c for c in result if c.load == load), key=lambda c: c.difference.mean)
        for load in sorted({c.load for c in result})
    ]
    text = ", ".join(f"{_points(c.difference)} at {c.load} %" for c in least)
    return Claim(says, text, all(c.difference.mean >= points for c in least))


def _not_less_than_same_size(results: Results) -> Claim:
    says = "RTX PRO 6000: mixed size admits no more than 0.2 point less than the same demand gets in same-size mode"
    result: list[Cell] = []
    for (setting, gpus, workload, load, policy), rows in results.items():
        twin = results.get((setting + SAME_SIZE, gpus, workload, load, OURS))
        if policy == OURS and workload == ARRIVALS and twin:
            gap = difference(rows, twin)
            if gap:
                result.append(Cell(setting, gpus, workload, load, "same size", gap))
    worst = min(result, key=lambda c: c.difference.mean, default=None)
    if worst is None:
        return Claim(says, "not run", None)
    return Claim(says, f"least {_summary(worst)}", worst.difference.mean >= -0.2)


def _near_migration(results: Results, gpus: int, *, one: float, two: float) -> Claim:
    """`one` and `two`: the limits for one and two models. At 16 GPUs, `two` applies at 100 % only."""
    says = f"{gpus} GPUs: within {one:g} point of free migration; two models {two:g}{' (at 100 %)' * (gpus == 16)}"
    failed: list[Cell] = []
    result = [c for c in cells(results, [MIGRATION], ARRIVALS) if c.gpus == gpus]
    for cell in result:
        two_models = len(BY_NAME[cell.setting].cards) > 1
        limit = two if two_models and (gpus != 16 or cell.load == 100) else one
        if cell.difference.mean < -limit:
            failed.append(cell)
    if not result:
        return Claim(says, "not run", None)
    worst = "; ".join(_summary(c) for c in failed) if failed else _summary(min(result, key=lambda c: c.difference.mean))
    return Claim(
        says,
        f"{len(result) - len(failed)} of {len(result)} fleets and loads; {'not' if failed else 'least'}: {worst}",
        not failed,
    )


def losses(results: Results, workload: str) -> list[Cell]:
    """Return where a ranked peer beats least-waste, worst first; only the best peer for each fleet and load."""
    worst: dict[tuple[str, int, int], Cell] = {}
    for cell in cells(results, RANKED, workload):
        key = (cell.setting, cell.gpus, cell.load)
        if key not in worst or cell.difference.mean < worst[key].difference.mean:
            worst[key] = cell
    return sorted((c for c in worst.values() if c.difference.mean < -0.005), key=lambda c: c.difference.mean)


def best_peer(results: Results, setting: str, gpus: int, workload: str, load: int) -> str | None:
    """Return the ranked peer with the most framebuffer on average."""
    peers = [p for p in RANKED if (setting, gpus, workload, load, p) in results]
    return max(peers, key=lambda p: average(results[setting, gpus, workload, load, p]), default=None)


def _points(result: Difference) -> str:
    return f"{result.mean:+.2f} ± {result.error:.2f}"


def _summary(cell: Cell) -> str:
    return f"{_points(cell.difference)} against {cell.policy} ({cell.setting}, {cell.gpus} GPUs, {cell.load} %)"
