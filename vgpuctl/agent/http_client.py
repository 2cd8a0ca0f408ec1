# SPDX-License-Identifier: Apache-2.0
"""One HTTP/1.1 request on a connection to an agent. Python's own client takes a quarter of a short command's time.

What comes back may be malformed, endless or hostile: lines and headers are bounded, the caller bounds the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHUNK_BYTES = 1 << 16
MAX_HEAD_LINE_BYTES, MAX_HEADERS = 1 << 16, 100


class BadAnswer(ValueError):
    """What came is no HTTP answer."""


def send_request(connection: Any, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> None:
    """Send a request. `connection`: a socket, or what has its `sendall` and `recv`.

    Raises:
        ValueError: the path or a header has a space or a control character.
        OSError: the connection broke.
    """
    fields = {"Host": "agent", **headers}
    if body is not None:
        fields["Content-Length"] = str(len(body))
    if not (path.isascii() and path.isprintable() and " " not in path):
        raise ValueError(f"{path!r} is no path")
    if not all(text.isascii() and text.isprintable() for text in fields.values()):
        raise ValueError("a header has a control character")
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in fields.items()), "", ""]
    connection.sendall("\r\n".join(lines).encode("ascii") + (body or b""))


class Answer:
    """The answer to a request: its status, and its body, which may come over a long time."""

    def __init__(self, connection: Any) -> None:
        """Wait for the status and the headers.

        Raises:
            BadAnswer: it is no HTTP.
            OSError: the connection broke.
        """
        self._connection = connection
        self._received = bytearray()
        self.status, headers = self._read_head()
        while self.status == 100:
            self.status, headers = self._read_head()
        self._is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length")
        self._left = _number(length, 10) if length is not None and not self._is_chunked else 0
        self._has_end = self._is_chunked or length is not None
        self._body = bytearray()

    def read(self, most: int) -> bytes:
        """Return the whole body, or so much of it.

        Raises:
            BadAnswer, OSError: as for a new answer.
        """
        while len(self._body) < most and self._read_more():
            pass
        return self._take(most)

    def readline(self, most: int) -> bytes:
        """Return a line of the body, or so much of it; empty at the end.

        Raises:
            BadAnswer, OSError: as for a new answer.
        """
        searched = 0
        while (end := self._body.find(b"\n", searched)) < 0 and len(self._body) < most:
            searched = len(self._body)
            if not self._read_more():
                break
        return self._take(min(most, end + 1) if end >= 0 else most)

    def _take(self, count: int) -> bytes:
        data = bytes(self._body[:count])
        del self._body[:count]
        return data

    def _read_more(self) -> bool:
        """Read a part of the body; False at its end."""
        if self._is_chunked and not self._left:
            self._left = _number(self._read_line().partition(b";")[0].decode("latin-1").strip(), 16)
            if not self._left:
                while self._read_line():
                    pass
                self._is_chunked, self._has_end = False, True
                return False
        if self._has_end and not self._left:
            return False
        if not self._received and not self._receive(may_end=not self._has_end):
            return False
        count = min(self._left, len(self._received)) if self._has_end else len(self._received)
        self._body += self._received[:count]
        del self._received[:count]
        if self._has_end:
            self._left -= count
            if self._is_chunked and not self._left and self._read_line():
                raise BadAnswer("a chunk has another length than it says")
        return True

    def _read_head(self) -> tuple[int, dict[str, str]]:
        version, _, rest = self._read_line().decode("latin-1").partition(" ")
        if not version.startswith("HTTP/1."):
            raise BadAnswer(f"it is no HTTP: {version[:40]!r}")
        headers: dict[str, str] = {}
        while line := self._read_line().decode("latin-1"):
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
            if len(headers) > MAX_HEADERS:
                raise BadAnswer(f"more than {MAX_HEADERS} headers")
        return _number(rest[:3], 10), headers

    def _read_line(self) -> bytes:
        """Return a line of what is around the body, without its end."""
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > MAX_HEAD_LINE_BYTES:
                raise BadAnswer(f"a line of more than {MAX_HEAD_LINE_BYTES} bytes")
            self._receive(may_end=False)
        line = bytes(self._received[:end]).removesuffix(b"\r")
        del self._received[: end + 1]
        return line

    def _receive(self, *, may_end: bool) -> bool:
        data: bytes = self._connection.recv(CHUNK_BYTES)
        if not data and not may_end:
            raise ConnectionResetError("the other side closed the connection before the answer was whole")
        self._received += data
        return bool(data)


def _number(text: str, base: int) -> int:
    digits = "0123456789abcdef"[:base]
    if not 0 < len(text) <= 16 or text.lower().strip(digits):
        raise BadAnswer(f"{text[:40]!r} is no number")
    return int(text, base)
