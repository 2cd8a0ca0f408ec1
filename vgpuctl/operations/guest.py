# SPDX-License-Identifier: Apache-2.0
"""How to reach a VM, and waiting until VMs run, are off, or can be reached; nothing is changed.

libvirt has no event for an address, and a guest's agent may be connected before it answers. So `wait`, and `create-vm
--wait-for`, read each VM again, once in a second, for every state alike.
"""

from __future__ import annotations

import ipaddress
import shlex
from typing import TYPE_CHECKING

from vgpuctl.domain.console import parse_consoles
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import Busy, Interrupted, InvalidInput, LibvirtFailed, NotFound, PartlyApplied, Refused
from vgpuctl.model import hint_commands
from vgpuctl.model.outcome import Context, Outcome, QueryResult
from vgpuctl.model.port_values import DomainInfo, GuestAddress
from vgpuctl.model.results.vms import (
    AddressesResult,
    AddressResult,
    ChangedVmResult,
    ConsoleResult,
    GuestResult,
    PlannedVmResult,
    ScreenResult,
    SerialResult,
    StateWord,
    WaitedVmResult,
)
from vgpuctl.model.vm import NOT_RUNNING_STATES, Vm, VmState
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.observe.definition import read_vm
from vgpuctl.operations.guards import find_vm, refuse_others_vm
from vgpuctl.operations.transaction import deleted_meanwhile
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vgpuctl.ports.host import Host

ADDRESS_SOURCES = ("agent", "lease", "arp")
"""The sources of addresses, in this order: the guest itself, then those that only observe it."""


PAUSE_SECONDS = 1.0
_GONE_OR_OFF = (42, 55)
"""libvirt's numbers for "no such domain" and "the domain is not running"; the next look at the VM says which."""
_STATES = {"running": VmState.RUNNING, "off": VmState.STOPPED}


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


def read_addresses(host: Host, context: Context, name: str) -> QueryResult[AddressesResult]:
    """Return a running guest's addresses by the first source that knows one: agent, DHCP lease, ARP.

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
    for source in ADDRESS_SOURCES:
        reported = host.hypervisor.guest_addresses(domain.uuid, source)
        if reported is None:
            silent.append(source)
        addresses = select_reachable(reported or (), macs)
        if addresses:
            results = tuple(_address_result(address) for address in addresses)
            return QueryResult(AddressesResult(domain.name, domain.uuid, source, results))
    config = vm.record.requested("network_config", str) if vm.record else None
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


def _address_result(address: GuestAddress) -> AddressResult:
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


class _Seen(Value):
    """A VM as it was read just now. `vm`: from its last definition, for one that is gone."""

    vm: Vm
    state: StateWord
    reached: bool
    guest: GuestResult | None = None


def check_wait_options(*, wait_for: str | None, timeout: float | None, start: bool) -> None:
    """Refuse to wait for an event that cannot happen.

    Raises:
        InvalidInput: naming the options.
    """
    if wait_for is not None and not start:
        raise InvalidInput(f"--wait-for {wait_for} and --no-start cannot be combined: a VM that is off has no guest")
    if wait_for is None and timeout is not None:
        raise InvalidInput("--wait-timeout requires --wait-for guest", hint="add --wait-for guest")


def wait(
    host: Host, context: Context, names: Sequence[str], target: str, timeout_seconds: float
) -> QueryResult[tuple[WaitedVmResult, ...]]:
    """Wait until all these VMs have reached `target`: running, off, guest or address.

    Raises:
        NotFound: there is no such VM, or it was deleted meanwhile.
        NotYours: the guest of another account's VM is waited for.
        Refused: a VM whose guest is waited for is off.
        Busy: the time was over; with the state of each VM that has not reached it.
    """
    domains = {domain.uuid: domain for domain in (require_domain(host, name) for name in names)}
    vms = tuple(read_vm(host, domain) for domain in domains.values())
    if target not in _STATES:
        for vm in vms:
            refuse_others_vm(context, vm)
    seen = _poll(host, vms, target, timeout_seconds, context.progress.on_wait)
    return QueryResult(tuple(WaitedVmResult(s.vm.name, s.vm.uuid, s.state, s.guest) for s in seen))


def wait_for_guest(
    host: Host,
    context: Context,
    outcome: Outcome[ChangedVmResult | PlannedVmResult],
    timeout_seconds: float,
    target: str = "guest",
) -> Outcome[ChangedVmResult | PlannedVmResult]:
    """Wait until a new VM's guest is reached; return the outcome with `guest` in its data.

    A dry run only adds a step. Waiting never changes the VM.

    Raises:
        Busy: the time was over; the VM is left running.
        PartlyApplied: the VM was created and started, and went off meanwhile.
        Interrupted: a signal came; the VM is left running.
    """
    name, uuid = outcome.data.name, outcome.data.uuid or ""
    reached = "answers" if target == "guest" else "has an address"
    text = f"wait until the guest of {name} {reached} (at most {timeout_seconds:g} s)"
    steps = (*outcome.steps, text)
    if outcome.dry_run:
        return replace(outcome, steps=steps)
    context.progress.on_plan((text,))
    try:
        domain = host.hypervisor.find_domain(uuid)
        if domain is None:
            raise _went_off_error(name)
        on_poll = lambda: context.progress.on_step_start(1, text)  # noqa: E731
        (seen,) = _poll(host, (read_vm(host, domain),), target, timeout_seconds, on_poll)
    except Interrupted as error:
        error.left.append(f"VM {name}: it is created and runs")
        raise
    except (NotFound, Refused) as error:
        raise _went_off_error(name) from error
    except Busy as time_over:
        event = "did not answer" if target == "guest" else "has got no address"
        late = Busy(
            f"{name} was created and runs, but its guest {event} within {timeout_seconds:g} s",
            hint=f"vgpuctl wait {shlex.quote(name)} --for {target} waits longer",
            vm=name,
            uuid=uuid,
            waited_seconds=timeout_seconds,
        )
        late.changed = True
        raise late from time_over
    context.progress.on_step_finish(1, text)
    guest = seen.guest
    return replace(outcome, data=outcome.data if guest is None else replace(outcome.data, guest=guest), steps=steps)


def _poll(
    host: Host, vms: tuple[Vm, ...], target: str, timeout_seconds: float, on_poll: Callable[[], None]
) -> tuple[_Seen, ...]:
    """Read all VMs until they have reached the target at the same time.

    `on_poll`: reports progress, and raises after a signal.
    """
    start_time = host.clock.monotonic()
    while True:
        on_poll()
        seen = tuple(_look(host, vm, target) for vm in vms)
        vms = tuple(s.vm for s in seen)
        pending = [s for s in seen if not s.reached]
        if not pending:
            return seen
        seconds_left = start_time + timeout_seconds - host.clock.monotonic()
        if seconds_left <= 0:
            raise _time_over(pending, len(seen), target, timeout_seconds)
        host.clock.sleep(min(PAUSE_SECONDS, seconds_left))


def _look(host: Host, vm: Vm, target: str) -> _Seen:
    """Read a VM.

    Raises:
        NotFound: it was deleted. A VM without a definition is deleted by its stop, and counts as off.
        Refused: the guest of a VM that is off cannot answer.
    """
    domain = host.hypervisor.find_domain(vm.uuid)
    if domain is None:
        if target == "off" and not vm.persistent:
            return _Seen(vm, "absent", reached=True)
        raise deleted_meanwhile(vm)
    current = replace(vm, state=domain.state, persistent=domain.persistent)
    if target in ("running", "off"):
        return _Seen(current, domain.state, domain.state is _STATES[target])
    if domain.live_xml is None or domain.state in NOT_RUNNING_STATES:
        raise Refused(
            f"{vm.name} is {domain.state}: {'its guest cannot answer' if target == 'guest' else 'it has no address'}",
            hint=hint_commands.run_command(current),
            vm=vm.name,
            state=str(domain.state),
        )
    macs = frozenset(parse_domain(domain.live_xml, domain.state, host.machine_id).mac_addresses)
    guest = _read_guest(host, vm.uuid, macs, needs_address=target == "address")
    return _Seen(current, domain.state, guest is not None, guest)


def _read_guest(host: Host, uuid: str, macs: frozenset[str], *, needs_address: bool) -> GuestResult | None:
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


def _time_over(pending: Sequence[_Seen], total: int, target: str, seconds: float) -> Busy:
    """Return the error that says what has not been reached, and the state of each VM."""
    texts = [_describe(seen, target) for seen in pending]
    first = pending[0].vm
    several = f"{len(pending)} of {total} VMs {'has' if len(pending) == 1 else 'have'} not reached '{target}'"
    return Busy(
        f"{texts[0] if total == 1 else several} after {seconds:g} s",
        hint=_hint(first, target),
        lines=[] if total == 1 else texts,
        vms=[{"name": s.vm.name, "uuid": s.vm.uuid, "state": str(s.state)} for s in pending],
        waited_seconds=seconds,
        **({"vm": first.name, "uuid": first.uuid} if total == 1 else {}),
    )


def _describe(seen: _Seen, target: str) -> str:
    name = seen.vm.name
    if target in _STATES:
        return f"{name} is still {seen.state}"
    return f"the guest of {name} has not answered" if target == "guest" else f"no address of {name} is known"


def _hint(vm: Vm, target: str) -> str:
    if target == "off":
        return hint_commands.off_command(vm)
    if target == "running" or vm.state is not VmState.RUNNING:
        return hint_commands.run_command(vm)
    return f"vgpuctl show-console {shlex.quote(vm.name)} shows how to see what the guest does"


def _went_off_error(name: str) -> PartlyApplied:
    error = PartlyApplied(
        f"{name} was created and started, but stopped before its guest answered",
        hint=f"vgpuctl show-vm {name}; /var/log/libvirt/qemu/{name}.log shows why",
        vm=name,
    )
    error.left.append(f"VM {name} with its vGPUs and disks")
    return error
