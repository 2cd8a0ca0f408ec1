# SPDX-License-Identifier: Apache-2.0
"""The page of somebody's own desktops, from the results of its calls."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from urllib.parse import quote

from vgpuctl.controller.planning.desktop_address import OPEN_RDP
from vgpuctl.controller.planning.pool_rules import checked_name
from vgpuctl.controller.planning.restarts import RESTARTABLE
from vgpuctl.controller.web.bars import badge_of, pool_colors
from vgpuctl.controller.web.cells import plural, time_cell, with_query
from vgpuctl.controller.web.console_view import console_path
from vgpuctl.controller.web.parts import Cell, Link, PageView, Section
from vgpuctl.model.quota_text import limit_text
from vgpuctl.model.results.people import LimitResult, MyDesktopResult, MyPoolResult
from vgpuctl.value import Value, replace

OPEN_PATH = "/my/open"
"""Where a desktop's RDP file is, by its `name`."""
CHANGE_PATH = "/my/password"
"""Where a local person changes his own password."""
_TEXTS = {
    "assigned": "It is yours. Its address is being confirmed: it is shown here in a moment.",
    "connected": "You are logged on.",
    "ready": "It is ready.",
    "stopping": "It shuts down.",
    "off": "It is off.",
    "starting": "It starts.",
    "restarting": "It restarts: wait about a minute. What you had not saved is gone.",
    "dirty": "It is made fresh.",
    "refreshing": "It is made fresh.",
    "retiring": "It is being deleted.",
    "unplaced": "It waits for a host.",
    "making": "It is being made.",
    "preparing": "It sets itself up, once.",
    "waiting": "It waits for its host.",
    "failed": "It does not start. Try Start once; then tell an admin its name, or give it back and take another one.",
    "unknown": "Its host does not answer just now. What you do in it is not lost.",
    "lost": "Its VM is gone. Tell an admin its name.",
}
DONE = {
    "take": "{name} is yours.",
    "start": "{name} starts.",
    "stop": "{name} shuts down.",
    "restart": "{name} restarts.",
    "release": "{name} was given back.",
    "password": "Your password was changed. Everywhere else you are signed out.",
}
"""What the page says once after a change of one's own desktop or password."""
_USABLE = RESTARTABLE | {"unknown", "failed"}
"""Phases in which a desktop may be open, or can be looked at; in others nothing is there to connect to."""
_BY_ADDRESS = "It is ready: open its address with your remote desktop program."
_CONNECTED = "It is ready: connect to it from your computer, as it says below."
_KINDS = {
    "floating": "A fresh desktop each time: what you leave in it is deleted when you log off.",
    "dedicated": "Yours alone: what you save stays.",
}


class PortalButton(Value):
    """A button. `action`: of `forms.ACTIONS`; `field`, `value`: what it sends. `asks`: a page asks first.

    `have`: so many desktops of the pool he has as the page shows it, so that pressing twice gives no second one.
    """

    action: str
    text: str
    field: str
    value: str
    asks: bool = False
    have: int | None = None


class PortalCard(Value):
    """A pool of which somebody may have a desktop, or a desktop that he has. `facts`: names and cells.

    `opens`: the address that opens it; None: its user does that himself, or cannot yet. `commands`: those that connect
    his own computer to it. `console`: the address of its console, where he has it.
    """

    title: str
    text: str
    color: int
    badge: Cell | None = None
    facts: tuple[tuple[str, Cell], ...] = ()
    buttons: tuple[PortalButton, ...] = ()
    note: str = ""
    opens: str | None = None
    commands: tuple[str, ...] = ()
    console: str | None = None


class Portal(Value):
    """The cards. `token`: what their forms carry."""

    cards: tuple[PortalCard, ...]
    token: str


def portal_view(
    pools: Sequence[MyPoolResult],
    desktops: Sequence[MyDesktopResult],
    token: str,
    limits: Sequence[LimitResult] = (),
    who: str = "",
    site: str = "",
    *,
    own_password: bool = False,
) -> PageView:
    """Return the page of somebody's desktops, and of the pools that he may take one from; `limits`: his quota.

    `who`: his name; `site`: the URL of the controller, as his browser has it. `own_password`: he can change it here.
    """
    colors = pool_colors([*(one.name for one in pools), *(one.pool for one in desktops)])
    own = tuple(_desktop_card(one, colors[one.pool], who, site) for one in desktops)
    others = tuple(_pool_card(one, colors[one.name]) for one in pools if one.desktops < one.per_user)
    sections = []
    if own or not others:
        sections.append(Section("desktops", "Your desktops", "portal", Portal(own, token)))
    if others:
        sections.append(Section("pools", "Take a desktop", "portal", Portal(others, token)))
    last = sections.pop()
    password = (Link("Your password", CHANGE_PATH),) if own_password else ()
    sections.append(replace(last, links=(Link("Your tokens for programs", "/my/tokens"), *password)))
    used = ", ".join(limit_text(one.name, one.used, one.most) for one in limits)
    return PageView("My desktops", "my", used or plural(len(own), "desktop"), tuple(sections))


def done_path(action: str, name: str = "") -> str:
    """Return where a browser goes after a change of one's own desktop or password."""
    return with_query("/my", {"done": action, "name": name})


def done_section(action: str, name: str) -> Section | None:
    """Return what was done, for the page after it; None: the address does not say that.

    Raises:
        InvalidInput: the name is none that a desktop has.
    """
    if action not in DONE or bool(name) is not ("{name}" in DONE[action]):
        return None
    return Section("done", "", "done", DONE[action].format(name=checked_name(name) if name else ""))


def _desktop_card(one: MyDesktopResult, color: int, who: str, site: str) -> PortalCard:
    if one.phase not in _USABLE:
        one = replace(one, address=None, opens=None, connect=())
    text, badge = _TEXTS.get(one.phase, ""), badge_of(one.phase)
    if one.phase == "assigned" and one.address is not None:
        badge = badge_of("ready")
        text = "It is ready." if one.opens is not None else _CONNECTED if one.connect else _BY_ADDRESS
    if one.usual_seconds is not None:
        text += f" That usually takes {_duration(one.usual_seconds)}."
    if one.restart_failed:
        text = f"{text} The restart failed. Try it once more; then tell an admin its name.".strip()
    opens = one.opens if one.opens != OPEN_RDP else f"{OPEN_PATH}?name={quote(one.name, safe='')}"
    note = _KINDS.get(one.kind or "", "")
    console = console_path(one.name) if one.console and one.phase in RESTARTABLE else None
    if opens is not None and one.opens == OPEN_RDP:
        note = f"Open downloads a file: open it with your remote desktop program. {note}".strip()
    return PortalCard(
        one.name, text, color, badge, _facts(one), _own_buttons(one), note, opens,
        tuple(_command(one, port, who, site) for port in one.connect), console,
    )  # fmt: skip


def _own_buttons(one: MyDesktopResult) -> tuple[PortalButton, ...]:
    is_off = one.power == "off" or one.phase == "off"
    power = ("start", "Start") if is_off else ("stop", "Shut down")
    buttons = [PortalButton(*power, "name", one.name, asks=not is_off)]
    if one.phase in RESTARTABLE:
        buttons.append(PortalButton("restart", "Restart", "name", one.name, asks=True))
    if one.logon == "local" and not is_off:
        buttons.append(PortalButton("new-password", "New password", "name", one.name, asks=True))
    if one.kind == "floating":
        buttons.append(PortalButton("release", "Give back", "name", one.name, asks=True))
    return tuple(buttons)


def _facts(one: MyDesktopResult) -> tuple[tuple[str, Cell], ...]:
    facts = []
    if one.address is not None:
        facts.append(("Address", Cell(one.address, style="code")))
    if one.lease_until is not None:
        facts.append(("Yours until", time_cell(one.lease_until)))
    if one.watched_by is not None:
        facts.append((f"{one.watched_by} opened its screen", time_cell(one.watched_at)))
        if one.watched_until is not None:
            facts.append(("and closed it", time_cell(one.watched_until)))
    return tuple(facts)


def _command(one: MyDesktopResult, port: int, who: str, site: str) -> str:
    """Return the command that connects a port of its user's computer to one of a desktop."""
    words = ["connect-desktop", one.name, "--port", str(port), "--user", who, "--controller", site]
    return shlex.join(["vgpuctl", "controller", *words])


def _duration(seconds: int) -> str:
    """Return a time as people say it."""
    return "less than a minute" if seconds < 50 else f"about {plural(round(seconds / 60), 'minute')}"


def _pool_card(one: MyPoolResult, color: int) -> PortalCard:
    text = _KINDS.get(one.kind, "")
    if one.state != "active":
        reason = f": {one.reason}" if one.reason else ""
        return PortalCard(one.name, text, color, note=f"It gives no desktops just now{reason}")
    take = PortalButton("take", "Take a desktop", "pool", one.name, have=one.desktops)
    return PortalCard(one.name, text, color, buttons=(take,))
