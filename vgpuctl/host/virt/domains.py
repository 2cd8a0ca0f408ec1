# SPDX-License-Identifier: Apache-2.0
"""libvirt's domains, what it reports about their guests, and networks; implements `ports.Hypervisor`."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from vgpuctl.errors import Exists, LibvirtFailed
from vgpuctl.host.virt import constants, libvirt_xml
from vgpuctl.host.virt.connection import LibvirtConnection, libvirt_code_of
from vgpuctl.host.virt.domain_changes import DomainChanges, define_with_schema
from vgpuctl.host.virt.libvirt_xml import has_enrolled_keys, parse_capabilities
from vgpuctl.host.virt.migration import DomainMigration
from vgpuctl.model.port_values import (
    MACHINES,
    X86_64,
    DomainInfo,
    DomainLeftovers,
    GuestAddress,
    HypervisorCapabilities,
    HypervisorStatus,
    NetworkInfo,
)
from vgpuctl.model.vm import VmState
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import virConnect, virDomain, virNetwork
    from vgpuctl.ports.system import Clock


ADDRESS_SOURCES = {
    "agent": constants.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT,
    "lease": constants.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE,
    "arp": constants.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_ARP,
}
_NO_ANSWER_ERRORS = constants.PERMISSION_ERRORS | {
    constants.VIR_ERR_NO_SUPPORT,
    constants.VIR_ERR_ARGUMENT_UNSUPPORTED,  # the domain has no agent channel
    constants.VIR_ERR_AGENT_UNRESPONSIVE,
    constants.VIR_ERR_AGENT_UNSYNCED,
    constants.VIR_ERR_INTERNAL_ERROR,  # the guest's administrator forbade the agent's command
}


def read_addresses(connection: LibvirtConnection, domain: virDomain, source: str) -> tuple[GuestAddress, ...] | None:
    """Return a guest's addresses, sorted by card; None when the source does not answer.

    Raises:
        libvirtError: any other error, such as 55 for a domain that is off; the caller translates it.
    """
    results: list[dict[str, dict[str, Any]]] = []
    if (
        connection.attempt(
            _NO_ANSWER_ERRORS, lambda: results.append(domain.interfaceAddresses(ADDRESS_SOURCES[source], 0))
        )
        is not None
    ):
        return None
    addresses = []
    for name, card in sorted(results[0].items()):
        mac = str(card.get("hwaddr") or "").lower() or None
        addresses += [
            GuestAddress(str(entry["addr"]), int(entry["prefix"]), mac, name) for entry in card.get("addrs") or ()
        ]
    return tuple(addresses)


def read_password_protected_graphics(connection: LibvirtConnection, domain: virDomain) -> frozenset[str] | None:
    """Return the graphics types that have a password; None when the connection is read-only."""
    types: set[str] = set()

    def read_types() -> None:
        root = libvirt_xml.parse_xml(domain.XMLDesc(constants.VIR_DOMAIN_XML_SECURE))
        types.update(str(entry.get("type")) for entry in root.findall("devices/graphics[@passwd]"))

    return None if connection.attempt(constants.PERMISSION_ERRORS, read_types) is not None else frozenset(types)


_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_UNDEFINE_FLAGS = (
    "VIR_DOMAIN_UNDEFINE_MANAGED_SAVE",
    "VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA",
    "VIR_DOMAIN_UNDEFINE_NVRAM",
    "VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA",
    "VIR_DOMAIN_UNDEFINE_TPM",
)
"""In the order in which libvirt introduced them: a daemon older than its client refuses the last ones."""

_GONE_OR_OFF = frozenset({constants.VIR_ERR_NO_DOMAIN, constants.VIR_ERR_OPERATION_INVALID})
_NAME_TAKEN = (constants.VIR_ERR_OPERATION_FAILED, constants.VIR_ERR_DOM_EXIST)
_NVRAM_DIRECTORY = "/var/lib/libvirt/qemu/nvram"
_FIRST_PAUSE_SECONDS = 0.02
_MAX_PAUSE_SECONDS = 0.2


class LibvirtHypervisor(DomainChanges, DomainMigration):
    """Domains and networks of one connection."""

    def __init__(self, connection: LibvirtConnection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock

    @property
    def connection(self) -> LibvirtConnection:
        """The connection, which other ports share."""
        return self._connection

    def status(self) -> HypervisorStatus:
        """Return whether libvirt answers, and if not, why. Never raises."""
        return self._connection.status()

    def capabilities(self) -> HypervisorCapabilities:
        """Return what domains can use on this host: with KVM, or else with plain QEMU."""
        call, failure = "virConnectGetDomainCapabilities", "cannot read the host's domain capabilities"
        with self._connection.call(call, failure) as connect:
            arch = libvirt_xml.find_text(libvirt_xml.parse_xml(connect.getCapabilities()), "host/cpu/arch") or X86_64
            machine = MACHINES.get(arch)
            get_capabilities = partial(connect.getDomainCapabilities, None, arch, machine)
            text = self._connection.look_up(constants.VIR_ERR_INVALID_ARG, partial(get_capabilities, "kvm", 0))
            kvm = text is not None
            root = libvirt_xml.parse_xml(text or get_capabilities("qemu", 0))
        capabilities = parse_capabilities(root, kvm=kvm, enrolled_keys=has_enrolled_keys())
        return capabilities if machine is None else replace(capabilities, machine=machine)

    def domains(self) -> tuple[DomainInfo, ...]:
        """Return every domain, sorted by name. A domain that vanishes while listing is left out."""
        with self._connection.call("virConnectListAllDomains", "cannot list VMs") as connect:
            missing, look_up = constants.VIR_ERR_NO_DOMAIN, self._connection.look_up
            infos = [look_up(missing, partial(_read_domain, domain)) for domain in connect.listAllDomains(0)]
        existing = (info for info in infos if info is not None)
        return tuple(sorted(existing, key=lambda info: info.name))

    def find_domain(self, name_or_uuid: str) -> DomainInfo | None:
        """Return one domain by uuid, else by exact name, or None."""
        failure = f"cannot look up VM {name_or_uuid}"
        with self._connection.call("virDomainLookupByName", failure, vm=name_or_uuid) as connect:
            return self._connection.look_up(
                constants.VIR_ERR_NO_DOMAIN, lambda: _read_domain(self._look_up_domain(connect, name_or_uuid))
            )

    def define(self, xml: str) -> DomainInfo:
        """Define a new domain and return it as libvirt re-reads it.

        Without VALIDATE an older libvirt silently drops attributes that it does not know.
        """
        name = _domain_name_in(xml)

        def define() -> DomainInfo:
            with self._connection.call("virDomainDefineXMLFlags", f"cannot define VM {name}", vm=name) as connect:
                return _read_domain(connect.defineXMLFlags(xml, constants.VIR_DOMAIN_DEFINE_VALIDATE))

        try:
            return define_with_schema(define)
        except LibvirtFailed as error:
            if libvirt_code_of(error) in _NAME_TAKEN and self.find_domain(name) is not None:
                raise Exists(f"a VM named {name} already exists", hint=None, **error.facts) from error
            raise

    def undefine(self, uuid: str) -> None:
        """Undefine a stopped domain with its NVRAM, TPM, managed save, snapshot and checkpoint metadata."""
        with self._open_domain(uuid, "virDomainUndefineFlags", "undefine") as domain:
            if domain.isActive():
                raise LibvirtFailed(
                    f"cannot undefine VM {domain.name()}: it is running",
                    hint=f"vgpuctl stop-vm {domain.name()}",
                    call="virDomainUndefineFlags",
                    libvirt_code=constants.VIR_ERR_OPERATION_INVALID,
                )
            unknown_flags = frozenset({constants.VIR_ERR_INVALID_ARG})
            for count in range(len(_UNDEFINE_FLAGS), 0, -1):
                flags = self._connection.combine_flags(*_UNDEFINE_FLAGS[:count])
                if self._connection.attempt(unknown_flags, partial(domain.undefineFlags, flags)) is None:
                    return
            domain.undefineFlags(0)

    def set_record(self, uuid: str, xml: str | None) -> None:
        """Set or delete the element of namespace urn:vgpuctl:1 in the domain's metadata."""
        element = None if xml is None else libvirt_xml.strip_namespace(xml)
        with self._open_domain(uuid, "virDomainSetMetadata", "write the record of") as domain:

            def change(flags: int) -> int | None:
                allowed = frozenset({constants.VIR_ERR_NO_DOMAIN_METADATA} if element is None else ())
                if flags & constants.VIR_DOMAIN_AFFECT_LIVE:
                    allowed |= {constants.VIR_ERR_OPERATION_INVALID}
                return self._connection.attempt(
                    allowed,
                    lambda: domain.setMetadata(
                        constants.VIR_DOMAIN_METADATA_ELEMENT,
                        element,
                        libvirt_xml.RECORD_PREFIX,
                        libvirt_xml.RECORD_NAMESPACE,
                        flags,
                    ),
                )

            # One call for each copy: deleting from both at once stops at the first copy without a record.
            change(constants.VIR_DOMAIN_AFFECT_CONFIG)
            if domain.isActive():
                change(constants.VIR_DOMAIN_AFFECT_LIVE)

    def leftovers(self, uuid: str) -> DomainLeftovers:
        """Return what undefine would remove in addition to the definition."""
        with self._open_domain(uuid, "virDomainListAllSnapshots", "inspect what belongs to") as domain:
            root = libvirt_xml.parse_xml(domain.XMLDesc(constants.VIR_DOMAIN_XML_INACTIVE))
            nvram = libvirt_xml.find_text(root, "os/nvram")
            if nvram is None and root.find("os[@firmware]") is not None:
                nvram = _default_nvram_path(domain.name())
            no_support = constants.VIR_ERR_NO_SUPPORT
            snapshots = self._connection.look_up(no_support, lambda: domain.listAllSnapshots(0)) or []
            checkpoints = self._connection.look_up(no_support, lambda: domain.listAllCheckpoints(0)) or []
            return DomainLeftovers(
                nvram=nvram,
                tpm=root.find("devices/tpm/backend[@type='emulator']") is not None,
                managed_save=bool(domain.hasManagedSaveImage(0)),
                snapshots=tuple(sorted(snapshot.getName() for snapshot in snapshots)),
                checkpoints=tuple(sorted(checkpoint.getName() for checkpoint in checkpoints)),
            )

    def start(self, uuid: str) -> None:
        """Start a defined domain; returns when libvirt reports that it runs."""
        with self._open_domain(uuid, "virDomainCreate", "start") as domain:
            domain.create()

    def shutdown(self, uuid: str) -> None:
        """Ask the guest to power off (ACPI); returns at once."""
        with self._open_domain(uuid, "virDomainShutdown", "shut down") as domain:
            domain.shutdown()

    def destroy(self, uuid: str) -> None:
        """Force the domain off. A domain that is already off is no error."""
        with self._open_domain(uuid, "virDomainDestroy", "power off") as domain:
            if self._connection.attempt(_GONE_OR_OFF, domain.destroy) is None:
                return
            if not self._is_off(domain):
                domain.destroy()

    def reboot(self, uuid: str) -> None:
        """Ask the guest to reboot: by its agent if that is connected, else by ACPI."""
        with self._open_domain(uuid, "virDomainReboot", "reboot") as domain:
            domain.reboot()

    def reset(self, uuid: str) -> None:
        """Reset the domain at once."""
        with self._open_domain(uuid, "virDomainReset", "reset") as domain:
            domain.reset()

    def wait_stopped(self, uuid: str, deadline_seconds: float) -> bool:
        """Poll until the domain is off or gone; False when the deadline passes first."""
        deadline = self._clock.monotonic() + deadline_seconds
        pause = _FIRST_PAUSE_SECONDS
        failure = f"cannot determine whether VM {uuid} is off"
        while True:
            with self._connection.call("virDomainIsActive", failure, vm_uuid=uuid) as connect:
                missing = constants.VIR_ERR_NO_DOMAIN
                domain = self._connection.look_up(missing, partial(connect.lookupByUUIDString, uuid))
                if domain is None or self._is_off(domain):
                    return True
            remaining = deadline - self._clock.monotonic()
            if remaining <= 0:
                return False
            self._clock.sleep(min(pause, remaining))
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)

    def network(self, name: str) -> NetworkInfo | None:
        """Return one network by name, or None."""
        failure = f"cannot look up network {name}"
        with self._connection.call("virNetworkLookupByName", failure, network=name) as connect:
            missing = constants.VIR_ERR_NO_NETWORK
            virtual_network = self._connection.look_up(missing, lambda: connect.networkLookupByName(name))
            return None if virtual_network is None else _read_network(virtual_network)

    def networks(self) -> tuple[NetworkInfo, ...]:
        """Return every network, sorted by name; one that vanishes while listing is left out."""
        with self._connection.call("virConnectListAllNetworks", "cannot list networks") as connect:
            missing, look_up = constants.VIR_ERR_NO_NETWORK, self._connection.look_up
            infos = [look_up(missing, partial(_read_network, network)) for network in connect.listAllNetworks(0)]
        return tuple(sorted((info for info in infos if info is not None), key=lambda info: info.name))

    def guest_addresses(self, uuid: str, source: str) -> tuple[GuestAddress, ...] | None:
        """Return a running guest's addresses from one source; None when that source does not answer."""
        with self._open_domain(uuid, "virDomainInterfaceAddresses", "read the addresses of") as domain:
            return read_addresses(self._connection, domain, source)

    def open_graphics(self, uuid: str, index: int) -> socket.socket:
        """Open a running domain's screen, without its password."""
        with self._open_domain(uuid, "virDomainOpenGraphicsFD", "open the screen of") as domain:
            descriptor = domain.openGraphicsFD(index, constants.VIR_DOMAIN_OPEN_GRAPHICS_SKIPAUTH)
            return socket.socket(fileno=descriptor)

    def password_protected_graphics(self, uuid: str) -> frozenset[str] | None:
        """Return the graphics types that have a password; None when this connection may not read it."""
        with self._open_domain(uuid, "virDomainGetXMLDesc", "read the console of") as domain:
            return read_password_protected_graphics(self._connection, domain)

    @contextmanager
    def _open_domain(self, uuid: str, call: str, verb: str) -> Iterator[virDomain]:
        """Look up a domain; errors inside the block name the VM."""
        failure = f"cannot {verb} VM {uuid}"
        with self._connection.call("virDomainLookupByUUIDString", failure, vm_uuid=uuid) as connect:
            domain = connect.lookupByUUIDString(uuid)
            name = domain.name()
        with self._connection.call(call, f"cannot {verb} VM {name}", vm=name, vm_uuid=uuid):
            yield domain

    def _look_up_domain(self, connect: virConnect, name_or_uuid: str) -> virDomain:
        if _UUID.fullmatch(name_or_uuid) is not None:
            by_uuid = partial(connect.lookupByUUIDString, name_or_uuid)
            domain = self._connection.look_up(constants.VIR_ERR_NO_DOMAIN, by_uuid)
            if domain is not None:
                return domain
        return connect.lookupByName(name_or_uuid)

    def _is_off(self, domain: virDomain) -> bool:
        return not self._connection.look_up(constants.VIR_ERR_NO_DOMAIN, domain.isActive)


def _read_domain(domain: virDomain) -> DomainInfo:
    """Read one domain; raises when it is gone."""
    number, detail = domain.state(0)
    active = number != constants.VIR_DOMAIN_SHUTOFF and domain.isActive()
    return DomainInfo(
        name=domain.name(),
        uuid=domain.UUIDString(),
        state=constants.VM_STATES.get(number, VmState.UNKNOWN),
        xml=domain.XMLDesc(constants.VIR_DOMAIN_XML_INACTIVE),
        live_xml=domain.XMLDesc(0) if active else None,
        persistent=not active or bool(domain.isPersistent()),
        stop_reason=constants.stop_reason(number, detail),
    )


def _read_network(network: virNetwork) -> NetworkInfo:
    """Read one network; raises when it is gone."""
    root = libvirt_xml.parse_xml(network.XMLDesc(0))
    mode = libvirt_xml.find_attribute(root, "forward", "mode")
    if mode is None and root.find("forward") is not None:
        mode = "nat"
    return NetworkInfo(network.name(), bool(network.isActive()), mode)


def _default_nvram_path(name: str) -> str | None:
    """Return the UEFI variable store that libvirt created at the first start, if it exists.

    With firmware='efi' libvirt 9.0 chooses the firmware at each start and never writes the path into the config XML
    (tested); undefine removes the file nevertheless.
    """
    path = f"{_NVRAM_DIRECTORY}/{name}_VARS.fd"
    return path if os.path.exists(path) else None


def _domain_name_in(xml: str) -> str:
    """Return the name in a domain's XML, for messages; libvirt itself reports what is wrong with bad XML."""
    try:
        return libvirt_xml.find_text(libvirt_xml.parse_xml(xml), "name") or "?"
    except LibvirtFailed:
        return "?"
