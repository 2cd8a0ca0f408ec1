# SPDX-License-Identifier: Apache-2.0
"""The client's end of a WebSocket that carries bytes (`stream_socket`), on a connection of asyncio."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from wsproto import ConnectionType, WSConnection, events
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from vgpuctl.agent.byte_streams import ConnectionStream
from vgpuctl.errors import HostCannot, Unreachable, VgpuctlError
from vgpuctl.library.remote_errors import error_of
from vgpuctl.model.documents import read_failure

OPEN_SECONDS = 60.0
"""So long the other side may take to answer."""
MAX_DOCUMENT_BYTES = 64 << 10
_SWITCHING, _NOT_FOUND = 101, 404


class ClientStream:
    """A WebSocket that a server has accepted. What the server says about a failure is raised by the next read."""

    def __init__(self, connection: ConnectionStream, server: str) -> None:
        """`server`: what is at the other end, for messages."""
        self._connection = connection
        self._server = server
        self._frames = WSConnection(ConnectionType.CLIENT)
        self._arrived: deque[bytes] = deque()
        self._is_accepted = self._is_at_end = False
        self._document = b""
        self._status = _SWITCHING

    async def open(self, host: str, path: str, headers: Mapping[str, str], subprotocols: Sequence[str] = ()) -> None:
        """Ask for the stream at a path, and return when the server has accepted.

        Raises:
            VgpuctlError: the one that the server answers with.
            Unreachable: it does not answer as expected.
        """
        more = [(name.encode(), value.encode()) for name, value in headers.items()]
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                request = events.Request(host, path, extra_headers=more, subprotocols=list(subprotocols))
                await self._connection.write(self._frames.send(request))
                while not self._is_accepted and not self._is_at_end:
                    await self._receive()
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"{self._server} does not answer: {error or 'no answer in time'}") from error
        if not self._is_accepted:
            raise self._failure()

    async def read(self) -> bytes:
        """Return what has arrived; nothing at the end.

        Raises:
            VgpuctlError: why the server ended the stream, unless that was an end of the stream itself.
        """
        while not self._arrived:
            if self._is_at_end:
                if self._document:
                    raise self._failure()
                return b""
            await self._receive()
        return self._arrived.popleft()

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        try:
            await self._connection.write(self._frames.send(events.BytesMessage(data)))
        except LocalProtocolError as error:
            raise ConnectionResetError("the stream has ended") from error

    async def close(self) -> None:
        """End the stream."""
        try:
            async with asyncio.timeout(1):
                await self._connection.write(self._frames.send(events.CloseConnection(code=1000)))
        except (OSError, TimeoutError, LocalProtocolError):
            pass
        await self._connection.close()

    async def _receive(self) -> None:
        data = await self._connection.read()
        try:
            self._frames.receive_data(data or None)
            for event in self._frames.events():
                await self._take(event)
        except (RemoteProtocolError, LocalProtocolError) as error:
            raise Unreachable(f"{self._server} answers with what is no stream: {error}") from error
        if not data:
            self._is_at_end = True

    async def _take(self, event: events.Event) -> None:
        if isinstance(event, events.AcceptConnection):
            self._is_accepted = True
        elif isinstance(event, events.RejectConnection):
            self._status = event.status_code
            self._is_at_end = not event.has_body
        elif isinstance(event, events.RejectData):
            self._add(event.data)
            self._is_at_end = event.body_finished
        elif isinstance(event, events.BytesMessage):
            self._arrived.append(bytes(event.data))
        elif isinstance(event, events.TextMessage):
            self._add(event.data.encode())
        elif isinstance(event, events.Ping):
            await self._connection.write(self._frames.send(event.response()))
        elif isinstance(event, events.CloseConnection):
            self._is_at_end = True

    def _add(self, data: bytes) -> None:
        if len(self._document) + len(data) <= MAX_DOCUMENT_BYTES:
            self._document += data

    def _failure(self) -> VgpuctlError:
        try:
            answer: Any = json.loads(self._document)
            failure = read_failure(answer["error"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return Unreachable(f"{self._server} answers with HTTP's status {self._status}, and no stream")
        if self._status == _NOT_FOUND:  # a stream says so by itself: this path is not known there
            return HostCannot(f"{self._server} is too old for streams: {failure.message}", hint="update vgpuctl there")
        return error_of(failure)


async def open_stream(
    connection: ConnectionStream,
    server: str,
    host: str,
    path: str,
    headers: Mapping[str, str],
    subprotocols: Sequence[str] = (),
) -> ClientStream:
    """Return the stream at a path of a server; the connection is closed if there is none.

    Raises:
        VgpuctlError: as `ClientStream.open`.
    """
    stream = ClientStream(connection, server)
    try:
        await stream.open(host, path, headers, subprotocols)
    except BaseException:
        await connection.close()
        raise
    return stream
