# SPDX-License-Identifier: Apache-2.0
"""How a VM is reached: its screens, serial consoles and addresses."""

from __future__ import annotations

from typing import Annotated, Literal

from vgpuctl.model.vm import VmState
from vgpuctl.value import Value

StateWord = VmState | Literal["absent"]


class ScreenResult(Value):
    """A VM's screen. Null: not given yet, or none; `password` null: this user may not see whether one is set."""

    type: str
    listen: str | None
    port: int | None
    tls_port: int | None
    socket: str | None
    password: bool | None


class SerialResult(Value):
    """A VM's serial console: the terminal on the host, null while the VM is off, and the command that opens it."""

    target: str
    terminal: str | None
    command: tuple[str, ...]


class ConsoleResult(Value):
    """How a VM's screens and serial consoles are reached."""

    name: str
    uuid: str
    state: StateWord
    graphics: tuple[ScreenResult, ...]
    serial: tuple[SerialResult, ...]


class AddressResult(Value):
    """An IP address of a guest. `interface` is the guest's name of the card by its agent, the host's otherwise."""

    address: str
    prefix: int
    family: Annotated[str, "ipv4", "ipv6"]
    mac: str | None
    interface: str


class AddressesResult(Value):
    """The addresses of a running VM, and who knows them."""

    name: str
    uuid: str
    source: Annotated[str, "agent", "lease", "arp"]
    addresses: tuple[AddressResult, ...]


class GuestResult(Value):
    """A guest that answered: who knows it, and its addresses; none when only its agent answers yet."""

    source: Annotated[str, "agent", "lease", "arp"]
    addresses: tuple[AddressResult, ...]
