# SPDX-License-Identifier: Apache-2.0
"""The QEMU guest agents of simulated VMs; implements `ports.guests.GuestAgent`.

A real qemu-ga can speak for a simulated guest: it listens at the Unix socket `guest-agents/UUID` in the directory of
the simulated host. While nobody listens, no guest agent answers. libvirt's part, such as guest-sync, is done here.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from itertools import count

from vgpuctl.model.guest_agent import CHANNEL, MAX_ANSWER_CHARACTERS, format_request, parse_answer
from vgpuctl.model.json_yaml import parse_json
from vgpuctl.sim.core import Core
from vgpuctl.sim.guest_channels import connect, find_running
from vgpuctl.sim.refusals import VirError, VirErrorNumber, read_call, translate_error

DIRECTORY = "guest-agents"
_READ_BYTES = 65536
_NUMBERS = count(1)


class SimGuestAgent:
    """The guest agents of one simulated host's VMs."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def command(self, uuid: str, name: str, arguments: Mapping[str, object], *, wait_seconds: int) -> object:
        """Have a guest agent carry out a command."""
        missing = VirError(
            VirErrorNumber.ARGUMENT_UNSUPPORTED, "argument unsupported: QEMU guest agent is not configured"
        )
        with self._core.call_lock, read_call(self._core, "agent-command", uuid) as state:
            find_running(state, uuid, CHANNEL, missing)
        try:
            return self._ask(uuid, name, arguments, wait_seconds)
        except VirError as error:
            raise translate_error(error, "agent-command", uuid) from error

    def _ask(self, uuid: str, name: str, arguments: Mapping[str, object], wait_seconds: int) -> object:
        guest = connect(self._core.directory / DIRECTORY / uuid, wait_seconds)
        if guest is None:
            raise _unresponsive("QEMU guest agent is not connected")
        with guest:
            number = next(_NUMBERS)
            lines = _lines(guest, time.monotonic() + wait_seconds)
            _send(guest, format_request("guest-sync", {"id": number}))
            while parse_answer(next(lines)) != number:
                pass
            _send(guest, format_request(name, arguments))
            line = next(lines)
        answer = parse_json(line)
        if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
            raise VirError(
                VirErrorNumber.INTERNAL_ERROR,
                f"internal error: unable to execute QEMU agent command '{name}': {answer['error'].get('desc')}",
            )
        return parse_answer(line)


def _send(guest: socket.socket, request: str) -> None:
    try:
        guest.sendall(f"{request}\n".encode("ascii"))
    except OSError as error:
        raise _unresponsive("Guest agent disappeared while executing command") from error


def _lines(guest: socket.socket, deadline: float) -> Iterator[str]:
    """Yield the lines of a guest agent; the last one may be cut off where it is too long.

    Raises:
        VirError: it ended, or sent nothing in time.
    """
    data = b""
    while True:
        while b"\n" not in data and len(data) <= MAX_ANSWER_CHARACTERS:
            remaining = deadline - time.monotonic()
            try:
                guest.settimeout(max(0.001, remaining))
                received = guest.recv(_READ_BYTES) if remaining > 0 else b""
            except OSError as error:
                raise _unresponsive("Guest agent not available for now") from error
            if not received:
                raise _unresponsive("Guest agent disappeared while executing command")
            data += received
        line, _, data = data.partition(b"\n")
        yield line.decode("utf-8", "replace")


def _unresponsive(reason: str) -> VirError:
    return VirError(VirErrorNumber.AGENT_UNRESPONSIVE, f"Guest agent is not responding: {reason}")
