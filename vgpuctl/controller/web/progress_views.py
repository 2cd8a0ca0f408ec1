# SPDX-License-Identifier: Apache-2.0
"""The pages of what is being done now, and of what there is room for, from the results of their calls."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.controller.web.bars import FAILED, REFRESHING, STARTING, UNKNOWN, state_of_phase
from vgpuctl.controller.web.cells import PAGE_DESKTOPS, desktops_table, path_of, plural, short, with_query
from vgpuctl.controller.web.parts import Cell, Link, PageView, Section, TableView
from vgpuctl.model.image_copy import CopyState
from vgpuctl.model.results.fleet import DesktopResult, FleetCapacityResult, FleetImageResult, ProfileRoomResult

MOST_HOSTS = 12


def progress_view(desktops: Sequence[DesktopResult], images: Sequence[FleetImageResult]) -> PageView:
    """Return the page of what is being done, and of what failed."""
    states = {one.name: state_of_phase(one.phase) for one in desktops}
    moving = [one for one in desktops if states[one.name] in (STARTING, REFRESHING)]
    failed = [one for one in desktops if states[one.name] in (FAILED, UNKNOWN)]
    copies = [(image.name, host, text) for image in images for host, text in sorted(image.hosts.items())]
    copies = [copy for copy in copies if copy[2] != CopyState.READY]
    rows = tuple(
        (Cell(name, path_of("images", name)), Cell(host, path_of("hosts", host)), Cell(text, style="text"))
        for name, host, text in copies[:PAGE_DESKTOPS]
    )
    return PageView(
        "In progress", "progress",
        f"{plural(len(moving), 'desktop')} and {plural(len(copies), 'copy').replace('copys', 'copies')} in progress, "
        f"{plural(len(failed), 'desktop')} failed",
        (
            Section(
                "failed", "Failed or not known", "table", desktops_table(failed[:PAGE_DESKTOPS], "Nothing failed."),
                _more(failed, FAILED),
            ),
            Section(
                "desktops", "Desktops", "table",
                desktops_table(moving[:PAGE_DESKTOPS], "No desktop is made, started, refreshed or moved."),
                _more(moving, STARTING),
            ),
            Section("images", "Images", "table", TableView(("Image", "Host", "State"), rows, "No image is copied.")),
        ),
    )  # fmt: skip


def _more(desktops: Sequence[DesktopResult], state: str) -> tuple[Link, ...]:
    return (
        (Link("All with filters", with_query("/desktops", {"state": state})),) if len(desktops) > PAGE_DESKTOPS else ()
    )


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
