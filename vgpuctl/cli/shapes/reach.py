# SPDX-License-Identifier: Apache-2.0
"""How a VM is reached: its screens, serial consoles and addresses."""

from __future__ import annotations

from typing import Literal, TypedDict

StateWord = Literal["running", "paused", "stopped", "crashed", "unknown", "absent"]


class ScreenShape(TypedDict):
    """A VM's screen. Null: not given yet, or none; `password` null: this user may not see whether one is set."""

    type: str
    listen: str | None
    port: int | None
    tls_port: int | None
    socket: str | None
    password: bool | None


class SerialShape(TypedDict):
    """A VM's serial console: the terminal on the host, null while the VM is off, and the command that opens it."""

    target: str
    terminal: str | None
    command: list[str]


class ConsoleShape(TypedDict):
    """How a VM's screens and serial consoles are reached."""

    name: str
    uuid: str
    state: StateWord
    graphics: list[ScreenShape]
    serial: list[SerialShape]


class AddressShape(TypedDict):
    """An IP address of a guest. `interface` is the guest's name of the card by its agent, the host's otherwise."""

    address: str
    prefix: int
    family: Literal["ipv4", "ipv6"]
    mac: str | None
    interface: str


class AddressesShape(TypedDict):
    """The addresses of a running VM, and who knows them."""

    name: str
    uuid: str
    source: Literal["agent", "lease", "arp"]
    addresses: list[AddressShape]


class GuestShape(TypedDict):
    """A guest that answered: who knows it, and its addresses; none when only its agent answers yet."""

    source: Literal["agent", "lease", "arp"]
    addresses: list[AddressShape]
