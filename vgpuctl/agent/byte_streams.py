# SPDX-License-Identifier: Apache-2.0
"""Carries bytes between two ends in asyncio: a WebSocket of a server and a connection, or two connections.

An end is read only when the other one took what was read before. A failure goes over a WebSocket as one text frame
with the document that `--json` prints, before it is closed; all other frames are binary.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from starlette.requests import HTTPConnection

from vgpuctl.errors import VgpuctlError, explain_exception
from vgpuctl.model.documents import Failure, failure_document, failure_of, to_json_value

log = logging.getLogger("vgpuctl.agent")

CHUNK_BYTES = 64 << 10
FAREWELL_SECONDS = 2.0
"""So long a peer may take to read why its stream ends."""
SUBPROTOCOL = "binary"
"""What a browser's program for a screen asks for."""
NORMAL_END, FAILURE_END = 1000, 1011
"""Codes with which a WebSocket is closed (RFC 6455)."""


class ByteStream(Protocol):
    """One end."""

    async def read(self) -> bytes:
        """Return what has arrived, or wait for it; nothing at the end.

        Raises:
            OSError: the connection broke.
        """

    async def write(self, data: bytes) -> None:
        """Send bytes; return when the next ones can be sent.

        Raises:
            OSError: the connection broke.
        """


class ConnectionStream:
    """A connection of asyncio."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        """Return what has arrived."""
        return await self._reader.read(CHUNK_BYTES)

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """Close it; who does not read what was sent has a moment, and loses it then."""
        self._writer.close()
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()


class ServerStream:
    """A WebSocket that a server accepted, with an ASGI application's two functions."""

    is_used = False
    """Whether something has arrived since this was set to False that a user did."""

    def __init__(self, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        self._receive = receive
        self._send = send
        self.is_use: Callable[[bytes], bool] = bool
        """Whether bytes that arrive are something that a user did; else his program sent them by itself."""

    async def read(self) -> bytes:
        """Return what has arrived."""
        message = await self._receive()
        data: bytes = message.get("bytes") or b""
        self.is_used = self.is_used or self.is_use(data)
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        try:
            await self._send({"type": "websocket.send", "bytes": data})
        except RuntimeError as error:  # uvicorn's error for one that is closed already
            raise ConnectionResetError("the stream has ended") from error

    async def end(self, document: object | None) -> None:
        """Close it. `document`: why, if it is a failure."""
        with suppress(OSError, TimeoutError, RuntimeError):  # closed already
            async with asyncio.timeout(FAREWELL_SECONDS):
                if document is not None:
                    text = json.dumps(to_json_value(document), ensure_ascii=False)
                    await self._send({"type": "websocket.send", "text": text})
                code = NORMAL_END if document is None else FAILURE_END
                await self._send({"type": "websocket.close", "code": code})


class StreamEndpoint:
    """An ASGI application of one path: takes a WebSocket, and has `serve` carry bytes over it.

    `name`: of the stream, in the document of a failure.
    """

    def __init__(self, name: str, serve: Callable[[HTTPConnection, ServerStream], Awaitable[None]]) -> None:
        self._name = name
        self._serve = serve

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one WebSocket."""
        await receive()
        asked = {"subprotocol": SUBPROTOCOL} if SUBPROTOCOL in scope["subprotocols"] else {}
        await send({"type": "websocket.accept", **asked})
        stream = ServerStream(receive, send)
        document = None
        try:
            await self._serve(HTTPConnection(scope), stream)
        except Exception as exc:  # noqa: BLE001 - the other end gets it as a document
            document = failure_document(self._failure(explain_exception(exc)), self._name)
        finally:
            await stream.end(document)

    def _failure(self, error: BaseException) -> Failure:
        if isinstance(error, VgpuctlError):
            return failure_of(error)
        log.error("the stream %s failed with a bug", self._name, exc_info=error)
        hint = "this is a bug in vgpuctl: please report it with its journal"
        return Failure("bug", f"unexpected {type(error).__name__}", 1, hint)


async def join(one: ByteStream, other: ByteStream, watch: Coroutine[Any, Any, None] | None = None) -> None:
    """Carry bytes both ways until one end ends, or `watch` returns or raises.

    Raises:
        VgpuctlError: that of an end, or of `watch`.
    """
    tasks = [asyncio.ensure_future(_copy(one, other)), asyncio.ensure_future(_copy(other, one))]
    tasks += [] if watch is None else [asyncio.ensure_future(watch)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(source: ByteStream, target: ByteStream) -> None:
    with suppress(OSError):
        while data := await source.read():
            await target.write(data)
