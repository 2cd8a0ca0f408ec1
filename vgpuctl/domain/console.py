# SPDX-License-Identifier: Apache-2.0
"""How to reach a domain's screen, serial console and network cards, according to its XML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.domain.domain_xml import parse_root
from vgpuctl.model.numbers import parse_integer
from vgpuctl.value import Value

if TYPE_CHECKING:
    from lxml.etree import _Element


class GraphicsDevice(Value):
    """A `<graphics>` element; a value that the XML does not have, or only after the start (a port), is None.

    `listen` is an address; for a UNIX socket it is None, and `socket` has the path.
    """

    kind: str
    port: int | None = None
    tls_port: int | None = None
    listen: str | None = None
    socket: str | None = None


class ConsoleDevices(Value):
    """Screens, and serial consoles: (kind of port, terminal on the host, None while the VM is off)."""

    graphics: tuple[GraphicsDevice, ...] = ()
    serial_consoles: tuple[tuple[str, str | None], ...] = ()


def parse_consoles(xml: str) -> ConsoleDevices:
    """Read a domain's XML: the live one when it runs, its config XML otherwise."""
    devices = parse_root(xml).find("devices")
    if devices is None:
        return ConsoleDevices()
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
    return ConsoleDevices(tuple(_parse_graphics(entry) for entry in devices.findall("graphics")), tuple(terminals))


def _parse_graphics(entry: _Element) -> GraphicsDevice:
    listen = entry.find("listen")
    address = entry.get("listen")
    socket = entry.get("socket")
    if listen is not None:
        address = listen.get("address", address) if listen.get("type") in ("address", "network") else None
        socket = listen.get("socket", socket)
    return GraphicsDevice(
        kind=str(entry.get("type", "?")),
        port=_parse_port(entry.get("port")),
        tls_port=_parse_port(entry.get("tlsPort")),
        listen=None if address is None else str(address),
        socket=None if socket is None else str(socket),
    )


def _parse_port(text: object) -> int | None:
    number = parse_integer(str(text or ""))
    return number if number is not None and number > 0 else None


def parse_nic_bridges(live_xml: str) -> Mapping[str, str]:
    """Return the host's bridge of each network card by its MAC address, in lower case; cards on none are left out.

    The XML of a running domain also has the bridge of a libvirt network (libvirt's formatdomain, "interface").
    """
    bridges = {}
    for interface in parse_root(live_xml).iterfind("devices/interface"):
        mac, source = interface.find("mac"), interface.find("source")
        if mac is None or source is None or interface.get("type") not in ("network", "bridge"):
            continue
        address, bridge = mac.get("address"), source.get("bridge")
        if address and bridge:
            bridges[str(address).lower()] = str(bridge)
    return bridges
