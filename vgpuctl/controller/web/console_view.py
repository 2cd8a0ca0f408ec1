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
    """The console. `ticket`, `stream`: where they are. `token`: what a change carries."""

    name: str
    lines: tuple[str, ...]
    ticket: str
    stream: str
    token: str


def console_path(name: str) -> str:
    """Return the path of a desktop's console."""
    return CONSOLE.format(name=quote(name, safe=""))


def console_view(one: DesktopConsoleResult, token: str) -> PageView:
    """Return the page. `token`: what a change carries."""
    lines = ["For setting up and for rescue: the VM's own screen, from its start on. To work, open the desktop."]
    if one.profile is not None:
        lines.append("It can stay dark: a guest that draws on its vGPU often shows nothing here.")
    if one.is_watched:
        lines.append(
            f"{one.user} has this desktop, and sees that you opened the screen: on My desktops, and, where its guest "
            "helper runs, by a message in it."
        )
    path, name = f"{API}/desktops/{quote(one.name, safe='')}", one.name
    view = ConsoleView(
        name, tuple(lines),
        API + CALLS["open-console"].path.format(name=quote(name, safe="")), f"{path}/screen", token,
    )  # fmt: skip
    trail = (Link("Desktops", "/desktops"), Link(name, path_of("desktops", name)))
    return PageView("Console", "desktops", f"the screen of {name}", (Section("console", "", "console", view),), trail)
