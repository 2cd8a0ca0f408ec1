# SPDX-License-Identifier: Apache-2.0
"""How a domain is reached on its screen and its serial console, as its XML says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.model.digits import whole
from vgpuctl.value import Value

if TYPE_CHECKING:
    from lxml.etree import _Element


class Screen(Value):
    """A `<graphics>`: what is not said, or only at the start (a port), is None.

    `listen` is an address, or with `socket` nothing: a UNIX socket's path is in `socket`.
    """

    kind: str
    port: int | None = None
    tls_port: int | None = None
    listen: str | None = None
    socket: str | None = None


class Console(Value):
    """Screens, and serial consoles: (kind of port, terminal on the host, None while the VM is off)."""

    screens: tuple[Screen, ...] = ()
    terminals: tuple[tuple[str, str | None], ...] = ()


def console_of(xml: str) -> Console:
    """Read a domain's XML: the live one when it runs, its config XML otherwise."""
    from vgpuctl.domain.parse import root_of  # with lxml

    devices = root_of(xml).find("devices")
    if devices is None:
        return Console()
    terminals = []
    for entry in devices.findall("console"):
        target = entry.find("target")
        tty = entry.get("tty")
        source = entry.find("source")
        if tty is None and source is not None:
            tty = source.get("path")
        kind = str(target.get("type", "serial")) if target is not None else "serial"
        if entry.get("type") == "pty":
            terminals.append((kind, None if tty is None else str(tty)))
    return Console(tuple(_screen(entry) for entry in devices.findall("graphics")), tuple(terminals))


def _screen(entry: _Element) -> Screen:
    listen = entry.find("listen")
    address = entry.get("listen")
    socket = entry.get("socket")
    if listen is not None:
        address = listen.get("address", address) if listen.get("type") in ("address", "network") else None
        socket = listen.get("socket", socket)
    return Screen(
        kind=str(entry.get("type", "?")),
        port=_port(entry.get("port")),
        tls_port=_port(entry.get("tlsPort")),
        listen=None if address is None else str(address),
        socket=None if socket is None else str(socket),
    )


def _port(text: object) -> int | None:
    number = whole(str(text or ""))
    return number if number is not None and number > 0 else None
