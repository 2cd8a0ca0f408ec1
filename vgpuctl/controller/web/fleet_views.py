# SPDX-License-Identifier: Apache-2.0
"""The pages of the fleet and of pools, from the results of their calls.

Views are pure functions, which know neither the database nor the browser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.controller.web.bars import (
    FAILED,
    IN_USE,
    READY,
    REFRESHING,
    STARTING,
    count_states,
    gpu_map,
    pool_colors,
    share_bar,
)
from vgpuctl.controller.web.cells import (
    FIRST_HOST,
    PAGE_DESKTOPS,
    Query,
    as_list,
    desktops_table,
    more_desktops,
    path_of,
    plural,
    schedule_text,
    spec_text,
    with_query,
)
from vgpuctl.controller.web.parts import (
    Cell,
    Fact,
    Link,
    NumberTile,
    PageView,
    Section,
    Steps,
    TableView,
)
from vgpuctl.model.results.fleet import (
    DesktopResult,
    FleetOverviewResult,
    OverviewPoolResult,
    PoolResult,
)

FIRST_POOL = Steps(
    "There is no pool yet. A pool makes desktops from an image:",
    (
        ("Add the image", "vgpuctl controller ensure-image office --path /srv/images/ubuntu-24.04.qcow2"),
        ("Make the pool from its spec", "vgpuctl controller ensure-pool office -f office.yaml"),
    ),
)


def fleet_view(overview: FleetOverviewResult, query: Query) -> PageView:
    """Return the page of the whole fleet."""
    hosts, gpus = overview.host_count, overview.gpu_count
    summary = f"{plural(hosts, 'host')} · {plural(gpus, 'GPU')}"
    if not hosts:
        return PageView("Fleet", "fleet", summary, (Section("next", "What to do next", "steps", FIRST_HOST),))
    colors = pool_colors(one.name for one in overview.pools)
    sections = [Section("counts", "", "counts", fleet_counts(overview)), _pools_section(overview.pools, colors)]
    more = () if overview.next is None else (Link("More hosts", with_query("/", {"after": overview.next})),)
    more = (Link("The first hosts", "/"), *more) if query.get("after") else more
    sections.append(Section("gpus", "GPUs", "gpus", gpu_map(overview.hosts, gpus, colors), more))
    return PageView("Fleet", "fleet", summary, tuple(sections))


def fleet_counts(overview: FleetOverviewResult) -> tuple[NumberTile, ...]:
    """Return the large numbers."""
    states = count_states(overview.counts)
    share = round(100 * overview.taken_mib / overview.framebuffer_mib) if overview.framebuffer_mib else 0
    return (
        NumberTile("In use", str(states[IN_USE])),
        NumberTile("Ready", str(states[READY])),
        NumberTile("Starting or refreshing", str(states[STARTING] + states[REFRESHING])),
        NumberTile("Failed", str(states[FAILED]), style="bad" if states[FAILED] else ""),
        NumberTile("GPU slices taken", str(share), "%"),
    )


def _pools_section(pools: Sequence[OverviewPoolResult], colors: Mapping[str, int]) -> Section:
    if not pools:
        return Section("pools", "Pools", "steps", FIRST_POOL)
    columns = ("Pool", "Kind", "Profile", "Desktops", "In use", "Ready", "Spare wanted", "State")
    return Section(
        "pools", "Pools", "table",
        TableView(columns, tuple(_pool_row(one, colors[one.name]) for one in pools), "", frozenset((4, 5, 6))),
    )  # fmt: skip


def _pool_row(pool: OverviewPoolResult, color: int) -> tuple[Cell, ...]:
    states = count_states(pool.counts)
    state = Cell(pool.state, badge="plain" if pool.state == "active" else "warn")
    spare = Cell(str(pool.spare), style="short" if states[READY] < pool.spare else "")
    return (
        Cell(pool.name, path_of("pools", pool.name), color=color),
        Cell(pool.kind),
        Cell(", ".join(pool.profiles) or "whole GPUs or VFs", style="code"),
        Cell(bar=share_bar(pool.name, pool.counts, pool.maximum, color), style="wide"),
        Cell(str(states[IN_USE])),
        Cell(str(states[READY])),
        spare,
        state,
    )


def pools_view(pools: Sequence[OverviewPoolResult], query: Query) -> PageView:
    """Return the page of pools."""
    colors = pool_colors(one.name for one in pools)
    return PageView("Pools", "pools", plural(len(pools), "pool"), (_pools_section(pools, colors),))


def overview_of(pool: PoolResult) -> OverviewPoolResult:
    """Return a pool as the fleet's overview has it."""
    return OverviewPoolResult(
        pool.name, pool.kind, pool.state, pool.reason, pool.image, pool.profiles, pool.maximum, pool.spare, pool.counts
    )


def pool_view(pool: PoolResult, desktops: Sequence[DesktopResult], query: Query) -> PageView:
    """Return the page of a pool."""
    sections = []
    if pool.state != "active":
        why = Steps(f"This pool is {pool.state}{f': {pool.reason}' if pool.reason else ''}", _resume(pool))
        sections.append(Section("notice", "", "notice", why))
    words = count_states(pool.counts)
    counts = (
        NumberTile("In use", str(words[IN_USE])), NumberTile("Ready", str(words[READY])),
        NumberTile("Starting or refreshing", str(words[STARTING] + words[REFRESHING])),
        NumberTile("Failed", str(words[FAILED]), style="bad" if words[FAILED] else ""),
        NumberTile("Desktops", str(pool.desktops), f"of {pool.maximum}"),
    )  # fmt: skip
    sections.append(Section("counts", "", "counts", counts))
    facts = (
        Fact("Kind", Cell(pool.kind)),
        Fact("Image", Cell(pool.image, path_of("images", pool.image))),
        Fact("Profiles", Cell(", ".join(pool.profiles) or "whole GPUs or VFs", style="code")),
        Fact("Spare", Cell(f"{pool.spare} without a user")),
        Fact("Schedules", Cell(_schedules(pool))),
    )
    links = (Link("Its journal", with_query("/journal", {"pool": pool.name})),)
    sections.append(Section("facts", "Facts", "facts", facts, links))
    more = more_desktops("/desktops", {"pool": pool.name}, desktops, PAGE_DESKTOPS)
    sections.append(Section("desktops", "Desktops", "table", desktops_table(desktops, "It has no desktop."), more))
    sections.append(Section("spec", "Spec", "text", (spec_text(pool.spec),)))
    return PageView(pool.name, "pools", f"pool, {pool.kind}, {pool.state}", tuple(sections), (Link("Pools", "/pools"),))


def _schedules(pool: PoolResult) -> str:
    texts = "; ".join(map(schedule_text, as_list(pool.spec.get("schedules"))))
    return f"{texts}; time zone {pool.spec.get('time_zone', 'UTC')}" if texts else "none"


def _resume(pool: PoolResult) -> tuple[tuple[str, str], ...]:
    return (("To let it go on:", f"vgpuctl controller resume-pool {pool.name}"),) if pool.state == "paused" else ()
