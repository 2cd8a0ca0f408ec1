# SPDX-License-Identifier: Apache-2.0
"""One HTTPS request to an issuer: bounded in time and size, no redirects, no proxies, no cookies."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Event, Timer
from urllib.parse import urlsplit

from vgpuctl.controller.sign_in.settings import web_address
from vgpuctl.controller.sign_in.signed_in import SignInUnavailable, server_text
from vgpuctl.value import Value

MAX_ANSWER_BYTES = 1 << 20
"""A token with 2,000 groups of 200 characters has half of that."""


class WebAnswer(Value):
    """What a server answered."""

    status: int
    body: bytes


class WebClient:
    """Makes requests that trust the certificates in `ca_file`, or the system's, and take `seconds` at most."""

    def __init__(self, ca_file: str | None, seconds: float) -> None:
        """Load the certificates.

        Raises:
            SignInUnavailable: the file has none.
        """
        self._seconds = seconds
        try:
            self._context = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise SignInUnavailable(
                f"{ca_file} has no certificates that can be used: {error.strerror or error}",
                hint=f"openssl x509 -noout -subject -in {ca_file}",
            ) from error
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2

    def fetch(self, url: str, headers: Mapping[str, str], body: str | None = None) -> WebAnswer:
        """Return the answer to a GET, or to a POST of a form.

        Raises:
            SignInUnavailable: there is none, it is too late or too large, or it is a redirect.
        """
        try:
            parts = urlsplit(web_address(url))
        except ValueError as error:
            raise SignInUnavailable(f"the issuer names an address that is not used: {error}") from None
        host, place = parts.hostname or "", f"{parts.scheme}://{parts.netloc}{parts.path}"
        connection: HTTPConnection = (
            HTTPSConnection(host, parts.port, timeout=self._seconds, context=self._context)
            if parts.scheme == "https"
            else HTTPConnection(host, parts.port, timeout=self._seconds)
        )
        late = Event()
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        try:
            connection.connect()
            with _cut_after(self._seconds, connection.sock, late):
                answer = _exchange(connection, target, headers, body)
        except ssl.SSLCertVerificationError as error:
            raise SignInUnavailable(
                f"the certificate of {host} is not trusted: {server_text(error.verify_message)}",
                hint="set ca_file in sign-in.yaml, or have the certificate renewed",
            ) from error
        except (OSError, HTTPException, ValueError) as error:
            raise SignInUnavailable(f"{place}: {self._reason(error, late)}") from error
        finally:
            connection.close()
        if late.is_set():
            raise SignInUnavailable(f"{place}: it did not answer within {self._seconds:g} s")
        if 300 <= answer.status < 400:
            raise SignInUnavailable(f"{place} answers with a redirect ({answer.status}), which is not followed")
        if len(answer.body) > MAX_ANSWER_BYTES:
            raise SignInUnavailable(f"{place} answers with more than {MAX_ANSWER_BYTES >> 10} KiB")
        return answer

    def fetch_object(self, url: str, what: str) -> dict[str, object]:
        """Return the JSON object at an address; `what` it is, for messages.

        Raises:
            SignInUnavailable: there is none.
        """
        answer = self.fetch(url, {"Accept": "application/json"})
        if answer.status != 200:
            raise SignInUnavailable(f"{what} at {server_text(url)}: the answer has status {answer.status}, not 200")
        return parse_object(answer.body, f"{what} at {server_text(url)}")

    def _reason(self, error: Exception, late: Event) -> str:
        if late.is_set() or isinstance(error, TimeoutError):
            return f"it did not answer within {self._seconds:g} s"
        if isinstance(error, ssl.SSLError):
            return f"TLS failed: {server_text(error.reason)}"
        if isinstance(error, OSError):
            return server_text(error.strerror or error)
        return f"its answer is not HTTP ({type(error).__name__})"


def parse_object(body: bytes, what: str) -> dict[str, object]:
    """Return the JSON object in an answer. No error quotes it: it may have a token.

    Raises:
        SignInUnavailable: it is none.
    """
    value: object = None
    with suppress(ValueError, RecursionError):
        value = json.loads(body)
    if not isinstance(value, dict):
        raise SignInUnavailable(f"{what} is not a JSON object")
    return value


def _exchange(connection: HTTPConnection, path: str, headers: Mapping[str, str], body: str | None) -> WebAnswer:
    sent = {"Accept-Encoding": "identity", "Connection": "close", **headers}
    connection.request("GET" if body is None else "POST", path, body, sent)
    answer = connection.getresponse()
    return WebAnswer(answer.status, answer.read(MAX_ANSWER_BYTES + 1))


@contextmanager
def _cut_after(seconds: float, connected: socket.socket, late: Event) -> Iterator[None]:
    """End a connection after this time, also one on which a byte comes now and then; `late` is set then."""

    def cut() -> None:
        late.set()
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
