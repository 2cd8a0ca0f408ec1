# SPDX-License-Identifier: Apache-2.0
"""The pages of people, of rights and of API tokens, from the results of their calls."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.controller.model import EVERYBODY, GROUP_MARK, FleetCaller, Right, Role
from vgpuctl.controller.policy import FleetTarget, has_role
from vgpuctl.controller.use import KINDS
from vgpuctl.controller.web.cells import (
    NOTHING,
    Query,
    desktops_table,
    options,
    path_of,
    plural,
    short,
    time_cell,
    with_query,
)
from vgpuctl.controller.web.changes import CHANGES, may
from vgpuctl.controller.web.parts import Cell, Fact, Filter, Filters, Link, PageView, Section, TableView
from vgpuctl.model.numbers import format_mib
from vgpuctl.model.results.fleet import DesktopResult
from vgpuctl.model.results.people import ApiTokenResult, EntitlementResult, PersonResult, QuotaResult, UseResult

PAGE_PEOPLE = 200
UNKNOWN = Cell("unknown", style="faint")
MOSTLY = 0.95
"""Of the hours on, so many are as good as all."""
_QUOTA, _DELETE_QUOTA = CHANGES["/change/quota"], CHANGES["/change/delete-quota"]
_REVOKE, _DELETE = CHANGES["/change/revoke"], CHANGES["/change/delete-token"]
_DELETE_MINE = CHANGES["/my/delete-token"]


def people_view(people: Sequence[PersonResult], rights: Sequence[EntitlementResult], query: Query) -> PageView:
    """Return a page of people; the last one of more than a page is left out."""
    shown = people[:PAGE_PEOPLE]
    rows = tuple(
        (
            Cell(one.name, path_of("people", one.name)),
            Cell(one.shown) if one.shown else NOTHING,
            _state(one),
            Cell(short(", ".join(one.groups)), style="text") if one.groups else NOTHING,
            Cell(short("; ".join(rights_of(one, rights))), style="text"),
            time_cell(one.signed_in),
        )
        for one in shown
    )
    first = (Link("The first ones", "/people"),) if query.get("after") else ()
    more = (Link("More people", with_query("/people", {"after": shown[-1].name})),) if len(people) > len(shown) else ()
    table = TableView(("Name", "Full name", "State", "Groups", "May", "Signed in"), rows, "Nobody is known here yet.")
    summary = f"{plural(len(shown), 'account')} on this page"
    return PageView("People", "people", summary, (Section("people", "People", "table", table, (*first, *more)),))


def person_view(one: PersonResult, desktops: Sequence[DesktopResult]) -> PageView:
    """Return the page of a person."""
    facts = (
        Fact("State", _state(one)),
        Fact("Full name", Cell(one.shown) if one.shown else NOTHING),
        Fact("Signs in by", Cell(one.realm) if one.realm else NOTHING),
        Fact("Groups", Cell(", ".join(one.groups)) if one.groups else NOTHING),
        Fact("May", Cell("; ".join(rights_of(one, one.rights)) or "nothing")),
        Fact("Last sign-in", time_cell(one.signed_in)),
    )
    links = (Link("Journal", with_query("/journal", {"person": one.name})), Link("All rights", "/rights"))
    return PageView(
        one.name, "people", f"person, {_state(one).text}",
        (
            Section("facts", "Facts", "facts", facts, links),
            Section("desktops", "Desktops", "table", desktops_table(desktops, "There is no desktop of this person.")),
        ),
        (Link("People", "/people"),),
    )  # fmt: skip


def rights_of(person: PersonResult, rights: Sequence[EntitlementResult]) -> list[str]:
    """Return what a person may, by name, by a group, or as everybody."""
    groups = {f"{GROUP_MARK}{group}" for group in person.groups}
    texts = []
    for one in rights:
        if one.who == person.name or one.who in groups or one.who == EVERYBODY:
            by = "" if one.who == person.name else f" ({one.who})"
            texts.append((f"{one.right} of {one.pool}" if one.pool else one.right) + by)
    return texts


def rights_view(
    rights: Sequence[EntitlementResult], quotas: Sequence[QuotaResult] | None, caller: FleetCaller
) -> PageView:
    """Return the page of who may what, with a link to take it back where the caller may; and of how much.

    `quotas`: None: the caller does not see them.
    """
    rows = tuple(
        (
            Cell(one.who, path_of("people", one.who)) if one.who[:1] != GROUP_MARK and one.who != EVERYBODY
            else Cell(one.who),
            Cell(one.right),
            Cell(one.pool, path_of("pools", one.pool)) if one.pool else Cell("the fleet"),
            _revoke(one, caller),
        )
        for one in rights
    )  # fmt: skip
    table = TableView(("Who", "Right", "Of", "Take back"), rows, "Nobody has a right yet.")
    sections = [Section("rights", "Rights", "table", table)]
    if quotas is not None:
        sections.append(Section("quotas", "Quotas", "table", _quotas_table(quotas)))
    return PageView("Rights", "rights", "who may what, and how much", tuple(sections))


def _quotas_table(quotas: Sequence[QuotaResult]) -> TableView:
    rows = tuple(
        (
            Cell(one.who),
            *(Cell("any" if number is None else str(number)) for number in (one.desktops, one.running, one.gpu_mib)),
            Cell("Change", _QUOTA.href({"who": one.who})),
            Cell("Delete", _DELETE_QUOTA.href({"who": one.who})),
        )
        for one in quotas
    )
    columns = ("Who", "Desktops", "Running", "GPU memory in MiB", "Change", "Delete")
    return TableView(columns, rows, "There is no quota: nobody is limited but by pools.", frozenset((1, 2, 3)))


def _revoke(one: EntitlementResult, caller: FleetCaller) -> Cell:
    is_admins = one.pool is None or one.right == Right.MANAGE
    if not may(caller, _REVOKE, FleetTarget(one.pool)) or (is_admins and not has_role(caller, Role.ADMIN)):
        return NOTHING
    return Cell("Revoke", _REVOKE.href({"who": one.who, "pool": one.pool}))


def use_view(use: Sequence[UseResult], query: Query) -> PageView:
    """Return the page of what people had: hours, GPU memory, desktops on which nobody is logged on, and refusals."""
    by = query.get("by", "pool")
    filters = Filters(
        "/use",
        (
            Filter("by", "By", by, options(KINDS, by)),
            Filter("since", "Since day", query.get("since", "")),
            Filter("until", "Until day", query.get("until", "")),
            Filter("pool", "Pool", query.get("pool", "")),
        ),
        bool(query),
    )  # fmt: skip
    rows = tuple(
        (
            Cell(one.name or "no group"),
            *(Cell(f"{hours:.1f}") for hours in (one.assigned_hours, one.on_hours)),
            UNKNOWN if one.logged_on_hours is None else Cell(f"{one.logged_on_hours:.1f}"),
            Cell(f"{one.gpu_gib_hours:.1f}"),
            _used_memory(one),
            UNKNOWN if one.gpu_used_percent is None else Cell(f"{one.gpu_used_percent:.0f} %"),
            UNKNOWN if one.gpu_peak_mib is None else Cell(format_mib(one.gpu_peak_mib)),
            Cell(str(one.idle)),
            Cell(", ".join(f"{count} {code}" for code, count in sorted(one.refused.items())), style="text"),
        )
        for one in use
    )
    columns = (
        by.capitalize(), "Assigned h", "On h", "Logged on h", "GPU GiB h given", "GPU GiB h used", "GPU used",
        "Most GPU memory", "Idle now", "Refused",
    )  # fmt: skip
    table = TableView(columns, rows, "Nobody had a desktop then.", frozenset(range(1, 9)))
    file = Link("Download as CSV", with_query("/use.csv", query))
    return PageView(
        "Use", "use", "of the last 30 days" if not query.get("since") else "what people had",
        (Section("filters", "", "filters", filters), Section("use", "Use", "table", table, (file,))),
    )  # fmt: skip


def _used_memory(one: UseResult) -> Cell:
    if one.gpu_used_gib_hours is None:
        return UNKNOWN
    is_partly = one.gpu_known_hours < MOSTLY * one.on_hours
    return Cell(f"{one.gpu_used_gib_hours:.1f}" + (f" in {one.gpu_known_hours:.1f} h" if is_partly else ""))


def tokens_view(tokens: Sequence[ApiTokenResult]) -> PageView:
    """Return the page of API tokens."""
    rows = tuple(
        (
            Cell(one.name),
            _may_of(one),
            time_cell(one.created),
            time_cell(one.expires) if one.expires else Cell("never"),
            Cell("Delete", _DELETE.href({"name": one.name, "person": one.person})),
        )
        for one in tokens
    )
    table = TableView(("Token", "May", "Made", "Expires", "Delete"), rows, "There is no API token yet.")
    summary = plural(len(tokens), "token")
    return PageView("Tokens", "tokens", summary, (Section("tokens", "API tokens", "table", table),))


def _may_of(token: ApiTokenResult) -> Cell:
    if token.person is not None:
        return Cell(f"what {token.person} may", path_of("people", token.person))
    return Cell(token.role or f"{token.right} of {', '.join(token.pools)}")


def my_tokens_view(tokens: Sequence[ApiTokenResult]) -> PageView:
    """Return the page of somebody's own tokens."""
    rows = tuple(
        (
            Cell(one.name),
            time_cell(one.created),
            time_cell(one.expires) if one.expires else Cell("never"),
            Cell("Delete", _DELETE_MINE.href({"name": one.name})),
        )
        for one in tokens
    )
    table = TableView(("Token", "Made", "Expires", "Delete"), rows, "You have no token.")
    trail = (Link("My desktops", "/my"),)
    return PageView(
        "My tokens", "my", "for programs on your computer, such as vgpuctl controller connect-desktop --token-file",
        (Section("tokens", "Tokens", "table", table),), trail,
    )  # fmt: skip


def _state(person: PersonResult) -> Cell:
    if person.disabled:
        return Cell("disabled", badge="warn")
    has_way = person.has_password or person.realm not in (None, "local")
    return Cell("can sign in", badge="good") if has_way else Cell("has no password", badge="plain")
