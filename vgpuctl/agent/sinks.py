# SPDX-License-Identifier: Apache-2.0
"""Delivers events to the programs and https addresses of host.yaml's `agent: notify:`.

    deliveries = [SinkDelivery(log, sink) for sink in sinks]      # InvalidInput for a sink that cannot be
    for delivery in deliveries: delivery.start()
    for delivery in deliveries: delivery.close()                  # after the log was closed, at most 5 seconds each

Each sink has its own thread and its own place in the log, so a slow one delays neither publishing nor the others. What
it cannot take is tried again after 1, 5, 25 and 125 seconds, and then left out; one that falls out of the log gets a
`gap`, whatever types it asked for.

A program gets one line of JSON on stdin, and 10 seconds. No shell starts it, with no more of the environment than PATH.
It runs as root, so nobody else may be able to change it, or a directory or link on its path.

An https address gets the JSON by POST. The header `X-Vgpuctl-Signature` is `sha256=` and the HMAC-SHA256, in
hexadecimal, of the header `X-Vgpuctl-Timestamp` (seconds since the epoch), a full stop and the body, with the key in
the secret file. A receiver computes it too, and refuses old timestamps. Redirects are failures: a key's owner named
this address and no other.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import ssl
import stat
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException
from threading import Event as ThreadEvent
from threading import Thread
from typing import TYPE_CHECKING

from vgpuctl.errors import InvalidInput
from vgpuctl.host.commands import run_command
from vgpuctl.host.trusted_path import require_trusted_program
from vgpuctl.model.event import Event, EventType, Sink
from vgpuctl.regular_file import read_regular_file
from vgpuctl.value import as_dict

if TYPE_CHECKING:
    from http.client import HTTPMessage
    from typing import IO

    from vgpuctl.agent.events import EventLog

log = logging.getLogger("vgpuctl.agent")

PROGRAM_SECONDS = 10.0
NETWORK_SECONDS = 10.0
"""The longest time for one step of a request: connecting, sending, the first bytes of the answer."""
PAUSES_SECONDS = (1.0, 5.0, 25.0, 125.0)
MIN_KEY_BYTES = 16
_MAX_KEY_BYTES = 4096
_LOOK_SECONDS = 1.0
_CLOSE_SECONDS = 5.0
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_READABLE_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO

Deliver = Callable[[bytes], None]
"""Delivers one event's JSON; raises OSError when it fails."""


class SinkDelivery:
    """The thread of one sink. `deliver` and `pauses_seconds` replace the real ones in tests."""

    def __init__(
        self,
        log: EventLog,
        sink: Sink,
        deliver: Deliver | None = None,
        pauses_seconds: tuple[float, ...] = PAUSES_SECONDS,
    ) -> None:
        """Take the place in the log after its newest event.

        Raises:
            InvalidInput: the sink is neither a program nor an https address with a key.
        """
        self._log = log
        self._sink = sink
        self._deliver = deliver or open_sink(sink)
        self._pauses = pauses_seconds
        self._last_id = log.last_id
        self._ending = ThreadEvent()
        self._thread = Thread(target=self._run, name="event-sink", daemon=True)
        self.left_out = 0
        """How many events could not be delivered."""
        self.problem: str | None = None
        """Why the last attempt failed; None after one that succeeded."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Try each event that is left once, and end; wait at most 5 seconds for that."""
        self._ending.set()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            events = self._log.wait_after(self._last_id, 0 if self._ending.is_set() else _LOOK_SECONDS)
            for event in events:
                if self._wants(event):
                    self._deliver_event(event)
                self._last_id = event.id
            if not events and (self._ending.is_set() or self._log.is_closed):
                return

    def _wants(self, event: Event) -> bool:
        return not self._sink.types or event.type is EventType.GAP or event.type in self._sink.types

    def _deliver_event(self, event: Event) -> None:
        data = encode_event(event)
        for pause in (*self._pauses, None):
            try:
                self._deliver(data)
            except OSError as error:
                if self.problem is None:
                    log.warning("events cannot be delivered: %s", error)
                self.problem = str(error)
            else:
                self.problem = None
                return
            if pause is None or self._ending.wait(pause):
                break
        self.left_out += 1


def encode_event(event: Event) -> bytes:
    """Return an event as one line of JSON."""
    return json.dumps(as_dict(event), separators=(",", ":")).encode() + b"\n"


def open_sink(sink: Sink) -> Deliver:
    """Return what delivers to a sink.

    Raises:
        InvalidInput: it has no program and no address, or both; the address is not https, or has no key.
    """
    if (sink.program is None) == (sink.url is None):
        raise InvalidInput("a receiver of events is either a program or a url", hint="set one of program: and url:")
    if sink.program is not None:
        if not os.path.isabs(sink.program):
            raise InvalidInput(f"program: '{sink.program}' is not an absolute path", value=sink.program)
        return ProgramSink(sink.program).deliver
    return HttpsSink(sink.url or "", sink.secret_file).deliver


class ProgramSink:
    """A program that gets events on stdin. `require_trusted` raises OSError for one that must not be started."""

    def __init__(self, program: str, require_trusted: Callable[[str], None] | None = None) -> None:
        self._program = program
        self._require_trusted = require_trusted or require_trusted_program

    def deliver(self, data: bytes) -> None:
        """Run the program to its end.

        Raises:
            OSError: it must not or cannot be started, took too long, or ended with another status than 0.
        """
        self._require_trusted(self._program)
        result = run_command([self._program], deadline_seconds=PROGRAM_SECONDS, stdin=data.decode(), keep_output=False)
        if result.status != 0:
            raise OSError(f"{self._program} ended with status {result.status}")


class HttpsSink:
    """An https address that gets events. `opener` is urllib's, with what follows no redirect."""

    def __init__(
        self,
        url: str,
        secret_file: str | None,
        opener: urllib.request.OpenerDirector | None = None,
        key_owner: int = 0,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "https" or not parts.hostname or parts.username is not None:
            raise InvalidInput(f"url: '{url}' is not an https address without a user name", value=url)
        if secret_file is None:
            raise InvalidInput(
                f"url: {url} has no secret_file:, so its receiver could not tell who sent an event",
                hint="openssl rand -hex 32 > FILE; chmod 600 FILE",
                value=url,
            )
        self._url = url
        self._secret_file = secret_file
        self._key_owner = key_owner
        self._opener = opener or build_opener(urllib.request.HTTPSHandler(context=ssl.create_default_context()))

    def deliver(self, data: bytes) -> None:
        """Send one request.

        Raises:
            OSError: no key can be read, nobody answers, or the answer's status is not one of success.
        """
        signature = signature_headers(self._read_key(), data, int(time.time()))
        headers = {"Content-Type": "application/json", "User-Agent": "vgpuctl", **signature}
        request = urllib.request.Request(self._url, data, headers, method="POST")  # noqa: S310 - https, checked above
        try:
            with self._opener.open(request, timeout=NETWORK_SECONDS) as answer:
                status = int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            raise OSError(f"{self._url} answered with status {error.code}") from None
        except HTTPException as error:  # a malformed answer
            raise OSError(f"{self._url}: {error}") from error
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            raise OSError(f"{self._url} answered with status {status}")

    def _read_key(self) -> bytes:
        """Read the key each time, so that it can be replaced while the agent runs."""
        status = os.stat(self._secret_file)
        if status.st_uid != self._key_owner or status.st_mode & _READABLE_BY_OTHERS:
            raise PermissionError(
                f"{self._secret_file} must belong to root and be readable by root alone: chmod 600 {self._secret_file}"
            )
        key = read_regular_file(self._secret_file, _MAX_KEY_BYTES).strip()
        if len(key) < MIN_KEY_BYTES:
            raise PermissionError(f"the key in {self._secret_file} is shorter than {MIN_KEY_BYTES} bytes")
        return key


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error with its own status."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """Return None: no request follows."""
        return None


def build_opener(*handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """Return urllib's opener with these handlers; it follows no redirect."""
    return urllib.request.build_opener(_NoRedirects(), *handlers)


def signature_headers(key: bytes, data: bytes, seconds: int) -> dict[str, str]:
    """Return the headers by which a receiver can tell who sent a body, and when. `seconds`: since the epoch."""
    digest = hmac.new(key, b"%d." % seconds + data, hashlib.sha256).hexdigest()
    return {"X-Vgpuctl-Timestamp": str(seconds), "X-Vgpuctl-Signature": f"sha256={digest}"}
