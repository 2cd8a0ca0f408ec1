# SPDX-License-Identifier: Apache-2.0
"""The channels of VMs to programs in their guests; implements `ports.guests.GuestChannels`.

libvirt names the Unix socket at which QEMU listens for a channel, and root connects to it. Not by
virDomainOpenChannel: libvirt's client keeps in memory what nobody reads, all streams share one connection that one
guest can block, and the libvirtd of libvirt 11.3 ended when a domain was destroyed whose channel had been opened again
after its former client was killed. QEMU serves one connection at a time; a second one gets no data.

One thread reads all channels of this process.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread

from vgpuctl.errors import HostCannot, LibvirtFailed
from vgpuctl.host.virt import constants
from vgpuctl.host.virt.connection import LibvirtConnection
from vgpuctl.host.virt.libvirt_xml import parse_xml
from vgpuctl.model.vm import VmState

_READ_BYTES = 4096
_ENDED = "the VM stopped, or QEMU closed the channel"
_CHECK = "guest-helper"


class LibvirtGuestChannels:
    """The channels of one libvirt."""

    def __init__(self, connection: LibvirtConnection) -> None:
        self._connection = connection
        self._selector: selectors.BaseSelector | None = None
        self._lock = Lock()

    def open(
        self, uuid: str, name: str, *, on_data: Callable[[bytes], None], on_end: Callable[[str], None]
    ) -> SocketChannel:
        """Open a running VM's channel."""
        path = self._find_path(uuid, name)
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            end.connect(path)
        except OSError as error:
            end.close()
            raise HostCannot(
                f"cannot connect to the channel {name} of VM {uuid}: {error.strerror}",
                hint=f"ls -l {path}",
                check=_CHECK,
                path=path,
            ) from error
        return SocketChannel(end, self._start(), on_data, on_end)

    def _find_path(self, uuid: str, name: str) -> str:
        """Return the path of the socket at which QEMU listens.

        Raises:
            LibvirtFailed: as `ports.guests.GuestChannels.open`.
        """
        failure = f"cannot open the channel {name} of VM {uuid}"
        with self._connection.call("virDomainGetXMLDesc", failure) as connect:
            domain = connect.lookupByUUIDString(uuid)
            state = constants.VM_STATES.get(domain.state(0)[0], VmState.UNKNOWN)
            root = parse_xml(domain.XMLDesc(0))
        if state is VmState.STOPPED:
            code = constants.VIR_ERR_OPERATION_INVALID
            raise LibvirtFailed(f"{failure}: it does not run", libvirt_code=code, call="virDomainGetXMLDesc")
        for channel in root.findall("devices/channel[@type='unix']"):
            target, source = channel.find("target"), channel.find("source")
            if target is not None and source is not None and target.get("name") == name:
                path = source.get("path")
                if source.get("mode") == "bind" and path:
                    return str(path)
        code = constants.VIR_ERR_INTERNAL_ERROR
        raise LibvirtFailed(f"{failure}: it has no such channel", libvirt_code=code, call="virDomainGetXMLDesc")

    def _start(self) -> selectors.BaseSelector:
        """Return the selector of the thread that reads, which is started once."""
        with self._lock:
            if self._selector is None:
                self._selector = selectors.EpollSelector()
                Thread(target=_read_all, args=(self._selector,), name="guest-channels", daemon=True).start()
            return self._selector


def _read_all(selector: selectors.BaseSelector) -> None:
    """Read all channels until the process ends, a few bytes of each in turn."""
    while True:
        for key, _ in selector.select():
            key.data()


class SocketChannel:
    """An open connection to QEMU's socket."""

    def __init__(
        self,
        end: socket.socket,
        selector: selectors.BaseSelector,
        on_data: Callable[[bytes], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._socket = end
        self._selector = selector
        self._on_data, self._on_end = on_data, on_end
        self._lock = Lock()
        self._is_open = True
        selector.register(end, selectors.EVENT_READ, self._receive)

    def _receive(self) -> None:
        """Hand over what has arrived. The thread that reads calls it."""
        with self._lock:
            if not self._is_open:
                return
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._end()
        if data:
            self._on_data(data)
        else:
            self._on_end(_ENDED)

    def _end(self) -> None:
        self._is_open = False
        with suppress(KeyError, ValueError):
            self._selector.unregister(self._socket)
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes to the guest."""
        with self._lock:
            try:
                sent = self._socket.send(data) if self._is_open else 0
            except OSError:
                sent = 0
        if sent != len(data):
            raise HostCannot("cannot send to the guest's helper: it does not read, or the VM stopped", check=_CHECK)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._is_open:
                self._end()
