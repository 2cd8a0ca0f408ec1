# SPDX-License-Identifier: Apache-2.0
"""Generates docs/placement.md from the CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.placement.claims import FULL_LOADS, Cell, best_peer, claims, losses
from tests.bench.placement.fleets import BY_NAME, SAME_SIZE, SETTINGS, Setting
from tests.bench.placement.needs import GPUS, LOAD, UP_TO, Needs
from tests.bench.placement.requests import MEASURED_LIVES, WARM_UP_LIVES
from tests.bench.placement.runs import (
    ARRIVALS,
    CHURN,
    MIGRATION,
    MOST_MOVES,
    MOVERS,
    MOVES_PER_100,
    MOVING,
    OFFERED,
    OFFLINE,
    OURS,
    POLICIES,
    SAVING,
    UNRANKED,
)
from tests.bench.placement.table import Results, average, difference
from tests.bench.placement.times import Timed

WHOSE = {
    OURS: "vgpuctl",
    "first-fit": "Proxmox, OpenNebula",
    "depth": "vSphere, vdsm: most vGPUs first",
    "breadth": "vSphere, vdsm: fewest vGPUs first",
    "random": "Nova",
    "xen-depth": "XenServer depth-first: least capacity left",
    "xen-breadth": "XenServer breadth-first: most capacity left",
    "least-loaded": "Incus: greatest share of VFs free",
    "least-vram": "hypeman: least framebuffer in use",
    "hami-binpack": "HAMi: fullest node of 4 GPUs, fullest GPU",
    "hami-spread": "HAMi: emptiest node, emptiest GPU",
    "hami-default": "HAMi: fullest node, emptiest GPU",
    "best-fit": "least framebuffer free",
    "fgd": "fragmentation gradient descent",
    "fgd-best-fit": "the same, ties to best fit",
    "fgd-finer": "the same, counting what each profile cannot fill",
    UNRANKED: "KubeVirt; refuses what would fit, so not ranked",
    MOVING: f"vgpuctl with plan-moves, at most {MOST_MOVES} moves for one refused request",
    SAVING: f"vgpuctl with plan-moves, at most {MOVES_PER_100} moves for 100 requests so far",
    MIGRATION: "reference: free migration",
    OFFLINE: "reference: bound, may refuse",
}
ANSWERS = {True: "yes", False: "**no**", None: "-"}
INTRODUCTION = """# Placement against others

<!-- Made by python -m tests.bench.placement; edit tests/bench/placement/page.py. -->

How much framebuffer is admitted when each policy places the same requests on the same GPUs. Every policy is written
from its program's published behaviour (`tests/bench/placement/peers.py` and `fgd.py` name the sources), runs on the
same exact rules of what fits, and admits whatever fits where it looks. All that differs is the choice.

- *Arrivals*: requests come and stay, until what was asked for is 60, 80, 100 or 130 % of the fleet's framebuffer.
- *Churn*: requests come at random and leave again; the load is what would be in use on average if nothing were refused.
  {warm:g} mean lives are not counted, then the framebuffer in use is averaged over {measured:g}.
- Figures are percent of the fleet's framebuffer; in brackets least-waste less this policy in points, with the standard
  error of the paired difference: all have the same requests, seed by seed.
- *B1* is the offline linear program: it knows all requests and may refuse, so nobody who admits what fits can reach it.
- *B2* is free migration: in order, whatever still fits when everything may be moved. All answers are exact: by counting
  where a GPU has one size at a time, else by a packing that was found or a proof that there is none.
  Both are for arrivals alone.
- Two models are half and half by number, HAMi's nodes have 4 GPUs. *Even framebuffer* asks for the same framebuffer of
  each size, so for small ones more often; where nothing is said, mixed sizes are asked for alike by number.
- *{moving}*: when nothing has room, what `plan-moves` proposes is done, if at most {moves} moves make room.
- *{saving}*: the same, if no more than {per_100} moves are made for 100 requests that came so far. What
  early requests did not need may be spent later: that is `plan-moves --most` with what is left of it.

FGD's published figures are for the Alibaba GPU trace, which is not part of this repository; so FGD here is held to its
definition, not to those figures. A promise "over FGD" is over the better of `fgd` and `fgd-best-fit`.
"""


def page(results: Results, head: Sequence[str], times: Sequence[Timed], needs: Sequence[Needs]) -> str:
    """Return the whole page."""
    lives = {"warm": WARM_UP_LIVES, "measured": MEASURED_LIVES}
    moves = {"moving": MOVING, "moves": MOST_MOVES, "saving": SAVING, "per_100": MOVES_PER_100}
    parts = [INTRODUCTION.format(**lives, **moves)]
    parts.append("\n".join(["## What was run", "", *(f"- {line}" for line in head), *_extent(results)]))
    parts.append("\n".join(["## What was to be reached", "", *_claims(results)]))
    if times:
        parts.append("\n".join(["## Time", "", *_times(times)]))
    if needs:
        parts.append("\n".join(["## Moves that a refused request needs", "", *_needs(needs)]))
    parts.append("\n".join(["## Where least-waste loses", "", *_losses(results)]))
    parts.append("\n".join(["## Mixed size against same size", "", *_twins(results)]))
    settings = [s for s in SETTINGS if s.asked == s.name and _sizes(results, s.name, ARRIVALS)]
    parts += ["\n".join(_section(results, setting)) for setting in settings]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _sizes(results: Results, setting: str, workload: str) -> list[int]:
    return sorted({k[1] for k in results if k[0] == setting and k[2] == workload and k[4] == OURS})


def shown_size(results: Results, setting: str) -> int:
    """Return the fleet size for the picture and the table of profiles: the largest up to 160 GPUs, or 0."""
    return max((n for n in _sizes(results, setting, ARRIVALS) if n <= 160), default=0)


def _extent(results: Results) -> Iterator[str]:
    """Report which fleet sizes were run with how many seeds, and which were not run."""
    for workload in (ARRIVALS, CHURN):
        for gpus in (16, 160, 1600):
            keys = [k for k in results if k[1] == gpus and k[2] == workload and k[4] == OURS]
            if not keys:
                yield f"- {workload}, {gpus} GPUs: not run."
                continue
            seeds = sorted({len(results[k]) for k in keys})
            fleets = {k[0] for k in keys}
            missing = [name for name in BY_NAME if name not in fleets]
            gaps = f"; not run: {', '.join(missing)}" if missing else ""
            yield f"- {workload}, {gpus} GPUs: {' to '.join(str(n) for n in seeds)} seeds, {len(fleets)} fleets{gaps}."


def _claims(results: Results) -> Iterator[str]:
    yield from ("| promise | measured | reached |", "|---|---|---|")
    for claim in claims(results):
        yield f"| {claim.says} | {claim.measured} | {ANSWERS[claim.reached]} |"


def _times(times: Sequence[Timed]) -> Iterator[str]:
    yield "Processor time of least-waste alone, without starting a program; `python -m tests.bench.placement --times`."
    yield ""
    yield from ("| what | milliseconds | at most |", "|---|---|---|")
    yield from (f"| {t.what} | {t.milliseconds} | {t.limit} |" for t in times)


def _losses(results: Results) -> Iterator[str]:
    for workload in (ARRIVALS, CHURN):
        result = losses(results, workload)
        if not result:
            yield f"{workload.capitalize()}: nowhere, on average over the seeds."
            yield ""
            continue
        where = f"{len(result)} fleets, sizes and loads at which some ranked policy has more on average"
        yield f"{workload.capitalize()}: {where}; the best of them:"
        yield ""
        yield from ("| fleet | GPUs | load | least-waste less | points |", "|---|---|---|---|---|")
        yield from (_loss(cell) for cell in result)
        yield ""


def _loss(cell: Cell) -> str:
    d = cell.difference
    title = BY_NAME[cell.setting].title
    return f"| {title} | {cell.gpus} | {cell.load} % | {cell.policy} | {d.mean:+.2f} ± {d.error:.2f} |"


def _needs(needs: Sequence[Needs]) -> Iterator[str]:
    """Report how many moves refused requests need."""
    yield f"The requests that least-waste alone refuses on {GPUS} GPUs at {LOAD} %, by the fewest moves that would"
    yield "make room, each by itself in the state in which it came. Where a GPU has one size at a time it is"
    yield "cleared of all that is on it or of nothing: two moves for one request win little, however well they are"
    yield "chosen, but a GPU that is cleared has room for many. vGPUs that wait for each other's places go at once."
    yield f"*Not found*: it fits when everything may be moved, but no {UP_TO[-1]} moves that were tried make room."
    yield "*Never*: it does not fit anyhow."
    yield ""
    columns = [f"{first + 1} to {last}" for first, last in zip((0, *UP_TO), UP_TO, strict=False)]
    yield f"| fleet | requests | refused | {' | '.join(f'{c} moves' for c in columns)} | not found | never |"
    yield "|---" * (len(columns) + 5) + "|"
    for one in needs:
        result = " | ".join(one.by_moves.split())
        yield f"| {BY_NAME[one.setting].title} | {one.requests} | {one.refused} | {result} | {one.more} | {one.never} |"


def _twins(results: Results) -> Iterator[str]:
    """Compare the same requests on the same card in both modes."""
    yield "Least-waste with the same requests on RTX PRO 6000 in both modes, and mixed less same size."
    yield ""
    yield "Where mixed size has less, so has free migration in mixed size: no choice of places would win it back,"
    yield "only to refuse what fits. A 2 GiB type takes 3 GiB in both modes. In same-size mode its GPUs are full at"
    yield "some time, and what it is refused is left to sizes that fill a GPU; with mixed sizes it is admitted as"
    yield "long as it fits anywhere."
    yield ""
    yield "| sizes asked for | GPUs | load | mixed size | same size | points | free migration, mixed size |"
    yield "|---|---|---|---|---|---|---|"
    for setting, gpus, workload, load, policy in sorted(results):
        at = (gpus, workload, load, policy)
        ours, twin = results[setting, *at], results.get((setting + SAME_SIZE, *at))
        if policy == OURS and workload == ARRIVALS and load in FULL_LOADS and twin:
            gap = difference(ours, twin)
            sizes = BY_NAME[setting].title.split("size, ")[1]
            points = f"{gap.mean:+.2f} ± {gap.error:.2f}" if gap else "-"
            moving = results.get((setting, gpus, workload, load, MIGRATION))
            free = f"{average(moving):.2f}" if moving else "-"
            yield f"| {sizes} | {gpus} | {load} % | {average(ours):.2f} | {average(twin):.2f} | {points} | {free} |"


def _section(results: Results, setting: Setting) -> Iterator[str]:
    yield f"## {setting.title}"
    yield ""
    total = sum(setting.demand.values())
    asked = ", ".join(f"{p} {100 * w / total:.0f} %" for p, w in setting.demand.items())
    yield f"Asked for, by number: {asked}."
    for workload in (ARRIVALS, CHURN):
        sizes = _sizes(results, setting.name, workload)
        if sizes:
            yield ""
            if workload == ARRIVALS:
                yield f"![{setting.title}](placement/{setting.name}.svg)"
                yield ""
            yield f"{workload.capitalize()}:"
            yield ""
            yield from _table(results, setting.name, workload, sizes)
    yield ""
    yield from _acceptance(results, setting)


def _table(results: Results, setting: str, workload: str, sizes: Sequence[int]) -> Iterator[str]:
    columns = [
        (gpus, load) for gpus in sizes for load in FULL_LOADS if (setting, gpus, workload, load, OURS) in results
    ]
    yield "| policy | | " + " | ".join(f"{gpus:,} GPUs, {load} %" for gpus, load in columns) + " |"
    yield "|---|---|" + "---|" * len(columns)
    for policy in [*POLICIES, *MOVERS, MIGRATION, OFFLINE]:
        result = [_cell(results, (setting, gpus, workload, load), policy) for gpus, load in columns]
        if any(result):
            yield f"| {policy} | {WHOSE[policy]} | " + " | ".join(text or "-" for text in result) + " |"


def _cell(results: Results, at: tuple[str, int, str, int], policy: str) -> str:
    rows, ours = results.get((*at, policy)), results.get((*at, OURS))
    if not rows or not ours:
        return ""
    share = f"{average(rows):.2f}"
    gap = difference(ours, rows)
    return f"**{share}**" if policy == OURS or gap is None else f"{share} ({gap.mean:+.2f} ± {gap.error:.2f})"


def _acceptance(results: Results, setting: Setting) -> Iterator[str]:
    """Report the share of admitted requests for each profile, in the fleet of 160 GPUs, or of 16."""
    gpus = shown_size(results, setting.name)
    profiles = sorted(setting.demand)
    load = 100
    peer = best_peer(results, setting.name, gpus, ARRIVALS, load)
    shown = list(dict.fromkeys([OURS, "fgd", *([peer] if peer else []), "first-fit", "breadth", MIGRATION]))
    offered = results.get((setting.name, gpus, ARRIVALS, load, OFFERED))
    if not offered:
        return
    yield f"Requests admitted in percent, of each profile and of all, arrivals, {gpus} GPUs at {load} %:"
    yield ""
    yield "| policy | " + " | ".join([*profiles, "all"]) + " |"
    yield "|---|" + "---|" * (len(profiles) + 1)
    for policy in shown:
        rows = results.get((setting.name, gpus, ARRIVALS, load, policy))
        if rows:
            seeds = rows.keys() & offered.keys()
            got, asked = (
                [sum(n) for n in zip(*(_counts(r[s].counts) for s in seeds), strict=True)] for r in (rows, offered)
            )
            each = [100 * a / b if b else 100.0 for a, b in zip([*got, sum(got)], [*asked, sum(asked)], strict=True)]
            yield f"| {policy} | " + " | ".join(f"{share:.1f}" for share in each) + " |"


def _counts(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def write(path: Path, text: str) -> None:
    """Write a file atomically."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
