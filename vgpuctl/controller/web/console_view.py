# SPDX-License-Identifier: Apache-2.0
"""The page of a desktop's console: noVNC on the stream of its screen."""

from __future__ import annotations

from urllib.parse import quote

from vgpuctl.controller.routes import API, CALLS
from vgpuctl.controller.web.cells import path_of
from vgpuctl.controller.web.parts import Link, PageView, Section
from vgpuctl.model.results.people import DesktopConsoleResult
from vgpuctl.value import Value

CONSOLE = "/desktops/{name}/console"


class ConsoleView(Value):
    """The console. `ticket`, `stream`: where they are. `token`: what a change carries. `at_once`: no click."""

    name: str
    lines: tuple[str, ...]
    button: str
    ticket: str
    stream: str
    token: str
    at_once: bool


def console_path(name: str) -> str:
    """Return the path of a desktop's console."""
    return CONSOLE.format(name=quote(name, safe=""))


def console_view(one: DesktopConsoleResult, token: str) -> PageView:
    """Return the page. `token`: what a change carries."""
    lines = ["For setting up and for rescue: the VM's own screen, from its firmware on. It is no desktop to work with."]
    if one.profile is not None:
        lines.append(
            "A guest that draws on its vGPU often shows nothing here. Open the desktop as its users do, or look at its "
            "serial console: vgpuctl show-console says how."
        )
    if one.is_watched:
        lines.append(
            f"{one.user} has this desktop: a message there says that you see the screen, and the journal, too."
        )
    path, name = f"{API}/desktops/{quote(one.name, safe='')}", one.name
    view = ConsoleView(
        name, tuple(lines), f"Show the screen to me, and tell {one.user}" if one.is_watched else "Open the screen",
        API + CALLS["open-console"].path.format(name=quote(name, safe="")), f"{path}/screen", token, not one.is_watched,
    )  # fmt: skip
    trail = (Link("Desktops", "/desktops"), Link(name, path_of("desktops", name)))
    return PageView("Console", "desktops", f"the screen of {name}", (Section("console", "", "console", view),), trail)
