# SPDX-License-Identifier: Apache-2.0
"""Changes an existing domain: its definition, and adding and removing devices, also while it runs.

With both flags in one call, libvirt changes the running domain first, and its config only if that worked. The guest
decides when to release a device: libvirt waits some seconds for it and returns 0 in any case.

libvirt reports the end of a detach with DEVICE_REMOVED or DEVICE_REMOVAL_FAILED and the device's alias
(virConnectDomainEventDeviceRemovedCallback in libvirt-domain.h). A domain that stops sends neither, so vgpuctl also
watches for its stop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Generic, TypeVar

from vgpuctl.errors import LibvirtFailed
from vgpuctl.host.virt import constants
from vgpuctl.model.port_values import DetachOutcome, RebootOutcome

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import LibvirtConnection, virConnect, virDomain
    from vgpuctl.model.port_values import DomainInfo
    from vgpuctl.ports.libvirt import DeviceRemoval, GuestReboot
    from vgpuctl.ports.system import Clock


POLL_SECONDS = 0.5
"""The interval for checking the deadline and whether the connection is still alive."""

_END_EVENTS = (constants.VIR_DOMAIN_EVENT_STOPPED, constants.VIR_DOMAIN_EVENT_CRASHED)
_REGISTER_CALL = "virConnectDomainEventRegisterAny"

Result = TypeVar("Result")


class _AwaitedEvent(Generic[Result]):
    """The first of some events, which arrive in the event loop's thread, since this was created."""

    def __init__(self, clock: Clock, is_broken: Callable[[], bool], unknown: Result) -> None:
        self._clock = clock
        self._broken = is_broken
        self._finished = Event()
        self._outcome = unknown

    def wait(self, deadline_seconds: float) -> Result:
        """Wait for an event; `unknown` when the deadline passes first or the connection breaks."""
        deadline = self._clock.monotonic() + deadline_seconds
        while not self._finished.is_set():
            remaining = deadline - self._clock.monotonic()
            if remaining <= 0 or self._broken():
                break
            self._finished.wait(min(remaining, POLL_SECONDS))
        return self._outcome

    def _finish(self, outcome: Result) -> None:
        if not self._finished.is_set():
            self._outcome = outcome
            self._finished.set()


class LibvirtDeviceRemoval(_AwaitedEvent[DetachOutcome]):
    """What libvirt reports about one device; implements `ports.DeviceRemoval`."""

    def __init__(self, alias: str, clock: Clock, is_broken: Callable[[], bool]) -> None:
        super().__init__(clock, is_broken, DetachOutcome.UNKNOWN)
        self._alias = alias

    def on_device_removed(self, _connect: object, _domain: object, alias: str, _opaque: object) -> None:
        """Handle libvirt's DEVICE_REMOVED."""
        if alias == self._alias:
            self._finish(DetachOutcome.REMOVED)

    def on_removal_failed(self, _connect: object, _domain: object, alias: str, _opaque: object) -> None:
        """Handle libvirt's DEVICE_REMOVAL_FAILED."""
        if alias == self._alias:
            self._finish(DetachOutcome.REFUSED)

    def on_lifecycle_event(self, _connect: object, _domain: object, event: int, _detail: int, _opaque: object) -> None:
        """Handle a lifecycle event: a domain that is off no longer has the device plugged in."""
        if event in _END_EVENTS:
            self._finish(DetachOutcome.REMOVED)


class LibvirtReboot(_AwaitedEvent[RebootOutcome]):
    """What libvirt reports about a domain that is to reboot; implements `ports.GuestReboot`."""

    def __init__(self, clock: Clock, is_broken: Callable[[], bool]) -> None:
        super().__init__(clock, is_broken, RebootOutcome.UNKNOWN)

    def on_reboot(self, _connect: object, _domain: object, _opaque: object) -> None:
        """Handle libvirt's REBOOT: QEMU was reset, by the guest or from outside."""
        self._finish(RebootOutcome.REBOOTED)

    def on_lifecycle_event(self, _connect: object, _domain: object, event: int, _detail: int, _opaque: object) -> None:
        """Handle a lifecycle event: the domain went off instead."""
        if event in _END_EVENTS:
            self._finish(RebootOutcome.OFF)


@contextlib.contextmanager
def watch_device_removal(
    connection: LibvirtConnection, clock: Clock, uuid: str, alias: str
) -> Iterator[LibvirtDeviceRemoval]:
    """Watch the events about one device of a running domain, from the beginning of the block to its end."""
    failure = f"cannot watch the removal of {alias} from VM {uuid}"
    with connection.listen(_REGISTER_CALL, failure, vm_uuid=uuid) as connect:
        removal = LibvirtDeviceRemoval(alias, clock, lambda: connect.isAlive() != 1)
        callbacks: dict[int, Callable[..., None]] = {
            constants.VIR_DOMAIN_EVENT_ID_LIFECYCLE: removal.on_lifecycle_event,
            constants.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED: removal.on_device_removed,
            constants.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVAL_FAILED: removal.on_removal_failed,
        }
        with _registered(connection, connect, uuid, callbacks):
            yield removal


@contextlib.contextmanager
def watch_reboot(connection: LibvirtConnection, clock: Clock, uuid: str) -> Iterator[LibvirtReboot]:
    """Watch the events about a domain's reboot, from the beginning of the block to its end."""
    failure = f"cannot listen to whether VM {uuid} reboots"
    with connection.listen(_REGISTER_CALL, failure, vm_uuid=uuid) as connect:
        reboot = LibvirtReboot(clock, lambda: connect.isAlive() != 1)
        callbacks: dict[int, Callable[..., None]] = {
            constants.VIR_DOMAIN_EVENT_ID_LIFECYCLE: reboot.on_lifecycle_event,
            constants.VIR_DOMAIN_EVENT_ID_REBOOT: reboot.on_reboot,
        }
        with _registered(connection, connect, uuid, callbacks):
            yield reboot


@contextlib.contextmanager
def _registered(
    connection: LibvirtConnection, connect: virConnect, uuid: str, callbacks: dict[int, Callable[..., None]]
) -> Iterator[None]:
    """Have a domain's events call these functions, until the block ends."""
    domain = connect.lookupByUUIDString(uuid)
    ids = [connect.domainEventRegisterAny(domain, event, callback, None) for event, callback in callbacks.items()]
    try:
        yield
    finally:
        for callback_id in ids:
            connection.attempt(None, partial(connect.domainEventDeregisterAny, callback_id))


DEFINE_ATTEMPTS = 4
_SCHEMA_NOT_PARSED = "Unable to parse RelaxNG schema"


def define_with_schema(define: Callable[[], Result]) -> Result:
    """Define a domain; repeat it when libvirt could not read its own schema, before it looked at the domain.

    libxml2 sets up its schema types at their first use, and not thread-safely (xmlSchemaInitTypes): when libvirtd has
    just started and gets several definitions at once, some of them find half of the types.

    Raises:
        LibvirtFailed: the last attempt failed, or another error came.
    """
    for _ in range(DEFINE_ATTEMPTS - 1):
        try:
            return define()
        except LibvirtFailed as error:
            if _SCHEMA_NOT_PARSED not in error.message:
                raise
    return define()


class DomainChanges:
    """The part of `ports.Hypervisor` that changes domains in place; the class with the connection inherits it."""

    _connection: LibvirtConnection
    _clock: Clock

    def find_domain(self, name_or_uuid: str) -> DomainInfo | None:
        """Return one domain by uuid, else by exact name, or None."""
        raise NotImplementedError

    def _open_domain(self, uuid: str, call: str, verb: str) -> AbstractContextManager[virDomain]:
        raise NotImplementedError

    def definition(self, uuid: str) -> str:
        """Return a domain's config with its secrets, which XMLDesc otherwise omits."""
        with self._open_domain(uuid, "virDomainGetXMLDesc", "read the definition of") as domain:
            return domain.XMLDesc(constants.VIR_DOMAIN_XML_INACTIVE | constants.VIR_DOMAIN_XML_SECURE)

    def _redefine(self, uuid: str, xml: str) -> None:
        with self._open_domain(uuid, "virDomainDefineXMLFlags", "change") as domain:
            domain.connect().defineXMLFlags(xml, constants.VIR_DOMAIN_DEFINE_VALIDATE)

    def redefine(self, uuid: str, xml: str) -> DomainInfo:
        """Replace an existing domain's config, validated against libvirt's schema."""
        define_with_schema(lambda: self._redefine(uuid, xml))
        info = self.find_domain(uuid)
        if info is None:
            raise LibvirtFailed(
                f"cannot change VM {uuid}: it no longer exists",
                call="virDomainDefineXMLFlags",
                libvirt_code=constants.VIR_ERR_NO_DOMAIN,
            )
        return info

    def attach_device(self, uuid: str, xml: str, live: bool) -> None:
        """Add a device to the config and, with `live`, to the running domain: to both or to neither."""
        with self._open_domain(uuid, "virDomainAttachDeviceFlags", "attach the device to") as domain:
            domain.attachDeviceFlags(xml, _affect_flags(live=live, config=True))

    def detach_device(self, uuid: str, alias: str, *, live: bool, config: bool) -> None:
        """Remove the device with this alias from the config and ask the running guest to release it."""
        with self._open_domain(uuid, "virDomainDetachDeviceAlias", "detach the device from") as domain:
            domain.detachDeviceAlias(alias, _affect_flags(live=live, config=config))

    def resize_disk(self, uuid: str, path: str, capacity_bytes: int) -> None:
        """Grow a running domain's disk, given by its path."""
        with self._open_domain(uuid, "virDomainBlockResize", "resize a disk of") as domain:
            domain.blockResize(path, capacity_bytes, constants.VIR_DOMAIN_BLOCK_RESIZE_BYTES)

    def watch_device_removal(self, uuid: str, alias: str) -> AbstractContextManager[DeviceRemoval]:
        """Watch the events about a device whose removal the caller requests inside the block."""
        return watch_device_removal(self._connection, self._clock, uuid, alias)

    def watch_reboot(self, uuid: str) -> AbstractContextManager[GuestReboot]:
        """Watch the events about a reboot that the caller requests inside the block."""
        return watch_reboot(self._connection, self._clock, uuid)


def _affect_flags(*, live: bool, config: bool) -> int:
    return (constants.VIR_DOMAIN_AFFECT_LIVE if live else 0) | (constants.VIR_DOMAIN_AFFECT_CONFIG if config else 0)
