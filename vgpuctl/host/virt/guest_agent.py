# SPDX-License-Identifier: Apache-2.0
"""The QEMU guest agents in guests, through libvirt; implements `ports.guests.GuestAgent`.

libvirt synchronizes with the guest agent before each command, and waits at most five seconds for that.
"""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.host.virt.connection import LibvirtConnection
from vgpuctl.model.guest_agent import format_request, parse_answer


class LibvirtGuestAgent:
    """The guest agents of one libvirt's VMs."""

    def __init__(self, connection: LibvirtConnection) -> None:
        self._connection = connection

    def command(self, uuid: str, name: str, arguments: Mapping[str, object], *, wait_seconds: int) -> object:
        """Have a guest agent carry out a command."""
        import libvirt_qemu

        failure = f"cannot ask the guest agent of VM {uuid}"
        with self._connection.call("virDomainQemuAgentCommand", failure) as connect:
            domain = connect.lookupByUUIDString(uuid)
            request = format_request(name, arguments)
            return parse_answer(libvirt_qemu.qemuAgentCommand(domain, request, wait_seconds, 0))
