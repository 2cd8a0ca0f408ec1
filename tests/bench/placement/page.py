# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reports/placement.md, and the plot of docs/explanation/placement.md, from the CSV."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from tests.bench.paired import ROOT
from tests.bench.placement import results
from tests.bench.placement.fleets import SETTINGS
from tests.bench.placement.goals import BEHIND, PEERS, describe, goals, losses
from tests.bench.placement.requests import LOADS, MEASURED_LIVES, WARM_UP_LIVES
from tests.bench.placement.results import Results
from tests.bench.placement.runs import (
    ARRIVALS,
    BEST_FIT,
    CHURN,
    FGD,
    FGD_BEST_FIT,
    FIRST_FIT,
    MOST_SEEDS,
    OURS,
    WANTED_ERROR,
    Cell,
    Row,
)

PLOT = ROOT / "docs" / "explanation" / "placement.svg"
REPORT = results.FOLDER / "placement.md"
SHOWN = (FIRST_FIT, BEST_FIT, FGD)
ANSWERS = {True: "yes", False: "**no**", None: "-"}
HEAD = """# Placement: what was measured

<!-- Made by python -m tests.bench.placement; edit tests/bench/placement/page.py. -->

How much framebuffer the default policy of [placement](../explanation/placement.md) admits, compared with three others
that place the same requests on the same GPUs: *first-fit* (the first GPU with room), *best-fit* (the one with the least
free framebuffer) and *FGD* (fragmentation gradient descent, USENIX ATC'23), which knows the demand in advance;
for FGD the better of two ways to break ties counts. All admit whatever fits where they look.

- *Arrivals*: requests come and stay until they ask for 60, 80, 100 or 130 % of the framebuffer of all GPUs.
- *Churn*: requests come at random and leave again; the load is what would be in use on average if nothing were refused.
  {warm:g} mean lifetimes are not counted, the framebuffer in use is averaged over the next {measured:g}.
- A difference is the default policy's share of the framebuffer less the other's, in percentage points, seed by seed,
  with its standard error. A cell has more seeds until that is at most {error}, or until its time is over.
- The requests were drawn after the rule was chosen, and five of the pairs of models were not used to choose it. A first
  measurement on other pairs had shown a loss of up to 22 points where one model alone offers most sizes (L40S beside
  RTX PRO 4500). The rule got its clause about such models then, and five new pairs were drawn.
- GPUs with MIG are shown with instances that are made where a vGPU goes. vgpuctl does not do that: `set-mig` makes the
  instances beforehand, and then every policy finds the same room. The figures show what the rule is worth on slices.
"""

SUMMARY = """\
How much more framebuffer the default policy admits when the requests ask for all there is: the mean in percentage
points, and the range over all fleets and sizes from 2 to 16 GPUs. *VDI* is A40 with A16 or A10 and desktops of 1 to
8 GiB; *other* is seven pairs of models with 2 to 16 GiB, among them the bad cases below."""


def write() -> None:
    """Write the page, and the plot if matplotlib is there, which no extra of vgpuctl brings."""
    rows = results.read(results.CSV)
    REPORT.write_text(report(rows, results.head(results.CSV)))
    try:
        draw(results.by_key(rows), PLOT)
    except ModuleNotFoundError as exc:
        print(f"{PLOT.name} was not drawn again: {exc}; pip install matplotlib", file=sys.stderr)


def report(rows: Sequence[Row], head: Sequence[str]) -> str:
    """Return the whole report."""
    by_key = results.by_key(rows)
    parts = [HEAD.format(warm=WARM_UP_LIVES, measured=MEASURED_LIVES, error=WANTED_ERROR)]
    parts.append("\n".join(f"- {line}" for line in [*head, *_extent(rows)]) + "\n")
    parts.append(f"## By kind of fleet\n\n{SUMMARY}\n\n" + "\n".join(_summary(by_key)) + "\n")
    parts.append("## Goals\n\n" + "\n".join(_goals(by_key)) + "\n")
    parts.append("## Where two other models lose\n\n" + "\n".join(_losses(by_key)) + "\n")
    for workload in (ARRIVALS, CHURN):
        for gpus in MOST_SEEDS:
            table = list(_table(by_key, gpus, workload))
            if len(table) > 2:
                title = f"## {workload.capitalize()}, {gpus} GPU{'s' if gpus > 1 else ''}"
                parts.append(
                    f"{title}\n\nThe share of the default policy, and in brackets less the best of the others.\n"
                )
                parts.append("\n".join(table) + "\n")
    return "\n".join(parts)


def _extent(rows: Sequence[Row]) -> Iterator[str]:
    for workload in (ARRIVALS, CHURN):
        for gpus in MOST_SEEDS:
            ours = [r for r in rows if (r.workload, r.gpus, r.policy) == (workload, gpus, OURS)]
            errors = [r.error for r in rows if (r.workload, r.gpus) == (workload, gpus)]
            if ours:
                seeds = f"{min(r.seeds for r in ours)} to {max(r.seeds for r in ours)} seeds"
                fleets = len({r.setting for r in ours})
                yield f"{workload}, {gpus} GPUs: {fleets} fleets, {seeds}, standard errors up to {max(errors):.2f}"


def _goals(by_key: Results) -> Iterator[str]:
    yield from ("| goal | measured | reached |", "|---|---|---|")
    yield from (f"| {goal.says} | {goal.measured} | {ANSWERS[goal.reached]} |" for goal in goals(by_key))


def _losses(by_key: Results) -> Iterator[str]:
    lost = losses(by_key)
    yield f"Cells in which the better of first-fit and best-fit admits over {BEHIND} points more: {len(lost)}."
    yield ""
    yield from (f"- {describe(row)}" for row in lost)


def _table(by_key: Results, gpus: int, workload: str) -> Iterator[str]:
    yield "| fleet | " + " | ".join(f"{load} %" for load in LOADS) + " |"
    yield "|---" * (len(LOADS) + 1) + "|"
    for name in SETTINGS:
        cells = [_cell(by_key, Cell(name, gpus, workload), load) for load in LOADS]
        if all(cells):
            yield f"| {name} | {' | '.join(cells)} |"


def _cell(by_key: Results, cell: Cell, load: int) -> str:
    ours = by_key.get((cell, load, OURS))
    if ours is None:
        return ""
    best = min((by_key[cell, load, policy] for policy in PEERS), key=lambda row: row.difference)
    return f"{ours.percent:.1f} ({best.difference:+.1f} ± {best.error:.1f})"


def _summary(by_key: Results) -> Iterator[str]:
    """Yield the mean differences by group and size at 100 %: arrivals, then churn."""
    yield "| fleets | workload | " + " | ".join(f"over {p}" for p in SHOWN) + " |"
    yield "|---" * (len(SHOWN) + 2) + "|"
    groups = list(dict.fromkeys(setting.group for setting in SETTINGS.values()))
    for group in groups:
        for workload in (ARRIVALS, CHURN):
            columns = [_mean(by_key, group, workload, policy) for policy in SHOWN]
            if all(columns):
                yield f"| {group} | {workload} | {' | '.join(columns)} |"


def _mean(by_key: Results, group: str, workload: str, policy: str) -> str:
    gains = _differences(by_key, group, workload, policy)
    return f"{mean(gains):+.1f} ({min(gains):+.1f} to {max(gains):+.1f})" if gains else ""


def _differences(by_key: Results, group: str, workload: str, policy: str) -> list[float]:
    """Return the differences at 100 % in all fleets of a group with 2 to 16 GPUs; for FGD from its better variant."""
    variants = (FGD, FGD_BEST_FIT) if policy == FGD else (policy,)
    cells = [
        cell
        for cell, load, name in sorted(by_key)
        if (cell.workload, load, name) == (workload, 100, OURS)
        and cell.gpus > 1
        and SETTINGS[cell.setting].group == group
    ]
    return [min(by_key[cell, 100, variant].difference for variant in variants) for cell in cells]


def draw(by_key: Results, path: Path) -> None:
    """Draw a dot for each fleet and size: the difference at 100 %, arrivals, by group and other policy."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "placement"
    from matplotlib import pyplot

    groups = list(dict.fromkeys(setting.group for setting in SETTINGS.values()))
    figure, axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
    for number, (policy, colour) in enumerate(zip(SHOWN, ("tab:blue", "tab:orange", "tab:green"), strict=True)):
        points = [
            (difference, row + (number - 1) * 0.22)
            for row, group in enumerate(groups)
            for difference in _differences(by_key, group, ARRIVALS, policy)
        ]
        axes.scatter(*zip(*points, strict=True), s=16, alpha=0.6, color=colour, label=f"less {policy}", linewidths=0)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(groups)), groups)
    axes.invert_yaxis()
    axes.set_xlabel("framebuffer that least-waste admits, less the other policy's (percentage points)")
    axes.set_title("2 to 16 GPUs, 100 % asked for, a dot for each fleet")
    axes.legend(loc="upper left")
    figure.savefig(path, metadata={"Date": None})
