# SPDX-License-Identifier: Apache-2.0
"""A connection to an LDAP server, with TLS by Python's own library.

libldap could do TLS itself, but as Debian builds it, its handshake has no time limit: a server that accepts and says
nothing would keep a thread for ever (libldap 2.5.13, OPT_NETWORK_TIMEOUT does not count there). It also takes its TLS
settings from ldap.conf and the environment. So libldap gets one end of a pair of sockets, and a thread copies between
the other end and the server.
"""

from __future__ import annotations

import select
import shlex
import socket
import ssl
import threading
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

from vgpuctl.controller.sign_in.settings import LdapSettings
from vgpuctl.controller.sign_in.signed_in import SignInUnavailable, server_text

PORTS = {"ldap": 389, "ldaps": 636}
_CHUNK = 65536
_NO_TLS = "the port may speak no TLS: write ldap:// in sign-in.yaml, and start_tls: true"
_START_TLS = b"\x30\x1d\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037"
"""An extended request with message id 1 (RFC 4511, section 4.14)."""
_MAX_START_TLS_ANSWER = 4096


def open_channel(settings: LdapSettings, seconds: float) -> socket.socket:
    """Return a socket on which LDAP is spoken without TLS, to a server whose certificate was checked.

    Raises:
        SignInUnavailable: the server does not answer, or is not trusted.
    """
    url = settings.url
    parts = urlsplit(url)
    host, has_tls = parts.hostname or "", parts.scheme == "ldaps" or settings.start_tls
    context = _context(settings.ca_file) if has_tls else None
    server: socket.socket | None = None
    try:
        server = socket.create_connection((host, parts.port or PORTS[parts.scheme]), timeout=seconds)
        if context is None:
            return server
        if settings.start_tls:
            _start_tls(server, url)
        tls = context.wrap_socket(server, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        _close(server)
        raise SignInUnavailable(
            f"the certificate of {url} is not trusted: {server_text(error.verify_message)}",
            hint="set ca_file in sign-in.yaml; the url has the name that is in the certificate",
        ) from None
    except TimeoutError:
        _close(server)
        raise SignInUnavailable(f"{url} did not answer within {seconds:g} s", hint=_reach(parts)) from None
    except (OSError, UnicodeError) as error:
        _close(server)
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        hint = _NO_TLS if isinstance(error, ssl.SSLError) else _reach(parts)
        raise SignInUnavailable(f"{url} does not answer: {server_text(reason)}", hint=hint) from None
    except BaseException:
        _close(server)
        raise
    return _joined(tls, seconds)


def _reach(url: SplitResult) -> str:
    return f"nc -zv {shlex.quote(url.hostname or '')} {url.port or PORTS[url.scheme]}"


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise SignInUnavailable(
            f"{ca_file} has no certificates that can be used: {error.strerror or error}",
            hint=f"openssl x509 -noout -subject -in {ca_file}",
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _start_tls(server: socket.socket, url: str) -> None:
    """Have the server go on with TLS. What it sent in the clear after its answer would count as secured: refused."""
    server.sendall(_START_TLS)
    answer = b""
    while len(answer) < 2 or len(answer) < 2 + answer[1]:
        data = server.recv(_MAX_START_TLS_ANSWER)
        answer += data
        if not data or answer[1:2] > b"\x7f":  # a longer answer is a refusal with a text
            break
    is_whole = len(answer) > 1 and len(answer) == 2 + answer[1]
    if not is_whole or answer[2:6] != b"\x02\x01\x01\x78" or answer[7:10] != b"\x0a\x01\x00":
        raise SignInUnavailable(
            f"{url} does not go on with TLS (StartTLS)", hint="write ldaps:// in sign-in.yaml, without start_tls"
        )


def _joined(tls: ssl.SSLSocket, seconds: float) -> socket.socket:
    own, other = socket.socketpair()
    own.settimeout(seconds)
    tls.settimeout(seconds)
    threading.Thread(target=_copy, args=(own, tls), name="ldap-tls", daemon=True).start()
    return other


def _copy(own: socket.socket, tls: ssl.SSLSocket) -> None:
    """Copy both ways until one side ends. One thread does both: an SSLSocket is for one at a time."""
    poll = select.poll()
    poll.register(own, select.POLLIN)
    poll.register(tls, select.POLLIN)
    with own, tls, suppress(OSError, ValueError):
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if own.fileno() in ready:
                data = own.recv(_CHUNK)
                if not data:
                    return
                tls.sendall(data)
            while tls.fileno() in ready:
                data = tls.recv(_CHUNK)
                if not data:
                    return
                own.sendall(data)
                if not tls.pending():
                    break


def _close(server: socket.socket | None) -> None:
    if server is not None:
        with suppress(OSError):
            server.close()
