# SPDX-License-Identifier: Apache-2.0
"""libvirt's domains and networks, as `seams.Hypervisor`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.errors import Exists, LibvirtFailed
from vgpuctl.host.virt import documents, guest, numbers
from vgpuctl.host.virt.capabilities import capabilities_of, has_keys
from vgpuctl.host.virt.connection import Connection, code_of
from vgpuctl.host.virt.devices import DeviceCalls
from vgpuctl.model.records import DomainLeftovers, DomainRecord, HypervisorCapabilities, HypervisorStatus, NetworkRecord
from vgpuctl.model.vm import VmState

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import virConnect, virDomain
    from vgpuctl.model.records import GuestAddress
    from vgpuctl.model.seams import Clock

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_UNDEFINE = (
    "VIR_DOMAIN_UNDEFINE_MANAGED_SAVE",
    "VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA",
    "VIR_DOMAIN_UNDEFINE_NVRAM",
    "VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA",
    "VIR_DOMAIN_UNDEFINE_TPM",
)
"""In the order in which libvirt learnt them: a daemon older than its client refuses the last ones."""

_GONE_OR_OFF = frozenset({numbers.VIR_ERR_NO_DOMAIN, numbers.VIR_ERR_OPERATION_INVALID})
_NAME_TAKEN = (numbers.VIR_ERR_OPERATION_FAILED, numbers.VIR_ERR_DOM_EXIST)
_NVRAM_DIRECTORY = "/var/lib/libvirt/qemu/nvram"
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.2


class LibvirtHypervisor(DeviceCalls):
    """Domains and networks of one connection."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock

    def status(self) -> HypervisorStatus:
        """Say whether libvirt answers, and if not why. Never raises."""
        return self._connection.status()

    def capabilities(self) -> HypervisorCapabilities:
        """Return what domains may use on this host: with KVM, or else what plain QEMU offers."""
        call, failure = "virConnectGetDomainCapabilities", "cannot read what VMs may use on this host"
        with self._connection.calling(call, failure) as connect:
            ask = partial(connect.getDomainCapabilities, None, "x86_64", "q35")
            text = self._connection.sought(numbers.VIR_ERR_INVALID_ARG, partial(ask, "kvm", 0))
            kvm = text is not None
            root = documents.parsed(text or ask("qemu", 0))
        return capabilities_of(root, kvm=kvm, keys=has_keys())

    def domains(self) -> tuple[DomainRecord, ...]:
        """Return every domain, sorted by name. One that vanishes while listing is left out."""
        with self._connection.calling("virConnectListAllDomains", "cannot list VMs") as connect:
            missing, sought = numbers.VIR_ERR_NO_DOMAIN, self._connection.sought
            records = [sought(missing, partial(_record, domain)) for domain in connect.listAllDomains(0)]
        found = (record for record in records if record is not None)
        return tuple(sorted(found, key=lambda record: record.name))

    def find_domain(self, name_or_uuid: str) -> DomainRecord | None:
        """Return one domain by uuid, else by exact name, or None."""
        failure = f"cannot look up VM {name_or_uuid}"
        with self._connection.calling("virDomainLookupByName", failure, vm=name_or_uuid) as connect:
            return self._connection.sought(
                numbers.VIR_ERR_NO_DOMAIN, lambda: _record(self._looked_up(connect, name_or_uuid))
            )

    def define(self, xml: str) -> DomainRecord:
        """Define a new domain and return it as libvirt re-reads it.

        Without VALIDATE an older libvirt drops attributes that it does not know, silently.
        """
        name = _name_in(xml)
        try:
            with self._connection.calling("virDomainDefineXMLFlags", f"cannot define VM {name}", vm=name) as c:
                return _record(c.defineXMLFlags(xml, numbers.VIR_DOMAIN_DEFINE_VALIDATE))
        except LibvirtFailed as error:
            if code_of(error) in _NAME_TAKEN and self.find_domain(name) is not None:
                raise Exists(f"a VM named {name} exists already", hint=None, **error.facts) from error
            raise

    def undefine(self, uuid: str) -> None:
        """Undefine a stopped domain with its NVRAM, TPM, managed save, snapshot and checkpoint metadata."""
        with self._domain(uuid, "virDomainUndefineFlags", "undefine") as domain:
            if domain.isActive():
                raise LibvirtFailed(
                    f"cannot undefine VM {domain.name()}: it is running",
                    hint=f"vgpuctl stop-vm {domain.name()}",
                    call="virDomainUndefineFlags",
                    libvirt_code=numbers.VIR_ERR_OPERATION_INVALID,
                )
            unknown = frozenset({numbers.VIR_ERR_INVALID_ARG})
            for count in range(len(_UNDEFINE), 0, -1):
                flags = self._connection.flags(*_UNDEFINE[:count])
                if self._connection.tried(unknown, partial(domain.undefineFlags, flags)) is None:
                    return
            domain.undefineFlags(0)

    def set_promise(self, uuid: str, xml: str | None) -> None:
        """Set or delete the element of namespace urn:vgpuctl:1 in the domain's metadata."""
        element = None if xml is None else documents.without_namespace(xml)
        with self._domain(uuid, "virDomainSetMetadata", "write the record of") as domain:

            def change(flags: int) -> int | None:
                allowed = frozenset({numbers.VIR_ERR_NO_DOMAIN_METADATA} if element is None else ())
                if flags & numbers.VIR_DOMAIN_AFFECT_LIVE:
                    allowed |= {numbers.VIR_ERR_OPERATION_INVALID}
                return self._connection.tried(
                    allowed,
                    lambda: domain.setMetadata(
                        numbers.VIR_DOMAIN_METADATA_ELEMENT,
                        element,
                        documents.PROMISE_PREFIX,
                        documents.PROMISE_NAMESPACE,
                        flags,
                    ),
                )

            # One call for each copy: deleting from both at once stops at the first that has none.
            change(numbers.VIR_DOMAIN_AFFECT_CONFIG)
            if domain.isActive():
                change(numbers.VIR_DOMAIN_AFFECT_LIVE)

    def leftovers(self, uuid: str) -> DomainLeftovers:
        """Return what undefine would remove beside the definition."""
        with self._domain(uuid, "virDomainListAllSnapshots", "look at what belongs to") as domain:
            root = documents.parsed(domain.XMLDesc(numbers.VIR_DOMAIN_XML_INACTIVE))
            nvram = documents.text_at(root, "os/nvram")
            if nvram is None and root.find("os[@firmware]") is not None:
                nvram = _usual_nvram(domain.name())
            no_support = numbers.VIR_ERR_NO_SUPPORT
            snapshots = self._connection.sought(no_support, lambda: domain.listAllSnapshots(0)) or []
            checkpoints = self._connection.sought(no_support, lambda: domain.listAllCheckpoints(0)) or []
            return DomainLeftovers(
                nvram=nvram,
                tpm=root.find("devices/tpm/backend[@type='emulator']") is not None,
                managed_save=bool(domain.hasManagedSaveImage(0)),
                snapshots=tuple(sorted(snapshot.getName() for snapshot in snapshots)),
                checkpoints=tuple(sorted(checkpoint.getName() for checkpoint in checkpoints)),
            )

    def start(self, uuid: str) -> None:
        """Start a defined domain; returns when libvirt says it runs."""
        with self._domain(uuid, "virDomainCreate", "start") as domain:
            domain.create()

    def shutdown(self, uuid: str) -> None:
        """Ask the guest to power off (ACPI); returns at once."""
        with self._domain(uuid, "virDomainShutdown", "shut down") as domain:
            domain.shutdown()

    def destroy(self, uuid: str) -> None:
        """Pull the plug. A domain that is off already is no error."""
        with self._domain(uuid, "virDomainDestroy", "power off") as domain:
            if self._connection.tried(_GONE_OR_OFF, domain.destroy) is None:
                return
            if not self._off(domain):
                domain.destroy()

    def wait_stopped(self, uuid: str, deadline_seconds: float) -> bool:
        """Look again and again until the domain is off or gone; False when the deadline came first."""
        deadline = self._clock.monotonic() + deadline_seconds
        pause = _FIRST_PAUSE_SECONDS
        failure = f"cannot see whether VM {uuid} is off"
        while True:
            with self._connection.calling("virDomainIsActive", failure, vm_uuid=uuid) as connect:
                missing = numbers.VIR_ERR_NO_DOMAIN
                domain = self._connection.sought(missing, partial(connect.lookupByUUIDString, uuid))
                if domain is None or self._off(domain):
                    return True
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return False
            self._clock.pause(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def network(self, name: str) -> NetworkRecord | None:
        """Return one network by name, or None."""
        failure = f"cannot look up network {name}"
        with self._connection.calling("virNetworkLookupByName", failure, network=name) as connect:
            missing = numbers.VIR_ERR_NO_NETWORK
            found = self._connection.sought(missing, lambda: connect.networkLookupByName(name))
            return None if found is None else NetworkRecord(found.name(), bool(found.isActive()))

    def guest_addresses(self, uuid: str, source: str) -> tuple[GuestAddress, ...] | None:
        """Return a running guest's addresses by one source; None when that source does not answer."""
        with self._domain(uuid, "virDomainInterfaceAddresses", "ask for the addresses of") as domain:
            return guest.addresses(self._connection, domain, source)

    def graphics_passwords(self, uuid: str) -> frozenset[str] | None:
        """Return the kinds of graphics that ask for a password; None when this connection may not see it."""
        with self._domain(uuid, "virDomainGetXMLDesc", "look at the console of") as domain:
            return guest.passwords(self._connection, domain)

    @contextmanager
    def _domain(self, uuid: str, call: str, verb: str) -> Iterator[virDomain]:
        """Look a domain up, and explain what fails inside the block by the VM's name."""
        failure = f"cannot {verb} VM {uuid}"
        with self._connection.calling("virDomainLookupByUUIDString", failure, vm_uuid=uuid) as connect:
            domain = connect.lookupByUUIDString(uuid)
            name = domain.name()
        with self._connection.calling(call, f"cannot {verb} VM {name}", vm=name, vm_uuid=uuid):
            yield domain

    def _looked_up(self, connect: virConnect, name_or_uuid: str) -> virDomain:
        if _UUID.fullmatch(name_or_uuid) is not None:
            by_uuid = partial(connect.lookupByUUIDString, name_or_uuid)
            found = self._connection.sought(numbers.VIR_ERR_NO_DOMAIN, by_uuid)
            if found is not None:
                return found
        return connect.lookupByName(name_or_uuid)

    def _off(self, domain: virDomain) -> bool:
        return not self._connection.sought(numbers.VIR_ERR_NO_DOMAIN, domain.isActive)


def _record(domain: virDomain) -> DomainRecord:
    """Read one domain; raises when it is gone."""
    number, _reason = domain.state(0)
    active = number != numbers.VIR_DOMAIN_SHUTOFF and domain.isActive()
    return DomainRecord(
        name=domain.name(),
        uuid=domain.UUIDString(),
        state=numbers.STATES.get(number, VmState.UNKNOWN),
        xml=domain.XMLDesc(numbers.VIR_DOMAIN_XML_INACTIVE),
        live_xml=domain.XMLDesc(0) if active else None,
        persistent=not active or bool(domain.isPersistent()),
    )


def _usual_nvram(name: str) -> str | None:
    """Return the variable store that libvirt made at the first start, if it did.

    With firmware='efi' libvirt 9.0 chooses the firmware at each start and never writes the path into the
    config XML (tried); undefine removes the file all the same.
    """
    path = f"{_NVRAM_DIRECTORY}/{name}_VARS.fd"
    return path if os.path.exists(path) else None


def _name_in(xml: str) -> str:
    """Return the name in a domain's XML, for messages; libvirt itself says what is wrong with bad XML."""
    try:
        return documents.text_at(documents.parsed(xml), "name") or "?"
    except LibvirtFailed:
        return "?"
