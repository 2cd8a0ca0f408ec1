# SPDX-License-Identifier: Apache-2.0
"""How to reach a VM: its screen and serial console, and the guest's addresses. Nothing is changed."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from vgpuctl.domain.console import parse_consoles
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import Busy, Refused
from vgpuctl.model import hint_commands
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.port_values import DomainInfo, GuestAddress
from vgpuctl.model.results.vms import AddressesResult, AddressResult, ConsoleResult, ScreenResult, SerialResult
from vgpuctl.model.vm import NOT_RUNNING_STATES
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.operations.guards import find_vm
from vgpuctl.operations.plans.vm_results import cloud_init_files

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

ADDRESS_SOURCES = ("agent", "lease", "arp")
"""The sources of addresses, in this order: the guest itself, then those that only observe it."""


def read_console(host: Host, name: str) -> QueryResult[ConsoleResult]:
    """Return how a VM's screen and serial console are reached, from the running VM's own XML.

    Raises:
        NotFound: with similar names.
    """
    domain = require_domain(host, name)
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


def read_addresses(host: Host, name: str) -> QueryResult[AddressesResult]:
    """Return a running guest's addresses by the first source that knows one: agent, DHCP lease, ARP.

    Raises:
        NotFound: with similar names.
        Refused: the VM is off.
        Busy: no source knows an address yet.
    """
    domain = require_domain(host, name)
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
    for source in ADDRESS_SOURCES:
        reported = host.hypervisor.guest_addresses(domain.uuid, source)
        if reported is None:
            silent.append(source)
        addresses = select_reachable(reported or (), macs)
        if addresses:
            results = tuple(address_result(address) for address in addresses)
            return QueryResult(AddressesResult(domain.name, domain.uuid, source, results))
    config = cloud_init_files(vm).get("network_config")
    hint = "try again when it has booted; with qemu-guest-agent in the guest its addresses are known on any network"
    raise Busy(
        f"no address of {domain.name} is known yet: "
        + ", ".join(_describe_source(source, source in silent) for source in ADDRESS_SOURCES),
        hint=f"{config} is the network configuration that it was given; {hint}" if config else hint,
        vm=domain.name,
        sources=list(ADDRESS_SOURCES),
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


def address_result(address: GuestAddress) -> AddressResult:
    """Return one address's result."""
    family = f"ipv{ipaddress.ip_address(address.address).version}"
    return AddressResult(address.address, address.prefix, family, address.mac, address.interface)


def _describe_source(source: str, silent: bool) -> str:
    words = {"agent": "the guest agent", "lease": "DHCP", "arp": "ARP"}[source]
    return f"{words} does not answer" if silent else f"{words} knows none"


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
