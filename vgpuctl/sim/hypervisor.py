# SPDX-License-Identifier: Apache-2.0
"""The Hypervisor seam of a simulated host: domains and networks, with libvirt's checks and error numbers."""

from __future__ import annotations

from vgpuctl.errors import Exists
from vgpuctl.model.records import (
    DomainLeftovers,
    DomainRecord,
    GuestAddress,
    HypervisorCapabilities,
    HypervisorStatus,
    NetworkRecord,
)
from vgpuctl.model.vm import VmState
from vgpuctl.sim import assign, domain_xml, guest
from vgpuctl.sim.core import Core
from vgpuctl.sim.libvirt_errors import Code, VirError, changing, down, explained, looking, require
from vgpuctl.sim.machine import version_number
from vgpuctl.sim.plugging import Plugging
from vgpuctl.sim.state import State
from vgpuctl.sim.things import SimDomain
from vgpuctl.sim.turns import in_turn

EMULATOR = "/usr/bin/qemu-system-x86_64"


@in_turn
class SimHypervisor(Plugging):
    """libvirt's domains and networks on the simulated host."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._records: dict[str, tuple[str, tuple[str | None, int], DomainRecord]] = {}

    def status(self) -> HypervisorStatus:
        """Say whether libvirt answers, and if not why."""
        self._core.look()
        libvirt = self._core.machine.scenario["libvirt"]
        reason = down(self._core)
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
        with looking(self._core, "capabilities") as state:
            libvirt = state.machine.scenario["libvirt"]
            return HypervisorCapabilities(
                kvm=libvirt["kvm"],
                uefi=libvirt["uefi"],
                emulator=EMULATOR,
                secure_boot=libvirt["uefi"] and libvirt.get("secure_boot", True),
                tpm=libvirt.get("tpm", True),
            )

    # --------------------------------------------------------------- looking

    def domains(self) -> tuple[DomainRecord, ...]:
        """Return every domain, sorted by name."""
        with looking(self._core, "domains") as state:
            return tuple(self._record(state, state.domains[uuid]) for _, uuid in sorted(state.names.items()))

    def find_domain(self, name_or_uuid: str) -> DomainRecord | None:
        """Return one domain by uuid, else by exact name."""
        with looking(self._core, "find-domain", name_or_uuid) as state:
            by_name = state.domains.get(state.names.get(name_or_uuid, ""))
            domain = state.domains.get(name_or_uuid.lower(), by_name)
            return self._record(state, domain) if domain is not None else None

    def leftovers(self, uuid: str) -> DomainLeftovers:
        """Return what undefine would remove beside the definition."""
        with looking(self._core, "leftovers", uuid) as state:
            domain = _domain(state, uuid)
        element = domain_xml.parse(domain.xml)
        return DomainLeftovers(nvram=domain_xml.nvram(element, domain.name), tpm=domain_xml.wants_tpm(element))

    def network(self, name: str) -> NetworkRecord | None:
        """Return one network by name."""
        with looking(self._core, "network", name):
            active = self._networks().get(name)
            return NetworkRecord(name, active) if active is not None else None

    # ----------------------------------------------------------------- guest

    def guest_addresses(self, uuid: str, source: str) -> tuple[GuestAddress, ...] | None:
        """Return a running guest's addresses by one source; None when that source does not answer."""
        with looking(self._core, "guest-addresses", self._name(uuid)) as state:
            _domain(state, uuid)
            return guest.addresses(state, uuid, source)

    def graphics_passwords(self, uuid: str) -> frozenset[str] | None:
        """Return the kinds of graphics that ask for a password."""
        with looking(self._core, "graphics-passwords", self._name(uuid)) as state:
            domain, running = _domain(state, uuid), state.running.get(uuid)
            return guest.passwords(running.xml if running else domain.xml)

    # -------------------------------------------------------------- defining

    def define(self, xml: str) -> DomainRecord:
        """Take a domain in, with VIR_DOMAIN_DEFINE_VALIDATE.

        Raises:
            Exists: another domain has the name.
        """
        require(self._core, "define")
        try:
            element = domain_xml.parse(xml)
            domain_xml.validate(element)
            uuid, name = domain_xml.normalise(element)
        except VirError as exc:
            raise explained(exc, "define", "?") from exc
        domain = SimDomain(uuid, name, domain_xml.unparse(element))
        with changing(self._core, "define", name) as change:
            state = self._core.state
            if state.names.get(name, uuid) != uuid:
                raise Exists(
                    f"a VM named {name} exists already",
                    libvirt_code=int(Code.OPERATION_FAILED),
                    call="virDomainDefineXMLFlags",
                    vm=name,
                )
            known = state.domains.get(uuid)
            if known is not None and known.name != name:
                raise VirError(
                    Code.OPERATION_FAILED,
                    f"operation failed: domain '{known.name}' is already defined with uuid {uuid}",
                )
            change.add("domain", uuid, name, domain.xml)
        return self._record(self._core.state, domain)

    def undefine(self, uuid: str) -> None:
        """Undefine a stopped domain with all it keeps."""
        with changing(self._core, "undefine", self._name(uuid)) as change:
            _domain(self._core.state, uuid)
            if uuid in self._core.state.running:
                raise VirError(Code.OPERATION_INVALID, "cannot undefine a running domain here")
            change.add("undefine", uuid)

    def forget_definition(self, uuid: str) -> None:
        """Do what `virsh undefine` does to a running domain: it runs on, and nothing is left of it when it stops."""
        with changing(self._core, "undefine", self._name(uuid)) as change:
            change.add("transient", uuid)

    def set_promise(self, uuid: str, xml: str | None) -> None:
        """Set or delete the element of namespace urn:vgpuctl:1 in the config metadata, and in the live copy."""
        with changing(self._core, "set-promise", self._name(uuid)) as change:
            state = self._core.state
            change.add("splice", uuid, *_with_promise(_domain(state, uuid).xml, xml))
            if uuid in state.running:
                change.add("splice_live", uuid, *_with_promise(state.running[uuid].xml, xml))

    # --------------------------------------------------------------- running

    def start(self, uuid: str) -> None:
        """Start a defined domain, or say what libvirt, VFIO or QEMU would."""
        with changing(self._core, "start", self._name(uuid)) as change:
            state = self._core.state
            domain = _domain(state, uuid)
            if uuid in state.running:
                raise VirError(Code.OPERATION_INVALID, "Requested operation is not valid: domain is already running")
            element = domain_xml.parse(domain.xml)
            self._check_networks(domain_xml.networks(element))
            self._check_disks(state, domain_xml.disk_paths(element))
            if element.get("type") == "kvm" and not self._core.machine.scenario["libvirt"]["kvm"]:
                raise VirError(Code.CONFIG_UNSUPPORTED, "could not access KVM kernel module")
            wanted = domain_xml.devices(element)
            taken = assign.prepare(state, domain.name, wanted)
            change.add("run", uuid, state.next_pid, [device.carrier for device in wanted], taken)

    def shutdown(self, uuid: str) -> None:
        """Ask the guest to power off: it obeys at once, unless the scenario's fault makes it deaf."""
        with changing(self._core, "shutdown", self._name(uuid)) as change:
            _domain(self._core.state, uuid)
            if uuid not in self._core.state.running:
                raise VirError(Code.OPERATION_INVALID, "Requested operation is not valid: domain is not running")
            change.records += self._core.state.freed(uuid)

    def destroy(self, uuid: str) -> None:
        """Pull the plug; a domain that is off already is no error."""
        with changing(self._core, "destroy", self._name(uuid)) as change:
            _domain(self._core.state, uuid)
            if uuid in self._core.state.running:
                change.records += self._core.state.freed(uuid)

    def wait_stopped(self, uuid: str, deadline_seconds: float) -> bool:
        """Say whether the domain is off. A guest that has not stopped by now is deaf: nothing to wait for."""
        with looking(self._core, "wait-stopped", uuid) as state:
            return uuid not in state.running

    # -------------------------------------------------------------- plumbing

    def _name(self, uuid: str) -> str:
        domain = self._core.look().domains.get(uuid)
        return domain.name if domain else uuid

    def _record(self, state: State, domain: SimDomain) -> DomainRecord:
        """Return a domain as the seam shows it; made again only when it changed."""
        running = state.running.get(domain.uuid)
        live, pid = (running.xml, running.pid) if running else (None, 0)
        known = self._records.get(domain.uuid)
        unchanged = known is not None and known[0] is domain.xml and known[1] == (live, pid)
        if known is not None and unchanged and known[2].persistent == domain.persistent:
            return known[2]
        power = VmState.RUNNING if running else VmState.STOPPED
        shown = guest.live_xml(running) if running else None
        record = DomainRecord(
            domain.name, domain.uuid, power, guest.without_passwords(domain.xml), shown, domain.persistent
        )
        self._records[domain.uuid] = (domain.xml, (live, pid), record)
        return record

    def _networks(self) -> dict[str, bool]:
        return {entry["name"]: entry["active"] for entry in self._core.machine.scenario["networks"]}

    def _check_networks(self, names: tuple[str, ...]) -> None:
        known = self._networks()
        for name in names:
            if name not in known:
                raise VirError(Code.NO_NETWORK, f"Network not found: no network with matching name '{name}'")
            if not known[name]:
                raise VirError(
                    Code.OPERATION_INVALID,
                    f"Requested operation is not valid: network '{name}' is not active",
                )

    @staticmethod
    def _check_disks(state: State, paths: tuple[str, ...]) -> None:
        for path in paths:
            current: str | None = path
            while current is not None:
                file = state.file(current)
                if file is None or file.problem is not None:
                    why = "Permission denied" if file is not None else "No such file or directory"
                    raise VirError(Code.SYSTEM_ERROR, f"Cannot access storage file '{current}': {why}")
                current = file.base


def _domain(state: State, uuid: str) -> SimDomain:
    domain = state.domains.get(uuid)
    if domain is None:
        raise VirError(Code.NO_DOMAIN, f"Domain not found: no domain with matching uuid '{uuid}'")
    return domain


def _with_promise(old: str, promise: str | None) -> tuple[int, int, str]:
    element = domain_xml.parse(old)
    domain_xml.set_promise(element, promise)
    return _difference(old, domain_xml.unparse(element))


def _difference(old: str, new: str) -> tuple[int, int, str]:
    """Return start and end of what differs in the old text, and what the new text has there."""
    start = _common(old, new)
    tail = min(_common(old[::-1], new[::-1]), min(len(old), len(new)) - start)
    return start, len(old) - tail, new[start : len(new) - tail]


def _common(one: str, other: str) -> int:
    """Return the length of the common beginning, by halving: texts are long and differ in one place."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
