# SPDX-License-Identifier: Apache-2.0
"""The pages of what is being done now, and of what there is room for, from the results of their calls."""

from __future__ import annotations

from vgpuctl.controller.web.bars import FAILED, STARTING
from vgpuctl.controller.web.cells import desktops_table, path_of, plural, short, with_query
from vgpuctl.controller.web.parts import Cell, Link, PageView, Section, TableView
from vgpuctl.model.results.fleet_room import (
    FleetCapacityResult,
    FleetProgressResult,
    ProfileRoomResult,
)

MOST_HOSTS = 12


def progress_view(progress: FleetProgressResult) -> PageView:
    """Return the page of what is being done, and of what failed."""
    copies = tuple(
        (Cell(one.image, path_of("images", one.image)), Cell(one.host, path_of("hosts", one.host)), Cell(one.state))
        for one in progress.copies
    )
    moving = desktops_table(progress.desktops, "No desktop is made, started, refreshed or moved.")
    failed = desktops_table(progress.failures, "Nothing failed.")
    return PageView(
        "In progress", "progress",
        f"{plural(progress.moving, 'desktop')} in progress, {progress.failed} failed or not known",
        (
            Section("desktops", "Desktops", "table", moving, _more(progress.moving, moving, STARTING)),
            Section("failed", "Failed or not known", "table", failed, _more(progress.failed, failed, FAILED)),
            Section("images", "Images", "table", TableView(("Image", "Host", "State"), copies, "No image is copied.")),
        ),
    )  # fmt: skip


def _more(count: int, table: TableView, state: str) -> tuple[Link, ...]:
    link = Link("All with filters", with_query("/desktops", {"state": state}))
    return (link,) if count > len(table.rows) else ()


def capacity_view(capacity: FleetCapacityResult) -> PageView:
    """Return the page of how many more desktops and vGPUs there is room for."""
    pools = tuple(
        (
            Cell(one.pool, path_of("pools", one.pool)),
            Cell(str(one.free)),
            Cell(str(one.maximum_left)),
            Cell(short(one.why or ""), style="text"),
        )
        for one in capacity.pools
    )
    profiles = tuple(
        (Cell(one.profile, style="code"), Cell(str(one.free)), Cell(str(one.total)), Cell(_by_host(one), style="text"))
        for one in capacity.profiles
    )
    waiting = capacity.unplaced
    summary = f"{plural(waiting, 'desktop')} without a host come first" if waiting else "what hosts have room for now"
    return PageView(
        "Capacity", "capacity", summary,
        (
            Section(
                "pools", "More desktops of each pool", "table",
                TableView(
                    ("Pool", "Fit now", "Up to its maximum", "What stops it"), pools, "There is no pool yet.",
                    frozenset((1, 2)),
                ),
            ),
            Section(
                "profiles", "More of each profile", "table",
                TableView(
                    ("Profile", "Fit now", "On empty GPUs", "Now, by host"), profiles,
                    "No host has said yet what it has room for.", frozenset((1, 2)),
                ),
            ),
        ),
    )  # fmt: skip


def _by_host(one: ProfileRoomResult) -> str:
    """Return on which hosts a profile fits: those with most room first."""
    free = sorted(((count, name) for name, count in one.hosts.items() if count), key=lambda pair: (-pair[0], pair[1]))
    text = ", ".join(f"{name} {count}" for count, name in free[:MOST_HOSTS])
    return f"{text} and {len(free) - MOST_HOSTS} more hosts" if len(free) > MOST_HOSTS else text
