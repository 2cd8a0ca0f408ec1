# SPDX-License-Identifier: Apache-2.0
"""Waiting until a running guest lets a device go, by libvirt's events: `seams.Removal`.

libvirt tells the end of a detach by DEVICE_REMOVED or DEVICE_REMOVAL_FAILED with the device's alias
(virConnectDomainEventDeviceRemovedCallback in libvirt-domain.h). A domain that stops tells neither, so its end is
listened for as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from vgpuctl.host.virt import numbers
from vgpuctl.model.records import Removed

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import Connection, virConnect
    from vgpuctl.model.seams import Clock

SLICE_SECONDS = 0.5
"""How long is waited before a look at the clock, and whether libvirt is still there."""

_OVER = (numbers.VIR_DOMAIN_EVENT_STOPPED, numbers.VIR_DOMAIN_EVENT_CRASHED)


class Removal:
    """What libvirt has told of one device since this was made. Events come in the thread that serves the connection."""

    def __init__(self, alias: str, clock: Clock, broken: Callable[[], bool]) -> None:
        self._alias = alias
        self._clock = clock
        self._broken = broken
        self._told = Event()
        self._how = Removed.NOT_TOLD

    def wait(self, deadline_seconds: float) -> Removed:
        """Wait for the device's end; NOT_TOLD when the deadline came first, or libvirt went away."""
        until = self._clock.monotonic() + deadline_seconds
        while not self._told.is_set():
            left = until - self._clock.monotonic()
            if left <= 0 or self._broken():
                break
            self._told.wait(min(left, SLICE_SECONDS))
        return self._how

    def removed(self, _connect: object, _domain: object, alias: str, _opaque: object) -> None:
        """Take libvirt's DEVICE_REMOVED."""
        if alias == self._alias:
            self._tell(Removed.GONE)

    def kept(self, _connect: object, _domain: object, alias: str, _opaque: object) -> None:
        """Take libvirt's DEVICE_REMOVAL_FAILED."""
        if alias == self._alias:
            self._tell(Removed.REFUSED)

    def changed(self, _connect: object, _domain: object, event: int, _detail: int, _opaque: object) -> None:
        """Take a change of the domain's life: one that is off has no device plugged in."""
        if event in _OVER:
            self._tell(Removed.GONE)

    def _tell(self, how: Removed) -> None:
        if not self._told.is_set():
            self._how = how
            self._told.set()


@contextlib.contextmanager
def listen(connection: Connection, clock: Clock, uuid: str, alias: str) -> Iterator[Removal]:
    """Hear what becomes of one device of a running domain, from the beginning of the block to its end."""
    failure = f"cannot listen to what becomes of {alias} in VM {uuid}"
    with connection.listening("virConnectDomainEventRegisterAny", failure, vm_uuid=uuid) as connect:
        removal = Removal(alias, clock, lambda: connect.isAlive() != 1)
        heard: dict[int, Callable[..., None]] = {
            numbers.VIR_DOMAIN_EVENT_ID_LIFECYCLE: removal.changed,
            numbers.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED: removal.removed,
            numbers.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVAL_FAILED: removal.kept,
        }
        ids = _registered(connect, uuid, heard)
        try:
            yield removal
        finally:
            for number in ids:
                connection.tried(None, partial(connect.domainEventDeregisterAny, number))


def _registered(connect: virConnect, uuid: str, heard: dict[int, Callable[..., None]]) -> list[int]:
    domain = connect.lookupByUUIDString(uuid)
    return [connect.domainEventRegisterAny(domain, event, take, None) for event, take in heard.items()]
