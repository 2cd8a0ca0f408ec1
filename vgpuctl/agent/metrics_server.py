# SPDX-License-Identifier: Apache-2.0
"""Serves the metrics on TCP, where host.yaml or `--metrics` says so: GET /metrics, and nothing else.

A scrape sends bytes that were made with the last sample: it never reads the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from vgpuctl.agent.http_server import LimitedProtocol, PortProtocol, make_server
from vgpuctl.agent.metrics_text import CONTENT_TYPE
from vgpuctl.config.agent_metrics import MetricsSpec
from vgpuctl.errors import FileFailed, InvalidInput

log = logging.getLogger("vgpuctl.agent")

PATH = "/metrics"
BACKLOG = 16
DRAIN_SECONDS = 2.0
RENEW_SECONDS = 60.0
"""Between two looks for a renewed certificate."""


class MetricsServer:
    """The listening socket, and what answers on it.

    Raises, when it is made:
        InvalidInput: the address is not one of this host, or its port is taken.
        FileFailed: a certificate, a key or an authority cannot be read or does not fit.
    """

    def __init__(
        self, spec: MetricsSpec, read: Callable[[], bytes], protocol: type[LimitedProtocol] = PortProtocol
    ) -> None:
        """`read`: returns the metrics' text; empty before the first sample."""
        self._read = read
        self._spec = spec
        tls = _tls_settings(spec)
        self._loaded = _times(spec)
        self._refused: tuple[int, ...] | None = None
        self.socket = _listen(spec)
        self.server = make_server(Starlette(routes=[Route(PATH, self._answer)]), protocol, **tls)
        self.server.config.load()

    async def serve(self) -> None:
        """Answer until `close`."""
        renewing = asyncio.create_task(self._renew())
        try:
            await self.server.serve(sockets=[self.socket])
        finally:
            renewing.cancel()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            self.renew_certificate()

    def renew_certificate(self) -> None:
        """Use the certificate and its key as they are now, if their files have changed; a wrong pair is not used.

        A clients' authority that was replaced needs a restart of the agent.
        """
        context, now = self.server.config.ssl, _times(self._spec)
        if context is None or now in (self._loaded, None):
            return
        try:
            for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):  # the first shows whether they fit
                each.load_cert_chain(str(self._spec.tls_certificate), self._spec.tls_key)
        except (OSError, ssl.SSLError) as error:
            if now != self._refused:
                log.warning("metrics on %s: the renewed certificate cannot be used: %s", self._spec.listen, error)
            self._refused = now
            return
        log.info("metrics on %s: the certificate was renewed", self._spec.listen)
        self._loaded = now

    async def close(self, serving: asyncio.Task[None]) -> None:
        """Answer no more; a scrape that is under way may end within a few seconds. `serving`: the task of `serve`."""
        self.server.should_exit = True
        await asyncio.wait((serving,), timeout=DRAIN_SECONDS)
        self.server.force_exit = True
        for connection in list(self.server.server_state.connections):  # one that does not read holds nothing up
            connection.transport.abort()
        await asyncio.wait((serving,), timeout=DRAIN_SECONDS)
        serving.cancel()

    async def _answer(self, _: HttpRequest) -> Response:
        text = self._read()
        if not text:
            return Response("no sample was read yet\n", 503, {"Retry-After": "15"})
        return Response(text, media_type=CONTENT_TYPE)


def _times(spec: MetricsSpec) -> tuple[int, ...] | None:
    """Return when the certificate and its key were written; None without TLS, or while one is missing."""
    if spec.tls_certificate is None or spec.tls_key is None:
        return None
    try:
        return tuple(os.stat(path).st_mtime_ns for path in (spec.tls_certificate, spec.tls_key))
    except OSError:
        return None


def _tls_settings(spec: MetricsSpec) -> dict[str, Any]:
    """Return uvicorn's settings for TLS, after a look at the files."""
    if spec.client_ca is None:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(spec.client_ca)
        context.load_cert_chain(str(spec.tls_certificate), spec.tls_key)
    except (OSError, ssl.SSLError) as error:
        names = f"{spec.tls_certificate}, {spec.tls_key}, {spec.client_ca}"
        raise FileFailed(
            f"metrics on {spec.listen}: the certificate, its key or the clients' authority cannot be used "
            f"({names}): {error.strerror or error}",
            hint=f"openssl x509 -noout -subject -dates -in {spec.tls_certificate}",
            path=str(spec.tls_certificate),
            errno=error.errno,
        ) from error
    return {
        "ssl_certfile": spec.tls_certificate,
        "ssl_keyfile": spec.tls_key,
        "ssl_ca_certs": spec.client_ca,
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
    }


def _listen(spec: MetricsSpec) -> socket.socket:
    family = socket.AF_INET6 if ":" in spec.address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((spec.address, spec.port))
        listening.listen(BACKLOG)
    except OSError as error:
        with contextlib.suppress(OSError):
            listening.close()
        is_taken = error.errno == errno.EADDRINUSE
        hint = f"ss -ltnp 'sport = :{spec.port}'" if is_taken else "ip -brief address"
        raise InvalidInput(f"metrics on {spec.listen}: {error.strerror}", hint=hint, listen=spec.listen) from error
    return listening
