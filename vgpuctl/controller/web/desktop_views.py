# SPDX-License-Identifier: Apache-2.0
"""The pages of desktops and of the journal, from the results of their calls."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.controller.overview import ACTOR_KINDS
from vgpuctl.controller.web.bars import TEXTS, badge_of
from vgpuctl.controller.web.cells import (
    NOTHING,
    Query,
    desktops_table,
    events_table,
    options,
    path_of,
    plural,
    time_cell,
    with_query,
)
from vgpuctl.controller.web.parts import Cell, Fact, Filter, Filters, Link, PageView, Section, Steps
from vgpuctl.model.results.fleet import (
    DesktopResult,
    FleetEventResult,
)


def desktops_view(
    desktops: Sequence[DesktopResult], after: str | None, pools: Sequence[str], hosts: Sequence[str], query: Query
) -> PageView:
    """Return a page of desktops; `after`: the name after which the next page begins, None for none."""
    filters = Filters(
        "/desktops",
        (
            Filter("pool", "Pool", query.get("pool", ""), options(pools, query.get("pool", ""))),
            Filter("host", "Host", query.get("host", ""), options(hosts, query.get("host", ""))),
            Filter("state", "State", query.get("state", ""), tuple(TEXTS.items())[:-1]),
            Filter("user", "User", query.get("user", "")),
        ),
        any(query.get(name) for name in ("pool", "host", "state", "user")),
    )
    first = (Link("The first ones", with_query("/desktops", {**query, "after": None})),) if query.get("after") else ()
    more = () if after is None else (Link("More desktops", with_query("/desktops", {**query, "after": after})),)
    table = desktops_table(desktops, "No desktop is like that.")
    return PageView(
        "Desktops", "desktops", f"{plural(len(desktops), 'desktop')} on this page",
        (
            Section("filters", "", "filters", filters),
            Section("desktops", "Desktops", "table", table, (*first, *more)),
        ),
    )  # fmt: skip


def desktop_view(
    one: DesktopResult, events: Sequence[FleetEventResult] | None, query: Query, *, is_users: bool = False
) -> PageView:
    """Return the page of a desktop. `events`: None: who asks does not see the journal.

    `is_users`: of its user, who operates nothing: what admins know it by is not for him.
    """
    sections = []
    if one.restart_error:
        text = f"The restart that was asked for last failed: {one.restart_error}"
        sections.append(Section("restart", "", "notice", Steps(text, ())))
    if one.error or one.why:
        hint = (("What helps:", one.hint),) if one.hint else ()
        text = one.why or ""
        if one.error and one.error not in text:
            text = f"{text}: {one.error}" if text else one.error
        sections.append(Section("notice", "", "notice", Steps(text, hint)))
    facts = (
        Fact("State", badge_of(one.phase)),
        Fact("User", Cell(one.user) if one.user else NOTHING),
        Fact("Address", Cell(one.address, style="code") if one.address else NOTHING),
        Fact("Pool", Cell(one.pool, path_of("pools", one.pool))),
        Fact("Host", Cell(one.host, path_of("hosts", one.host)) if one.host else NOTHING),
        Fact("Profile", Cell(one.profile, style="code") if one.profile else NOTHING),
        Fact("Image", Cell(one.image, path_of("images", one.image))),
        Fact("Should be", Cell(one.power)),
        Fact("Assigned", time_cell(one.assigned)),
        Fact("Lease until", time_cell(one.lease_until)),
        Fact("MAC address", Cell(one.mac, style="code")),
        Fact("Id", Cell(one.id, style="code")),
    )
    shown = tuple(fact for fact in facts if not is_users or fact.name in _USERS_FACTS)
    sections.append(Section("facts", "Facts", "facts", shown))
    links = (Link("All of its journal", with_query("/journal", {"desktop": one.name})),)
    if events is not None:
        sections.append(Section("journal", "Journal", "table", events_table(events), links))
    summary = f"desktop of {one.pool}, {one.phase}"
    return PageView(one.name, "desktops", summary, tuple(sections), (Link("Desktops", "/desktops"),))


_USERS_FACTS = ("State", "Address", "Pool", "Assigned", "Lease until")
JOURNAL_FILTERS = ("kind", "actor_kind", "person", "pool", "host", "desktop", "since", "until")
PAGE_EVENTS = 100


def journal_view(events: Sequence[FleetEventResult], query: Query) -> PageView:
    """Return a page of the journal, the newest first."""
    labels = ("Kind", "By a", "Person", "Pool", "Host", "Desktop", "Since day", "Until day")
    choices = {"actor_kind": options(ACTOR_KINDS, query.get("actor_kind", ""))}
    fields = tuple(
        Filter(name, text, query.get(name, ""), choices.get(name))
        for name, text in zip(JOURNAL_FILTERS, labels, strict=True)
    )
    filters = Filters("/journal", fields, any(query.get(name) for name in JOURNAL_FILTERS))
    newest = (Link("The newest", with_query("/journal", {**query, "before": None})),) if query.get("before") else ()
    older: tuple[Link, ...] = ()
    if len(events) == PAGE_EVENTS:
        older = (Link("Older entries", with_query("/journal", {**query, "before": events[-1].id})),)
    file = Link("Download as CSV", with_query("/journal.csv", {**query, "before": None}))
    return PageView(
        "Journal", "journal", "who changed what, the newest first",
        (
            Section("filters", "", "filters", filters),
            Section("entries", "Entries", "table", events_table(events), (*newest, *older, file)),
        ),
    )  # fmt: skip
