# SPDX-License-Identifier: Apache-2.0
"""A domain's serial console through libvirt's stream (virDomainOpenConsole); implements `ports.ConsoleStream`.

The stream does not block. libvirt reports in its event loop's thread when it can be read or written, as virsh does it.
What was read waits here for the session, whose thread sleeps in poll(2) on an eventfd meanwhile. When too much waits,
the stream is not read: a guest that floods its console fills no memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from vgpuctl.errors import HostCannot
from vgpuctl.host.virt import constants

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import LibvirtConnection, virStream

CHUNK_BYTES = 1 << 16
MAX_WAITING_BYTES = 1 << 20
_END_EVENTS = constants.VIR_STREAM_EVENT_ERROR | constants.VIR_STREAM_EVENT_HANGUP


class LibvirtConsole:
    """One session. `attempt` makes a call and returns its error number, as `LibvirtConnection.attempt` does."""

    def __init__(
        self,
        stream: virStream,
        attempt: Callable[[frozenset[int] | None, Callable[[], object]], int | None],
        is_broken: Callable[[], bool],
    ) -> None:
        self._stream = stream
        self._attempt = attempt
        self._is_broken = is_broken
        self._lock = Lock()
        self._received = bytearray()
        self._unsent = bytearray()
        self._ended = False
        self._closed = False
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def start(self) -> None:
        """Have libvirt report the stream's events."""
        self._stream.eventAddCallback(self._wanted_events(), self._on_event, None)

    def fileno(self) -> int:
        """Return the eventfd."""
        return self._event

    def receive(self) -> bytes | None:
        """Return what the guest wrote since the last call; None when the console has ended.

        Raises:
            HostCannot: the connection to libvirt broke.
        """
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        with self._lock:
            was_full = len(self._received) >= MAX_WAITING_BYTES
            data = bytes(self._received)
            self._received.clear()
            ended = self._ended
        if data:
            if was_full:
                self._update_events()
            return data
        if self._is_broken():
            raise HostCannot(
                "the connection to libvirt broke; the VM runs on",
                hint="systemctl status libvirtd virtqemud; then open the console again",
                check="libvirt",
            )
        return None if ended else b""

    def send(self, data: bytes) -> int:
        """Send data; what the stream does not accept now is sent when libvirt says that it can."""
        with self._lock:
            self._unsent += data
            if data:
                self._send_waiting()
            waiting = len(self._unsent)
        if data and waiting:
            self._update_events()
        return waiting

    def close(self) -> None:
        """Close the stream; the guest is not affected."""
        for call in (self._stream.eventRemoveCallback, self._stream.abort if self._ended else self._stream.finish):
            self._attempt(None, call)
        with self._lock:
            self._closed = True
            os.close(self._event)

    def _wanted_events(self) -> int:
        readable = constants.VIR_STREAM_EVENT_READABLE if len(self._received) < MAX_WAITING_BYTES else 0
        return _END_EVENTS | readable | (constants.VIR_STREAM_EVENT_WRITABLE if self._unsent else 0)

    def _update_events(self) -> None:
        with self._lock:
            events, ended = self._wanted_events(), self._ended
        if not ended:
            self._attempt(None, partial(self._stream.eventUpdateCallback, events))

    def _on_event(self, _stream: virStream, events: int, _opaque: object) -> None:
        """Handle an event in the event loop's thread."""
        with self._lock:
            if events & constants.VIR_STREAM_EVENT_READABLE:
                self._read()
            elif events & _END_EVENTS:
                self._ended = True
            if events & constants.VIR_STREAM_EVENT_WRITABLE and not self._ended:
                self._send_waiting()
            ended = self._ended
            if not self._closed:
                os.eventfd_write(self._event, 1)
        if ended:
            self._attempt(None, self._stream.eventRemoveCallback)
        else:
            self._update_events()

    def _read(self) -> None:
        """Read what there is now. The end of the stream is empty data, or an error: another session aborted it."""
        while len(self._received) < MAX_WAITING_BYTES and not self._ended:
            results: list[bytes | int] = []
            failed = self._attempt(None, lambda: results.append(self._stream.recv(CHUNK_BYTES))) is not None  # noqa: B023
            data = b"" if failed else results[0]
            if isinstance(data, int):  # -2: nothing more for now
                return
            self._received += data
            self._ended = not data

    def _send_waiting(self) -> None:
        while self._unsent and not self._ended:
            results: list[int] = []
            chunk = bytes(self._unsent[:CHUNK_BYTES])
            if self._attempt(None, lambda: results.append(self._stream.send(chunk))) is not None:  # noqa: B023
                self._unsent.clear()  # the end comes as an event, after what the guest still wrote
            elif results[0] <= 0:  # -2: the stream accepts nothing more for now
                return
            else:
                del self._unsent[: results[0]]


@contextlib.contextmanager
def open_console(connection: LibvirtConnection, uuid: str, *, force: bool) -> Iterator[LibvirtConsole]:
    """Open a running domain's serial console, until the block ends."""
    failure = f"cannot open the console of VM {uuid}"
    with connection.listen("virDomainOpenConsole", failure, vm_uuid=uuid) as connect:
        stream = connect.newStream(constants.VIR_STREAM_NONBLOCK)
        flags = constants.VIR_DOMAIN_CONSOLE_FORCE if force else 0
        connect.lookupByUUIDString(uuid).openConsole(None, stream, flags)
        console = LibvirtConsole(stream, connection.attempt, lambda: connect.isAlive() != 1)
        try:
            console.start()
            yield console
        finally:
            console.close()
