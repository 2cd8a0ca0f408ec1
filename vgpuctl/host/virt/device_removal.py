# SPDX-License-Identifier: Apache-2.0
"""Waits for libvirt's events until a running guest releases a device; implements `ports.DeviceRemoval`.

libvirt reports the end of a detach with DEVICE_REMOVED or DEVICE_REMOVAL_FAILED and the device's alias
(virConnectDomainEventDeviceRemovedCallback in libvirt-domain.h). A domain that stops sends neither, so vgpuctl also
watches for its stop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from vgpuctl.host.virt import constants
from vgpuctl.model.port_values import DetachOutcome

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import LibvirtConnection, virConnect
    from vgpuctl.ports.processes import Clock

POLL_SECONDS = 0.5
"""The interval for checking the deadline and whether the connection is still alive."""

_END_EVENTS = (constants.VIR_DOMAIN_EVENT_STOPPED, constants.VIR_DOMAIN_EVENT_CRASHED)


class LibvirtDeviceRemoval:
    """The events that libvirt sent about one device since this was created. They arrive in the event loop's thread."""

    def __init__(self, alias: str, clock: Clock, is_broken: Callable[[], bool]) -> None:
        self._alias = alias
        self._clock = clock
        self._broken = is_broken
        self._finished = Event()
        self._outcome = DetachOutcome.UNKNOWN

    def wait(self, deadline_seconds: float) -> DetachOutcome:
        """Wait for the device's removal; UNKNOWN when the deadline passes first or the connection breaks."""
        deadline = self._clock.monotonic() + deadline_seconds
        while not self._finished.is_set():
            remaining = deadline - self._clock.monotonic()
            if remaining <= 0 or self._broken():
                break
            self._finished.wait(min(remaining, POLL_SECONDS))
        return self._outcome

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

    def _finish(self, how: DetachOutcome) -> None:
        if not self._finished.is_set():
            self._outcome = how
            self._finished.set()


@contextlib.contextmanager
def watch_device_removal(
    connection: LibvirtConnection, clock: Clock, uuid: str, alias: str
) -> Iterator[LibvirtDeviceRemoval]:
    """Watch the events about one device of a running domain, from the beginning of the block to its end."""
    failure = f"cannot listen to what becomes of {alias} in VM {uuid}"
    with connection.listen("virConnectDomainEventRegisterAny", failure, vm_uuid=uuid) as connect:
        removal = LibvirtDeviceRemoval(alias, clock, lambda: connect.isAlive() != 1)
        callbacks: dict[int, Callable[..., None]] = {
            constants.VIR_DOMAIN_EVENT_ID_LIFECYCLE: removal.on_lifecycle_event,
            constants.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED: removal.on_device_removed,
            constants.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVAL_FAILED: removal.on_removal_failed,
        }
        ids = _register_callbacks(connect, uuid, callbacks)
        try:
            yield removal
        finally:
            for callback_id in ids:
                connection.attempt(None, partial(connect.domainEventDeregisterAny, callback_id))


def _register_callbacks(connect: virConnect, uuid: str, heard: dict[int, Callable[..., None]]) -> list[int]:
    domain = connect.lookupByUUIDString(uuid)
    return [connect.domainEventRegisterAny(domain, event, callback, None) for event, callback in heard.items()]
