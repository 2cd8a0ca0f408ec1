# SPDX-License-Identifier: Apache-2.0
"""The pages about VM images, about a VM's screen and console, its addresses, and about waiting for VMs."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from vgpuctl.cli.pages import Page
from vgpuctl.cli.tables import Pairs
from vgpuctl.model.results.vms import AddressesResult, ConsoleResult, ImageResult, ScreenResult, WaitedVmResult


def _images(data: tuple[ImageResult, ...]) -> Page:
    if not data:
        return Page(
            stderr_lines=[
                "no images to list; list-images PATH shows any image, also without clones, and those of a directory"
            ]
        )
    orphan_count = sum(image.role == "orphan" for image in data)
    stderr_lines = [f"{orphan_count} named like disks of vgpuctl, and no VM refers to them"] if orphan_count else []
    return Page(stderr_lines=stderr_lines)


def _console(data: ConsoleResult) -> Page:
    items = [("name", str(data.name)), ("state", str(data.state))]
    for screen in data.graphics:
        password = {True: "asks for a password", False: "no password", None: "password not known"}[screen.password]
        items.append((screen.type, f"{_screen_address(screen)}, {password}"))
    items += [("serial", shlex.join(serial.command)) for serial in data.serial]
    stderr_lines = [] if data.graphics or data.serial else [f"{data.name} has neither a screen nor a serial console"]
    if data.serial:
        stderr_lines.append("the command after 'serial:' opens the serial console in this terminal; Ctrl-] leaves it")
    for screen in data.graphics:
        port, listen = screen.port, screen.listen
        if port and listen in ("127.0.0.1", "::1", "localhost"):
            stderr_lines.append(f"from another machine: ssh -L {port}:localhost:{port} HOST, then localhost:{port}")
    return Page([Pairs(tuple(items))], stderr_lines)


def _screen_address(screen: ScreenResult) -> str:
    if screen.socket:
        return str(screen.socket)
    host = f"[{screen.listen}]" if ":" in (screen.listen or "") else (screen.listen or "?")
    ports = [f"{host}:{screen.port}"] if screen.port else []
    ports += [f"{host}:{screen.tls_port} (TLS)"] if screen.tls_port else []
    return " and ".join(ports) or "no port yet"


def _address(data: AddressesResult) -> Page:
    source = {"agent": "the guest agent", "lease": "a DHCP lease", "arp": "the host's ARP table"}[data.source]
    return Page([str(entry.address) for entry in data.addresses], [f"known from {source}"])


def _waited(data: tuple[WaitedVmResult, ...]) -> Page:
    lines = []
    for vm in data:
        addresses = [str(entry.address) for entry in (() if vm.guest is None else vm.guest.addresses)]
        lines.append(", ".join((f"{vm.name}: {vm.state}", *addresses)))
    return Page(lines)


PAGES: dict[str, Callable[[Any], Page]] = {
    "list-images": _images,
    "show-console": _console,
    "show-address": _address,
    "wait": _waited,
}
