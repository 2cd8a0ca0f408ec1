# SPDX-License-Identifier: Apache-2.0
"""The other host of a move: by SSH, where its own vgpuctl makes the calls, or a simulated one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from typing import Any, Self

from vgpuctl.config.pinned_hosts import libvirt_uri as checked_uri
from vgpuctl.config.pinned_hosts import transfer_address
from vgpuctl.errors import InvalidInput, Unreachable, VgpuctlError
from vgpuctl.library.migration import MigrationCalls
from vgpuctl.library.remote_errors import error_of
from vgpuctl.library.sent_calls import SentCalls, arguments_of
from vgpuctl.model import documents
from vgpuctl.model.outcome import CallSettings
from vgpuctl.model.result_reader import Mismatch, read_result
from vgpuctl.remote import reply as replies
from vgpuctl.remote.session import SCHEME, RemoteCommand, RunControl, Session, Target, is_range, parse_url
from vgpuctl.value import Value
from vgpuctl.version import __version__

SIMULATED = "sim:"
LOCAL = "local"
"""This host, for --host."""
CALL_SECONDS = 600.0
COMMAND = "migration-call"
"""The command of the other vgpuctl; standard input is a JSON object with the arguments of one call."""
CALLS = (
    "finish-migration", "migrate-out", "offer-vm", "prepare-incoming", "show-migration", "start-vm", "stop-vm",
)  # fmt: skip


class Peer(Value):
    """The other host. `libvirt_uri`: how the libvirt of this one reaches its libvirt."""

    host: MigrationCalls
    libvirt_uri: str
    close: Callable[[], None]


def peer_name(address: str) -> str:
    """Return how a host that was given as an address is named; `hint_commands.address_of` is the reverse."""
    return address.removeprefix(SCHEME).rstrip("/")


def check_address(address: str | None, libvirt_uri: str | None) -> None:
    """Check what libvirt gets as it is.

    Raises:
        InvalidInput: it is no host's address, or no libvirt's URI.
    """
    given = (("--address", transfer_address, address), ("--libvirt-uri", checked_uri, libvirt_uri))
    for option, rule, text in given:
        try:
            if text is not None:
                rule(text)
        except ValueError as error:
            raise InvalidInput(f"{option}: {error}") from error


def open_peer(address: str, option: str, settings: CallSettings, *, libvirt_uri: str | None = None) -> Peer:
    """Open the other host of a move: `ssh://[user@]HOST[:port]`, or `sim:NAME`.

    `option`: by which it was given. Of `settings` its calls get how long to wait, and when to stop.

    Raises:
        InvalidInput: it is no such address.
        VgpuctlError: it cannot be reached.
    """
    if address.startswith(SIMULATED):
        from vgpuctl.library import open_host

        simulated = open_host(address, wait_seconds=settings.wait_seconds, cancelled=settings.cancelled)
        return Peer(simulated, libvirt_uri or address, simulated.close)
    if not address.startswith(SCHEME):
        raise InvalidInput(
            f"{option}: '{address}' is not the address of {'another' if address == LOCAL else 'a'} host",
            hint=f"use ssh://[user@]HOST[:port], or sim:NAME for a simulated one{_guess(address)}",
        )
    if is_range(address):
        raise InvalidInput(f"{option} takes one host, and {address} may be several", hint="name one of them")
    target = parse_url(address, option)
    remote = RemoteHost(target, CallSettings(cancelled=settings.cancelled, wait_seconds=settings.wait_seconds))
    return Peer(remote, libvirt_uri or f"qemu+ssh://{address.removeprefix(SCHEME).rstrip('/')}/system", remote.close)


def _guess(address: str) -> str:
    """Return a question about an address without its scheme; none about this host, or what is no host's name."""
    from vgpuctl.sim import SCENARIOS

    meant = f"{SIMULATED}{address}" if address in SCENARIOS else f"{SCHEME}{address.removeprefix('ssh:')}"
    try:
        parse_url(meant) if meant.startswith(SCHEME) else None
    except InvalidInput:
        return ""
    return "" if address == LOCAL else f"; did you mean {meant}?"


class RemoteHost(SentCalls, MigrationCalls):
    """vgpuctl on another host: each call is a command there, in one login."""

    def __init__(self, target: Target, settings: CallSettings) -> None:
        self._target = target
        self._settings = settings
        self._logins: list[Session] = []
        """The login, if there is one; what `with_settings` returns has the same."""

    def with_settings(self, settings: CallSettings) -> Self:
        """Return this host for calls with other settings."""
        other = copy(self)
        other._settings = settings
        return other

    def close(self) -> None:
        """Log out."""
        while self._logins:
            self._logins.pop().close()

    def _send_call(self, method: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Make one call there; a login that broke meanwhile is made again, as nothing has begun there then.

        Raises:
            VgpuctlError: the call's own error, or why its result is not known.
        """
        from vgpuctl.library.call_table import CALLS as LIBRARY_CALLS

        name, arguments = method.__name__.replace("_", "-"), arguments_of(method, self, args, named)
        text = json.dumps({"call": name, "arguments": documents.to_json_value(arguments)})
        front = ("--json", "--wait", f"{self._settings.wait_seconds:g}")
        command = RemoteCommand((*front, COMMAND, "-"), text.encode())
        control = RunControl(time.monotonic() + CALL_SECONDS, lambda line: None, lambda: int(self._is_cancelled()))
        was_open = bool(self._logins)
        try:
            output = self._open(control.deadline).run(command, control)
        except Unreachable:
            self.close()
            if not was_open:
                raise
            output = self._open(control.deadline).run(command, control)
        call = LIBRARY_CALLS[name]
        reply = replies.parse(output, self._target.name, is_change=call.changes)
        document = reply.document
        if replies.is_usage_error(reply):
            version = replies.parse_version(self._open(control.deadline).run(RemoteCommand(("--version",)), control))
            replies.refuse_other_version(reply, self._target.name, version, __version__)
        if not document["ok"]:
            raise error_of(documents.read_failure(document["error"]), call, document)
        try:
            return read_result(call.result_type, document)
        except Mismatch as mismatch:
            raise replies.invalid_reply_error(
                self._target.name, f"is not that of {name}: {mismatch}", is_change=call.changes
            ) from mismatch

    def _open(self, deadline: float) -> Session:
        if not self._logins:
            from vgpuctl.remote.ssh import SshConnector

            self._logins.append(SshConnector()(self._target, deadline))
        return self._logins[0]

    def _is_cancelled(self) -> bool:
        with suppress(VgpuctlError):
            return self._settings.cancelled()
        return True
