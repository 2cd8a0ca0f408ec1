# SPDX-License-Identifier: Apache-2.0
"""How to reach a VM: its screen, its serial console and its addresses; nothing is changed."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from vgpuctl.domain.console import parse_consoles
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import Busy, LibvirtFailed, Refused
from vgpuctl.model import hint_commands
from vgpuctl.model.outcome import Context, QueryResult
from vgpuctl.model.port_values import DomainInfo, GuestAddress
from vgpuctl.model.results.vms import (
    AddressesResult,
    AddressResult,
    ConsoleResult,
    GuestResult,
    ScreenResult,
    SerialResult,
)
from vgpuctl.model.vm import NOT_RUNNING_STATES
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.observe.definition import read_vm
from vgpuctl.operations.guards import find_vm, refuse_others_vm
from vgpuctl.operations.seen_addresses import SEEN_SOURCES, read_seen

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

ADDRESS_SOURCES = ("agent", "lease", "arp")
"""The sources of addresses, in this order: the guest itself, then those that only observe it."""

_HINT = "try again when it has booted; with qemu-guest-agent in the guest its addresses are known on any network"
_SEEN_HINT = (
    "the host sees DHCP leases of libvirt's networks, and guests that it exchanged packets with on a bridge where it "
    "has an address itself"
)
_GONE_OR_OFF = (42, 55)
"""libvirt's numbers for "no such domain" and "the domain is not running"; the next look at the VM says which."""


def read_console(host: Host, context: Context, name: str) -> QueryResult[ConsoleResult]:
    """Return how a VM's screen and serial console are reached, from the running VM's own XML.

    Raises:
        NotFound: with similar names.
        NotYours: it is another account's.
    """
    domain = _own_domain(host, context, name)
    consoles = parse_consoles(domain.live_xml or domain.xml)
    protected = host.hypervisor.password_protected_graphics(domain.uuid)
    uri = host.hypervisor.status().uri
    screens = (
        ScreenResult(
            type=s.kind,
            listen=s.listen,
            port=s.port,
            tls_port=s.tls_port,
            socket=s.socket,
            password=None if protected is None else s.kind in protected,
        )
        for s in consoles.graphics
    )
    command = ("virsh", "-c", uri, "console", domain.name)
    serial = tuple(SerialResult(kind, tty, command) for kind, tty in consoles.serial_consoles)
    data = ConsoleResult(domain.name, domain.uuid, domain.state, tuple(screens), serial)
    off_notes = (f"{domain.name} is {domain.state}: ports and terminals are assigned when it starts",)
    return QueryResult(data, () if domain.live_xml is not None else off_notes)


def read_addresses(
    host: Host, context: Context, name: str, *, seen_by_host: bool = False
) -> QueryResult[AddressesResult]:
    """Return a running guest's addresses by the first source that knows one: agent, DHCP lease, ARP.

    `seen_by_host`: what the guest says does not count, see `seen_addresses`.

    Raises:
        NotFound: with similar names.
        NotYours: it is another account's.
        Refused: the VM is off.
        Busy: no source knows an address yet.
    """
    domain = _own_domain(host, context, name)
    if domain.live_xml is None or domain.state in NOT_RUNNING_STATES:
        raise Refused(
            f"{domain.name} is {domain.state}: it has no address",
            hint=hint_commands.start_command(parse_domain(domain.xml, domain.state, host.machine_id)),
            vm=domain.name,
            state=str(domain.state),
        )
    vm = parse_domain(domain.live_xml, domain.state, host.machine_id)
    macs = frozenset(vm.mac_addresses)
    silent: list[str] = []
    sources = SEEN_SOURCES if seen_by_host else ADDRESS_SOURCES
    for source in sources:
        if seen_by_host:
            reported = read_seen(host, domain.uuid, domain.live_xml, source)
        else:
            reported = host.hypervisor.guest_addresses(domain.uuid, source)
        if reported is None:
            silent.append(source)
        addresses = select_reachable(reported or (), macs)
        if addresses:
            results = tuple(_address_result(address) for address in addresses)
            return QueryResult(AddressesResult(domain.name, domain.uuid, source, results))
    config = vm.record.requested("network_config", str) if vm.record else None
    hint = _SEEN_HINT if seen_by_host else _HINT
    raise Busy(
        f"no address of {domain.name} is known yet: "
        + ", ".join(_describe_source(source, source in silent) for source in sources),
        hint=f"{config} is the network configuration that it was given; {hint}" if config else hint,
        vm=domain.name,
        sources=list(sources),
        silent=silent,
    )


def select_reachable(addresses: tuple[GuestAddress, ...], macs: frozenset[str]) -> tuple[GuestAddress, ...]:
    """Return the addresses at which others reach the guest, IPv4 first.

    Loopback and link-local addresses are left out. So are interfaces that the guest created itself (a container's
    bridge), if a network card of the VM has an address.
    """
    reachable = [a for a in addresses if _is_reachable(a.address)]
    card_addresses = [a for a in reachable if a.mac in macs] or reachable
    return tuple(
        sorted(card_addresses, key=lambda a: (ipaddress.ip_address(a.address).version, card_addresses.index(a)))
    )


def _is_reachable(text: str) -> bool:
    """Say whether others can use it; the guest itself reports its addresses, so the text may be no address at all."""
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not parsed.is_loopback and not parsed.is_link_local


def _address_result(address: GuestAddress) -> AddressResult:
    """Return one address's result."""
    family = f"ipv{ipaddress.ip_address(address.address).version}"
    return AddressResult(address.address, address.prefix, family, address.mac, address.interface)


def _describe_source(source: str, silent: bool) -> str:
    words = {"agent": "the guest agent", "lease": "DHCP", "arp": "ARP"}[source]
    return f"{words} does not answer" if silent else f"{words} knows none"


def read_guest(host: Host, uuid: str, macs: frozenset[str], *, needs_address: bool) -> GuestResult | None:
    """Return the source that knows the guest and its addresses, None if no source does yet."""
    for source in ADDRESS_SOURCES:
        try:
            reported = host.hypervisor.guest_addresses(uuid, source)
        except LibvirtFailed as error:
            if error.facts.get("libvirt_code") in _GONE_OR_OFF:
                return None
            raise
        reachable = select_reachable(reported or (), macs)
        if reachable or (source == "agent" and reported is not None and not needs_address):
            return GuestResult(source, tuple(_address_result(address) for address in reachable))
    return None


def require_domain(host: Host, name: str) -> DomainInfo:
    """Return the domain of that name or uuid, managed or not.

    Raises:
        NotFound: with similar names.
    """
    domain = host.hypervisor.find_domain(name)
    if domain is not None:
        return domain
    vm = find_vm(observe(host, scope_of_vm(name)), name)
    named_domain = host.hypervisor.find_domain(vm.uuid)
    if named_domain is None:
        raise Busy(f"VM {name} was deleted in the meantime", hint="vgpuctl list-vms shows the VMs", vm=name)
    return named_domain


def _own_domain(host: Host, context: Context, name: str) -> DomainInfo:
    """Return the domain of that name or uuid, whose guest the caller may reach.

    Raises:
        NotFound: with similar names.
        NotYours: it is another account's.
    """
    domain = require_domain(host, name)
    if context.caller is not None:
        refuse_others_vm(context, read_vm(host, domain))
    return domain
