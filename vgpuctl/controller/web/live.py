# SPDX-License-Identifier: Apache-2.0
"""Tells browsers which sections of their pages changed: one stream of server-sent events for each page that is open.

A stream holds neither a thread nor a connection of the database: one task renders what is looked at, each page once for
all who see the same, after a change and every few seconds, and sends the digests of sections that are others now.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.responses import PlainTextResponse, Response

from vgpuctl.controller.database.rows import Changes
from vgpuctl.errors import NotAllowed, NotFound, VgpuctlError, explain_exception
from vgpuctl.value import Value

log = logging.getLogger("vgpuctl.controller")

MAX_OF_A_PERSON, MAX_STREAMS = 4, 200
Digests = Mapping[str, str]


class LiveTimes(Value):
    """Seconds: between beats; from a change to a look; between looks without one; how long a stream lasts.

    A browser then begins another one, so that one that never reads is gone at last.
    """

    beat: float = 15.0
    settle: float = 1.0
    idle: float = 5.0
    life: float = 600.0


class _Stream:
    """A page that is open. `key`: equal for those who see the same; `read`: returns its digests, for its caller."""

    def __init__(self, person: str, key: tuple[object, ...], read: Callable[[], Digests]) -> None:
        self.person = person
        self.key = key
        self.read = read
        self.news: asyncio.Queue[Digests | None] = asyncio.Queue(maxsize=1)
        self._last: Digests | None = None

    def put(self, digests: Digests | None) -> None:
        """Have the newest digests sent, unless they were; older ones that wait are of no use any more."""
        if digests is not None and digests == self._last:
            return
        self._last = digests
        with contextlib.suppress(asyncio.QueueEmpty):
            self.news.get_nowait()
        self.news.put_nowait(digests)


class LiveStreams:
    """The streams of this process."""

    def __init__(self, changes: Changes, times: LiveTimes = LiveTimes()) -> None:  # noqa: B008 - values do not change
        self._changes = changes
        self._times = times
        self._streams: set[_Stream] = set()
        self._of_person: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="web")
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._closed: asyncio.Event | None = None

    @property
    def count(self) -> int:
        """How many streams there are."""
        return len(self._streams)

    def open(self, person: str, key: tuple[object, ...], read: Callable[[], Digests]) -> Response:
        """Return the answer to who asks for a stream. `read` is called in a thread, again and again."""
        if self._closing or len(self._streams) >= MAX_STREAMS or self._of_person[person] >= MAX_OF_A_PERSON:
            return PlainTextResponse("too many pages are open\n", 429, {"Retry-After": "30"})
        stream = _Stream(person, key, read)
        self._streams.add(stream)
        self._of_person[person] += 1
        return _Answer(self, stream)

    def close(self) -> None:
        """End all streams, and begin none."""
        self._closing = True
        if self._closed is not None:
            self._closed.set()
        if self._task is not None:
            self._task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def leave(self, stream: _Stream) -> None:
        """Forget a stream."""
        if stream in self._streams:
            self._streams.discard(stream)
            self._of_person[stream.person] -= 1
            if not self._of_person[stream.person]:
                del self._of_person[stream.person]

    async def serve(self, stream: _Stream, headers: list[tuple[bytes, bytes]], receive: Any, send: Any) -> None:
        """Send a stream until its reader leaves, it has lasted long enough, or the controller stops."""
        self._closed = self._closed or asyncio.Event()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        left, closed = asyncio.create_task(_until_left(receive)), asyncio.create_task(self._closed.wait())
        end = asyncio.get_running_loop().time() + self._times.life
        try:
            await self._look(stream.key, (stream,))
            while asyncio.get_running_loop().time() < end:
                news = asyncio.create_task(stream.news.get())
                await asyncio.wait((left, closed, news), timeout=self._times.beat, return_when="FIRST_COMPLETED")
                if not news.done():
                    news.cancel()
                if left.done() or closed.done():
                    break
                await send({"type": "http.response.body", "body": _message(news), "more_body": True})
            await send({"type": "http.response.body", "body": b"event: again\ndata: \n\n", "more_body": False})
        finally:
            left.cancel()
            closed.cancel()

    async def _watch(self) -> None:
        """Look after each change, and now and then, as long as anybody reads."""
        loop, number = asyncio.get_running_loop(), -1
        while self._streams and not self._closing:
            began = loop.time()
            by_key: dict[tuple[object, ...], list[_Stream]] = {}
            for stream in self._streams:
                by_key.setdefault(stream.key, []).append(stream)
            for key, streams in by_key.items():
                await self._look(key, tuple(streams))
            await asyncio.sleep(max(self._times.settle, loop.time() - began))  # at most half of a thread's time
            with contextlib.suppress(RuntimeError):  # it is closed
                number = await loop.run_in_executor(self._threads, self._changes.wait, number, self._times.idle)

    async def _look(self, key: tuple[object, ...], streams: tuple[_Stream, ...]) -> None:
        """Have streams that see the same sent what is there now; None: it cannot be read."""
        digests: Digests | None = None
        try:
            digests = await asyncio.get_running_loop().run_in_executor(self._threads, streams[0].read)
        except RuntimeError:  # it is closed
            return
        except Exception as exc:
            error = explain_exception(exc)
            if not isinstance(error, VgpuctlError):
                log.exception("a live page failed with a bug: %s", key[0])
            elif isinstance(error, NotAllowed | NotFound):
                digests = {"": "gone"}  # the browser asks for the page again, and sees why
        for stream in streams:
            stream.put(digests)


class _Answer(Response):
    """The answer that goes on."""

    def __init__(self, streams: LiveStreams, stream: _Stream) -> None:
        super().__init__(headers={"Cache-Control": "no-store"}, media_type="text/event-stream")
        self._streams = streams
        self._stream = stream

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        try:
            await self._streams.serve(self._stream, headers, receive, send)
        finally:
            self._streams.leave(self._stream)


async def _until_left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _message(news: asyncio.Task[Digests | None]) -> bytes:
    if not news.done() or news.cancelled():
        return b": beat\n\n"
    digests = news.result()
    if digests is None:
        return b"event: away\ndata: \n\n"
    return f"data: {json.dumps(digests)}\n\n".encode()
