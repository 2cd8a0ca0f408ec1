# SPDX-License-Identifier: Apache-2.0
"""The client of the controller's API, for the command line and for programs.

client = connect("https://fleet.example.org:8443", token="vgpuctl_...")
client.call("assign", pool="office", user="ada").data.name
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from vgpuctl.controller.routes import API, CALLS, DRY_RUN, FleetCall
from vgpuctl.errors import InvalidInput, ResultUnknown, Unreachable, VgpuctlError
from vgpuctl.library.remote_errors import error_of
from vgpuctl.model.controller_service import SERVICE_UNIT, SOCKET_PATH
from vgpuctl.model.documents import read_failure, to_json_value
from vgpuctl.model.result_reader import Mismatch, read_result

MAX_ANSWER_BYTES = 64 << 20
ANSWER_SECONDS = 120.0
READ_SECONDS = 3600.0
"""So long the controller may read an image whose SHA-256 it computes."""


class FleetClient:
    """A controller. `address`: the path of its socket, or its https address; `token`: for the latter.

    `session`: the headers of a person's session, instead of a token. `dry_run`: changes are checked and answered, and
    not made.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        *,
        session: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> None:
        self.address = address
        self._token = token
        self._session = session
        self._dry_run = dry_run

    @property
    def headers(self) -> dict[str, str]:
        """The headers that say who asks."""
        if self._session is not None:
            return dict(self._session)
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Make a call of `routes.CALLS` and return its result; arguments that are None are left out.

        Raises:
            Unreachable: the controller does not answer. ResultUnknown: its answer was lost, or has another form.
            VgpuctlError: as the call itself.
        """
        call = CALLS[name]
        given = {key: value for key, value in arguments.items() if value is not None}
        document = self._send(call, given)
        if document.get("ok") is not True:
            error = document.get("error")
            raise error_of(read_failure(error if isinstance(error, dict) else {}))
        try:
            return read_result(call.result_type, document)
        except (Mismatch, KeyError, TypeError) as error:
            raise ResultUnknown(f"{name}: the controller's answer has another form: {error}") from error

    def _send(self, call: FleetCall, given: Mapping[str, Any]) -> Mapping[str, Any]:
        values = {name: quote(str(given[name]), safe="") for name in call.in_path}
        others = {name: value for name, value in given.items() if name not in values}
        path, body = API + call.path.format(**values), None
        query = {DRY_RUN: "true"} if self._dry_run and call.changes else {}
        headers = self.headers
        if call.method in ("GET", "DELETE"):
            query |= others
        else:
            body = json.dumps(to_json_value(others)).encode()
            headers["Content-Type"] = "application/json"
        path += f"?{urlencode(query)}" if query else ""
        if call.changes:
            headers["Idempotency-Key"] = os.urandom(16).hex()
        connection = self._connect()
        if given.get("file") is not None and call.name == "ensure-image":
            connection.timeout = READ_SECONDS
        try:
            connection.request(call.method, path, body, headers)
        except OSError as error:
            connection.close()
            raise self._unreachable(error) from error
        try:
            answer = json.loads(connection.getresponse().read(MAX_ANSWER_BYTES))
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            if not call.changes:
                raise self._unreachable(error) from error
            raise ResultUnknown(
                f"{call.name}: the controller's answer did not arrive: {error}", hint="vgpuctl controller list-events"
            ) from error
        finally:
            connection.close()
        return answer if isinstance(answer, dict) else {}

    @contextmanager
    def signed_in(self, user: str, password: str) -> Iterator[FleetClient]:
        """Yield a client with a session of a person, which is ended afterwards.

        Raises:
            Unreachable: the controller does not answer. VgpuctlError: the name or the password is wrong.
        """
        body = json.dumps({"user": user, "password": password}).encode()
        answer, cookies = self._ask_session("POST", body, {"Content-Type": "application/json"})
        header, secret = answer.get("header"), answer.get("token")
        if not cookies or not isinstance(header, str) or not isinstance(secret, str):
            failure = answer.get("error")
            raise error_of(read_failure(failure if isinstance(failure, dict) else {}))
        cookie = "; ".join(f"{name}={one.value}" for name, one in cookies.items())
        session = {"Cookie": cookie, header: secret, "Origin": self.address, "Sec-Fetch-Site": "same-origin"}
        try:
            yield FleetClient(self.address, session=session, dry_run=self._dry_run)
        finally:
            with suppress(VgpuctlError):  # it ends by itself, later
                self._ask_session("DELETE", None, session)

    def _ask_session(
        self, method: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[dict[str, Any], SimpleCookie]:
        connection = self._connect()
        try:
            connection.request(method, f"{API}/session", body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read(MAX_ANSWER_BYTES))
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()
        cookies = SimpleCookie()
        for line in response.headers.get_all("Set-Cookie", []):
            cookies.load(line)
        return (answer if isinstance(answer, dict) else {}), cookies

    def _connect(self) -> http.client.HTTPConnection:
        if self.address.startswith("/"):
            return _SocketConnection(self.address)
        parts = urlsplit(self.address)
        host, port = str(parts.hostname), parts.port
        if parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS, context=context)
        return http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)

    def _unreachable(self, error: Exception) -> Unreachable:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
            reason = "that port speaks no TLS, as https:// needs"
        hint = f"systemctl status {SERVICE_UNIT}" if self.address.startswith("/") else f"curl {self.address}/healthz"
        return Unreachable(f"the controller does not answer at {self.address}: {reason}", hint=hint)


class _SocketConnection(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("controller", timeout=ANSWER_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def connect(
    address: str | None = None, token: str | None = None, *, dry_run: bool = False, as_person: bool = False
) -> FleetClient:
    """Return a client of a controller: at a socket's path, or at an https address; None: of this machine.

    `dry_run`: as of `FleetClient`. `as_person`: somebody signs in with it, so it needs no token.

    Raises:
        InvalidInput: it is no such address, or a token would cross the network in the clear.
    """
    text = address or SOCKET_PATH
    if text.startswith("/"):
        if as_person:
            raise InvalidInput(
                f"{text} is the socket of a controller, where nobody signs in", hint="--controller https://HOST"
            )
        return FleetClient(text, dry_run=dry_run)
    parts = urlsplit(text)
    is_local = parts.hostname in ("127.0.0.1", "::1", "localhost")
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.path not in ("", "/") or parts.query:
        is_path = "://" not in text and (text.endswith(".sock") or os.path.exists(text))
        raise InvalidInput(
            f"--controller {text}: write https://HOST[:PORT], or an absolute path of a socket",
            hint=f"--controller {shlex.quote(os.path.abspath(text))}" if is_path else None,
        )
    if parts.scheme == "http" and not is_local:
        raise InvalidInput(f"--controller {text}: the token would cross the network in the clear", hint="use https://")
    if as_person:
        return FleetClient(text.rstrip("/"), dry_run=dry_run)
    if token is None:
        raise InvalidInput(
            f"{text} needs a token", hint="VGPUCTL_TOKEN_FILE=FILE; an admin makes one: vgpuctl controller add-token"
        )
    return FleetClient(text.rstrip("/"), token, dry_run=dry_run)
