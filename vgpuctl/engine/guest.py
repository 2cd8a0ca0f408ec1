# SPDX-License-Identifier: Apache-2.0
"""How to reach a VM: its screen and serial console, and the addresses of the system in it; only looks."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from vgpuctl.domain.console import console_of
from vgpuctl.domain.parse import parse
from vgpuctl.engine.guards import find_vm
from vgpuctl.engine.observe import Want, observe
from vgpuctl.errors import Busy, Refused
from vgpuctl.model import commands
from vgpuctl.model.outcome import Answer
from vgpuctl.model.records import DomainRecord, GuestAddress
from vgpuctl.model.vm import OFF_OR_CRASHED

if TYPE_CHECKING:
    from vgpuctl.model.world import World

SOURCES = ("agent", "lease", "arp")
"""Who is asked for addresses, in this order: the guest itself, then those who only saw it."""


def console(world: World, name: str) -> Answer:
    """Return how a VM's screen and serial console are reached, as the running VM's own XML says.

    Raises:
        NotFound: with names that are near.
    """
    record = _found(world, name)
    seen = console_of(record.live_xml or record.xml)
    locked = world.hypervisor.graphics_passwords(record.uuid)
    uri = world.hypervisor.status().uri
    screens = [
        {
            "type": s.kind,
            "listen": s.listen,
            "port": s.port,
            "tls_port": s.tls_port,
            "socket": s.socket,
            "password": None if locked is None else s.kind in locked,
        }
        for s in seen.screens
    ]
    command = ["virsh", "-c", uri, "console", record.name]
    serial = [{"target": kind, "terminal": tty, "command": command} for kind, tty in seen.terminals]
    data = {"name": record.name, "uuid": record.uuid, "state": str(record.state), "graphics": screens, "serial": serial}
    off = (f"{record.name} is {record.state}: ports and terminals are given when it starts",)
    return Answer(data, () if record.live_xml is not None else off)


def address(world: World, name: str) -> Answer:
    """Return a running guest's addresses by the first source that knows one: agent, DHCP lease, ARP.

    Raises:
        NotFound: with names that are near.
        Refused: the VM is off.
        Busy: no source knows an address yet.
    """
    record = _found(world, name)
    if record.live_xml is None or record.state in OFF_OR_CRASHED:
        raise Refused(
            f"{record.name} is {record.state}: it has no address",
            hint=commands.to_start(parse(record.xml, record.state, world.machine_id)),
            vm=record.name,
            state=str(record.state),
        )
    macs = frozenset(parse(record.live_xml, record.state, world.machine_id).mac_addresses)
    silent: list[str] = []
    for source in SOURCES:
        answer = world.hypervisor.guest_addresses(record.uuid, source)
        if answer is None:
            silent.append(source)
        known = useful(answer or (), macs)
        if known:
            values = [address_value(each) for each in known]
            data = {"name": record.name, "uuid": record.uuid, "source": source, "addresses": values}
            return Answer(data)
    raise Busy(
        f"no address of {record.name} is known yet: "
        + ", ".join(_said(source, source in silent) for source in SOURCES),
        hint="try again when it has booted; with qemu-guest-agent in the guest its addresses are known on any network",
        vm=record.name,
        asked=list(SOURCES),
        silent=silent,
    )


def useful(found: tuple[GuestAddress, ...], macs: frozenset[str]) -> tuple[GuestAddress, ...]:
    """Return the addresses that others reach the guest by, IPv4 first.

    Loopback and link-local ones are left out, and what the guest made itself (a container's bridge) too, when a
    card that the VM was given has an address.
    """
    reached = [a for a in found if _reaches_others(a.address)]
    own = [a for a in reached if a.mac in macs] or reached
    return tuple(sorted(own, key=lambda a: (ipaddress.ip_address(a.address).version, own.index(a))))


def _reaches_others(text: str) -> bool:
    """Say whether others can use it; the guest itself says what its addresses are, so it may be no address at all."""
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not parsed.is_loopback and not parsed.is_link_local


def address_value(known: GuestAddress) -> dict[str, object]:
    """Return one address's JSON value."""
    family = f"ipv{ipaddress.ip_address(known.address).version}"
    where = {"mac": known.mac, "interface": known.interface}
    return {"address": known.address, "prefix": known.prefix, "family": family, **where}


def _said(source: str, silent: bool) -> str:
    words = {"agent": "the guest agent", "lease": "DHCP", "arp": "ARP"}[source]
    return f"{words} does not answer" if silent else f"{words} knows none"


def _found(world: World, name: str) -> DomainRecord:
    record = world.hypervisor.find_domain(name)
    if record is not None:
        return record
    vm = find_vm(observe(world, Want(models=False)), name)
    found = world.hypervisor.find_domain(vm.uuid)
    if found is None:
        raise Busy(f"VM {name} went away meanwhile", hint="vgpuctl list-vms shows those there are", vm=name)
    return found
