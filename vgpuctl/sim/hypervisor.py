# SPDX-License-Identifier: Apache-2.0
"""The Hypervisor port of a simulated host: domains and networks, with libvirt's checks and error numbers.

A guest has no guest agent; one that boots a system gets a DHCP lease at once. A running domain's XML is its config plus
what libvirt fills in at the start: the id, the graphics port, the console's terminal. All are derived from the domain's
process id, so no two domains share one.
"""

from __future__ import annotations

import uuid as uuids

from vgpuctl.errors import Exists
from vgpuctl.model.port_values import (
    DomainInfo,
    DomainLeftovers,
    GuestAddress,
    HypervisorCapabilities,
    HypervisorStatus,
    NetworkInfo,
)
from vgpuctl.model.vm import VmState
from vgpuctl.sim import domain_xml, guest_host, starting
from vgpuctl.sim.core import Core, serialize_calls
from vgpuctl.sim.guest_access import SimGuestAccess, boots_a_system
from vgpuctl.sim.hotplug import SimHotplug
from vgpuctl.sim.machine import version_number
from vgpuctl.sim.migration import SimMigration, SimMoves
from vgpuctl.sim.objects import RunningDomain, SimDomain
from vgpuctl.sim.refusals import (
    VirError,
    VirErrorNumber,
    read_call,
    require_libvirt,
    translate_error,
    unavailable_reason,
    write_call,
)
from vgpuctl.sim.state import FIRST_PID, State

EMULATOR_PREFIX = "/usr/bin/qemu-system-"


@serialize_calls
class SimHypervisor(SimHotplug, SimGuestAccess, SimMigration, SimMoves):
    """libvirt's domains and networks on the simulated host."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._domain_infos: dict[str, tuple[str, tuple[str | None, int], DomainInfo]] = {}

    def status(self) -> HypervisorStatus:
        """Say whether libvirt answers, and if not, why."""
        self._core.read_state()
        libvirt = self._core.machine.scenario["libvirt"]
        reason = unavailable_reason(self._core)
        if reason is not None:
            return HypervisorStatus(available=False, uri="qemu:///system", reason=reason)
        return HypervisorStatus(
            available=True,
            uri="qemu:///system",
            libvirt_version=version_number(libvirt["version"]),
            qemu_version=version_number(libvirt["qemu"]),
        )

    def capabilities(self) -> HypervisorCapabilities:
        """Return what domains may use on this host."""
        with read_call(self._core, "capabilities") as state:
            libvirt, arch = state.machine.scenario["libvirt"], domain_xml.host_arch(state.machine.scenario)
            return HypervisorCapabilities(
                kvm=libvirt["kvm"],
                uefi=libvirt["uefi"],
                emulator=f"{EMULATOR_PREFIX}{arch}",
                arch=arch,
                machine=domain_xml.PCIE_MACHINES[arch],
                secure_boot=libvirt["uefi"] and libvirt.get("secure_boot", True) and arch == "x86_64",
                tpm=libvirt.get("tpm", True),
                has_opengl=libvirt.get("opengl", True),
            )

    # --------------------------------------------------------------- reading

    def domains(self) -> tuple[DomainInfo, ...]:
        """Return every domain, sorted by name."""
        with read_call(self._core, "domains") as state:
            return tuple(
                self._domain_info(state, state.domains[uuid]) for _, uuid in sorted(state.uuids_by_name.items())
            )

    def find_domain(self, name_or_uuid: str) -> DomainInfo | None:
        """Return one domain by UUID, else by exact name."""
        with read_call(self._core, "find-domain", name_or_uuid) as state:
            by_name = state.domains.get(state.uuids_by_name.get(name_or_uuid, ""))
            domain = state.domains.get(name_or_uuid.lower(), by_name)
            return self._domain_info(state, domain) if domain is not None else None

    def leftovers(self, uuid: str) -> DomainLeftovers:
        """Return what undefine would remove besides the definition."""
        with read_call(self._core, "leftovers", uuid) as state:
            domain = _require_domain(state, uuid)
        element = domain_xml.parse(domain.xml)
        return DomainLeftovers(
            nvram=domain_xml.nvram_path(element, domain.name),
            tpm=domain_xml.has_tpm(element),
            managed_save=domain.saved is not None,
        )

    def network(self, name: str) -> NetworkInfo | None:
        """Return one network by name."""
        with read_call(self._core, "network", name):
            return next((one for one in starting.find_networks(self._core.machine) if one.name == name), None)

    def networks(self) -> tuple[NetworkInfo, ...]:
        """Return every network, sorted by name."""
        with read_call(self._core, "networks"):
            return tuple(sorted(starting.find_networks(self._core.machine), key=lambda one: one.name))

    # ----------------------------------------------------------------- guest

    def guest_addresses(self, uuid: str, source: str) -> tuple[GuestAddress, ...] | None:
        """Return a running guest's addresses from one source; None if that source does not answer."""
        with read_call(self._core, "guest-addresses", self._domain_name(uuid)) as state:
            _require_domain(state, uuid)
            return addresses(state, uuid, source)

    def password_protected_graphics(self, uuid: str) -> frozenset[str] | None:
        """Return the types of graphics that ask for a password."""
        with read_call(self._core, "graphics-passwords", self._domain_name(uuid)) as state:
            domain, running = _require_domain(state, uuid), state.running.get(uuid)
            return passwords(running.xml if running else domain.xml)

    # -------------------------------------------------------------- defining

    def define(self, xml: str) -> DomainInfo:
        """Define a domain, with VIR_DOMAIN_DEFINE_VALIDATE.

        Raises:
            Exists: another domain has the name.
        """
        require_libvirt(self._core, "define")
        try:
            element = domain_xml.parse(xml)
            domain_xml.validate(element)
            domain_xml.check_architecture(element, domain_xml.host_arch(self._core.machine.scenario))
            uuid, name = domain_xml.normalise(element)
        except VirError as exc:
            raise translate_error(exc, "define", "?") from exc
        domain = SimDomain(uuid, name, domain_xml.unparse(element))
        with write_call(self._core, "define", name) as change:
            state = self._core.state
            if state.uuids_by_name.get(name, uuid) != uuid:
                raise Exists(
                    f"a VM named {name} already exists",
                    libvirt_code=int(VirErrorNumber.OPERATION_FAILED),
                    call="virDomainDefineXMLFlags",
                    vm=name,
                )
            existing = state.domains.get(uuid)
            if existing is not None and existing.name != name:
                raise VirError(
                    VirErrorNumber.OPERATION_FAILED,
                    f"operation failed: domain '{existing.name}' is already defined with uuid {uuid}",
                )
            change.add("domain", uuid, name, domain.xml)
        return self._domain_info(self._core.state, domain)

    def undefine(self, uuid: str) -> None:
        """Undefine a stopped domain, with its NVRAM and TPM state."""
        with write_call(self._core, "undefine", self._domain_name(uuid)) as change:
            _require_domain(self._core.state, uuid)
            if uuid in self._core.state.running:
                raise VirError(VirErrorNumber.OPERATION_INVALID, "cannot undefine a running domain here")
            change.add("undefine", uuid)

    def make_transient(self, uuid: str) -> None:
        """Do what `virsh undefine` does to a running domain: it becomes transient and disappears when it stops."""
        with write_call(self._core, "undefine", self._domain_name(uuid)) as change:
            change.add("transient", uuid)

    def set_record(self, uuid: str, xml: str | None) -> None:
        """Set or delete the element of namespace urn:vgpuctl:1 in the config metadata, and in the live copy."""
        with write_call(self._core, "set-record", self._domain_name(uuid)) as change:
            state = self._core.state
            change.add("splice", uuid, *_record_splice(_require_domain(state, uuid).xml, xml))
            if uuid in state.running:
                change.add("splice_live", uuid, *_record_splice(state.running[uuid].xml, xml))

    # --------------------------------------------------------------- running

    def start(self, uuid: str) -> None:
        """Start a defined domain, from saved memory if it has any, or fail with the error of libvirt, VFIO or QEMU."""
        with write_call(self._core, "start", self._domain_name(uuid)) as change:
            state = self._core.state
            domain = _require_domain(state, uuid)
            if uuid in state.running:
                raise VirError(
                    VirErrorNumber.OPERATION_INVALID, "Requested operation is not valid: domain is already running"
                )
            saved = domain.saved
            element = domain_xml.parse(domain.xml if saved is None else saved.xml)
            carriers, taken = starting.check_start(state, domain.name, element)
            if saved is not None:
                change.add("run", uuid, state.next_pid, carriers, taken, saved.xml, "restored")
                change.records += [["halt", uuid, saved.state, "restored"]] if saved.state != "running" else []
                return
            live_xml = (domain_xml.unparse(element),) if domain_xml.add_live_aliases(element) else ()
            change.add("run", uuid, state.next_pid, carriers, taken, *live_xml)

    def shutdown(self, uuid: str) -> None:
        """Ask the guest to power off. It does at once, unless a fault of the scenario makes it ignore the request."""
        with write_call(self._core, "shutdown", self._domain_name(uuid)) as change:
            _require_domain(self._core.state, uuid)
            if uuid not in self._core.state.running:
                raise VirError(
                    VirErrorNumber.OPERATION_INVALID, "Requested operation is not valid: domain is not running"
                )
            change.records += self._core.state.stop_records(uuid, "shutdown")

    def destroy(self, uuid: str) -> None:
        """Force a domain off. It is no error if the domain is already off."""
        with write_call(self._core, "destroy", self._domain_name(uuid)) as change:
            _require_domain(self._core.state, uuid)
            if uuid in self._core.state.running:
                change.records += self._core.state.stop_records(uuid, "destroyed")

    def crash(self, uuid: str) -> None:
        """Do what happens when a running domain's QEMU is killed: libvirt reports that it stopped because it failed."""
        with self._core.operation("crash", self._domain_name(uuid)) as change:
            if uuid in self._core.state.running:
                change.records += self._core.state.stop_records(uuid, "failed")

    def wait_stopped(self, uuid: str, deadline_seconds: float) -> bool:
        """Say whether the domain is off. A guest that still runs ignores shutdowns, so waiting is pointless."""
        with read_call(self._core, "wait-stopped", uuid) as state:
            return uuid not in state.running

    # -------------------------------------------------------------- plumbing

    def _domain_name(self, uuid: str) -> str:
        domain = self._core.read_state().domains.get(uuid)
        return domain.name if domain else uuid

    def _domain_info(self, state: State, domain: SimDomain) -> DomainInfo:
        """Return a domain as the port shows it. The result is cached until the domain changes."""
        running = state.running.get(domain.uuid)
        live, pid = (running.xml, running.pid) if running else (None, 0)
        power = VmState(running.state) if running else VmState.STOPPED
        cached = self._domain_infos.get(domain.uuid)
        unchanged = cached is not None and cached[0] is domain.xml and cached[1] == (live, pid)
        reason = None if running else domain.stop_reason
        others = (domain.persistent, power, reason)
        if (
            cached is not None
            and unchanged
            and (cached[2].persistent, cached[2].state, cached[2].stop_reason) == others
        ):
            return cached[2]
        shown_live_xml = live_xml(running) if running else None
        info = DomainInfo(
            domain.name,
            domain.uuid,
            power,
            domain_xml.strip_passwords(domain.xml),
            shown_live_xml,
            domain.persistent,
            reason,
        )
        self._domain_infos[domain.uuid] = (domain.xml, (live, pid), info)
        return info


def _require_domain(state: State, uuid: str) -> SimDomain:
    domain = state.domains.get(uuid)
    if domain is None:
        raise VirError(VirErrorNumber.NO_DOMAIN, f"Domain not found: no domain with matching uuid '{uuid}'")
    return domain


def _record_splice(old: str, record: str | None) -> tuple[int, int, str]:
    element = domain_xml.parse(old)
    domain_xml.set_record(element, record)
    return _text_difference(old, domain_xml.unparse(element))


def _text_difference(old: str, new: str) -> tuple[int, int, str]:
    """Return where the old text differs (start, end), and the new text for that range."""
    start = _common_prefix(old, new)
    tail = min(_common_prefix(old[::-1], new[::-1]), min(len(old), len(new)) - start)
    return start, len(old) - tail, new[start : len(new) - tail]


def _common_prefix(first: str, second: str) -> int:
    """Return the length of the common prefix by bisection: texts are long and differ in one place."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


FIRST_PORT = 5900
_PORT_COUNT = 1 << 15
_AUTO_PORT = "port='-1' autoport='yes'"


def addresses(state: State, uuid: str, source: str) -> tuple[GuestAddress, ...] | None:
    """Return a running guest's addresses from one source.

    Raises:
        VirError: the domain is off.
    """
    running = state.running.get(uuid)
    if running is None:
        raise VirError(VirErrorNumber.OPERATION_INVALID, "Requested operation is not valid: domain is not running")
    if source == "agent":
        return None
    if source != "lease" or not boots_a_system(state, running):
        return ()
    interfaces = domain_xml.parse(running.xml).findall("devices/interface[@type='network']/mac")
    macs = [str(mac.get("address")) for mac in interfaces]
    return tuple(GuestAddress(_lease_address(mac), 24, mac, f"vnet{number}") for number, mac in enumerate(macs))


def passwords(xml: str) -> frozenset[str]:
    """Return the types of graphics that ask for a password."""
    return frozenset(str(g.get("type")) for g in domain_xml.parse(xml).findall("devices/graphics[@passwd]"))


def live_xml(running: RunningDomain) -> str:
    """Return a running domain's XML with its id, its graphics port, its console's terminal and its bridges."""
    number = (running.pid - FIRST_PID) % _PORT_COUNT
    xml = domain_xml.strip_passwords(running.xml).replace(_AUTO_PORT, f"port='{FIRST_PORT + number}' autoport='yes'")
    xml = xml.replace("<domain ", f"<domain id='{number + 1}' ", 1)
    xml = xml.replace("<source network=", f"<source bridge='{guest_host.NETWORK_BRIDGE}' network=")
    for kind in ("serial", "console"):
        xml = xml.replace(f"<{kind} type='pty'>", f"<{kind} type='pty' tty='/dev/pts/{number}'>", 1)
    return xml


def _lease_address(mac: str) -> str:
    """Return an address of libvirt's default network, derived from the MAC address."""
    return f"192.168.122.{2 + uuids.uuid5(uuids.NAMESPACE_URL, mac).bytes[0] % 252}"
