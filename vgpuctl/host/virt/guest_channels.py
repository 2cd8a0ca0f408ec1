# SPDX-License-Identifier: Apache-2.0
"""The channels of VMs to programs in their guests; implements `ports.guests.GuestChannels`.

All channels share one connection, whose events come in libvirt's event loop. Its callbacks only receive what has
arrived: a call that waits for libvirt's answer would wait for its own thread. So a channel that has ended is closed by
whoever closes it, in another thread.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

from vgpuctl.errors import HostCannot
from vgpuctl.host.virt import constants
from vgpuctl.host.virt.connection import LibvirtConnection
from vgpuctl.host.virt.events import KEEPALIVE_COUNT, KEEPALIVE_SECONDS

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import virConnect, virStream

_READ_BYTES = 4096
_UNSUPPORTED = frozenset({constants.VIR_ERR_NO_SUPPORT})
_END_EVENTS = constants.VIR_STREAM_EVENT_ERROR | constants.VIR_STREAM_EVENT_HANGUP
_ENDED = "the channel has ended: the VM stopped, or libvirtd did"


class LibvirtGuestChannels:
    """The channels of one libvirt."""

    def __init__(self, uri: str | None, lock_held: Callable[[], bool]) -> None:
        self._connection = LibvirtConnection(uri, lock_held, has_events=True)
        self._watched: virConnect | None = None
        self._channels: set[LibvirtGuestChannel] = set()

    def open(
        self, uuid: str, name: str, *, on_data: Callable[[bytes], None], on_end: Callable[[str], None]
    ) -> LibvirtGuestChannel:
        """Open a running VM's channel."""
        failure = f"cannot open the channel {name} of VM {uuid}"
        with self._connection.call("virDomainOpenChannel", failure) as connect:
            self._watch(connect)
            domain = connect.lookupByUUIDString(uuid)
            stream = connect.newStream(constants.VIR_STREAM_NONBLOCK)
            domain.openChannel(name, stream, 0)
            channel = LibvirtGuestChannel(self._connection, connect, stream, on_data, on_end, self._channels.discard)
            self._channels.add(channel)
            try:
                stream.eventAddCallback(constants.VIR_STREAM_EVENT_READABLE | _END_EVENTS, channel.receive, None)
            except BaseException:
                channel.close()
                raise
            return channel

    def _watch(self, connect: virConnect) -> None:
        """End all channels with their connection: their streams get no event of it."""
        if connect is not self._watched:
            attempt = self._connection.attempt
            attempt(_UNSUPPORTED, lambda: connect.setKeepAlive(KEEPALIVE_SECONDS, KEEPALIVE_COUNT))
            attempt(_UNSUPPORTED, lambda: connect.registerCloseCallback(self._end_all, connect))
            self._watched = connect

    def _end_all(self, _connect: object, _reason: int, connect: virConnect) -> None:
        for channel in list(self._channels):
            if channel.connect is connect:
                channel.end()

    def close(self) -> None:
        """Close the connection."""
        if self._watched is not None:
            self._connection.attempt(None, self._watched.unregisterCloseCallback)
            self._watched = None
        self._connection.close()


class LibvirtGuestChannel:
    """An open stream of libvirt's."""

    def __init__(
        self,
        connection: LibvirtConnection,
        connect: virConnect,
        stream: virStream,
        on_data: Callable[[bytes], None],
        on_end: Callable[[str], None],
        forget: Callable[[LibvirtGuestChannel], None],
    ) -> None:
        """`forget`: called when it is closed."""
        self.connect = connect
        self._connection = connection
        self._forget = forget
        self._stream = stream
        self._on_data, self._on_end = on_data, on_end
        self._lock = Lock()
        self._has_ended = False
        self._is_closed = False

    def receive(self, stream: virStream, events: int, _opaque: Any) -> None:
        """Hand over what has arrived. The event loop calls it."""
        with self._lock:
            if self._has_ended:
                return
            data = self._read(stream) if events & constants.VIR_STREAM_EVENT_READABLE else None
            ends = data == b"" or bool(events & _END_EVENTS and not data)
            if ends:
                self._has_ended = True
                self._connection.attempt(None, stream.eventRemoveCallback)
            elif data:
                self._on_data(data)
        if ends:
            self._on_end(_ENDED)

    def end(self) -> None:
        """Note that libvirtd is gone. The event loop calls it."""
        with self._lock:
            is_new, self._has_ended = not self._has_ended, True
            if is_new:
                self._connection.attempt(None, self._stream.eventRemoveCallback)
        if is_new:
            self._on_end(_ENDED)

    def _read(self, stream: virStream) -> bytes | None:
        """Return what has arrived: None, nothing yet; empty, it has ended."""
        received: list[object] = []  # a number while nothing has arrived
        if self._connection.attempt(None, lambda: received.append(stream.recv(_READ_BYTES))) is not None:
            return b""
        return received[0] if isinstance(received[0], bytes) else None

    def send(self, data: bytes) -> None:
        """Send bytes to the guest. libvirt takes them for a stream that has ended, too, so that is known here."""
        if self._has_ended:
            raise HostCannot(f"cannot send to the guest's helper: {_ENDED}", check="guest-helper")
        with self._connection.call("virStreamSend", "cannot send to the guest's helper"):
            sent = self._stream.send(data)
        if sent != len(data):
            raise HostCannot("cannot send to the guest's helper: the guest does not read", check="guest-helper")

    def close(self) -> None:
        """End the stream."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._forget(self)
            if not self._has_ended:
                self._has_ended = True
                self._connection.attempt(None, self._stream.eventRemoveCallback)
        self._connection.attempt(None, self._stream.abort)
