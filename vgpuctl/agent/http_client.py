# SPDX-License-Identifier: Apache-2.0
"""One HTTP/1.1 request on a connection to an agent. Python's own client takes a quarter of a short command's time.

What comes back may be malformed, endless or hostile: lines and headers are bounded, the caller bounds the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BufferedReader
from typing import Any

from vgpuctl.value import EMPTY_MAPPING

CHUNK_BYTES = 1 << 16
MAX_HEAD_LINE_BYTES, MAX_HEADERS = 1 << 16, 100


class BadAnswer(ValueError):
    """What came is no HTTP answer."""


class HttpConnection:
    """A connection for one request. A subclass makes the connection, in `connect`."""

    sock: Any = None
    _file: BufferedReader | None = None

    def __init__(self, host: str) -> None:
        self._host = host

    def connect(self) -> None:
        """Set `sock`: a socket, or what has its methods `sendall`, `makefile` and `close`."""
        raise NotImplementedError

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = EMPTY_MAPPING
    ) -> None:
        """Connect, and send a request.

        Raises:
            ValueError: the path or a header has a space or a control character.
            OSError: the connection broke.
        """
        fields = {"Host": self._host, **headers}
        if body is not None:
            fields["Content-Length"] = str(len(body))
        if not (path.isascii() and path.isprintable() and " " not in path):
            raise ValueError(f"{path!r} is no path")
        if not all(text.isascii() and text.isprintable() for text in fields.values()):
            raise ValueError("a header has a control character")
        self.connect()
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in fields.items()), "", ""]
        self.sock.sendall("\r\n".join(lines).encode("ascii") + (body or b""))

    def getresponse(self) -> HttpAnswer:
        """Wait for the answer and return it; its body may come later.

        Raises:
            BadAnswer: it is no HTTP.
            OSError: the connection broke.
        """
        file: BufferedReader = self.sock.makefile("rb")
        self._file = file
        return HttpAnswer(file)

    def close(self) -> None:
        """Close the connection, and what is read from it: a socket stays open as long as its file."""
        if self._file is not None:
            self._file.close()
        if self.sock is not None:
            self.sock.close()


class HttpAnswer:
    """The answer to a request: its status, and its body, which may come over a long time."""

    def __init__(self, file: BufferedReader) -> None:
        """`file`: what the other side sends."""
        self._file = file
        self.status, headers = self._read_head()
        while self.status == 100:
            self.status, headers = self._read_head()
        self._is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length")
        self._left = _number(length, 10) if length is not None and not self._is_chunked else 0
        self._has_end = self._is_chunked or length is not None
        self._body = bytearray()

    def close(self) -> None:
        """Close what it reads from."""
        self._file.close()

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
        data = self._file.read1(min(self._left, CHUNK_BYTES) if self._has_end else CHUNK_BYTES)
        if not data and self._has_end:
            raise _broken()
        self._body += data
        if self._has_end:
            self._left -= len(data)
            if self._is_chunked and not self._left and self._read_line():
                raise BadAnswer("a chunk has another length than it says")
        return bool(data)

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
        line = self._file.readline(MAX_HEAD_LINE_BYTES + 1)
        if len(line) > MAX_HEAD_LINE_BYTES:
            raise BadAnswer(f"a line of more than {MAX_HEAD_LINE_BYTES} bytes")
        if not line.endswith(b"\n"):
            raise _broken()
        return line.rstrip(b"\r\n")


def _broken() -> OSError:
    return ConnectionResetError("the other side closed the connection before the answer was whole")


def _number(text: str, base: int) -> int:
    digits = "0123456789abcdef"[:base]
    if not 0 < len(text) <= 16 or text.lower().strip(digits):
        raise BadAnswer(f"{text[:40]!r} is no number")
    return int(text, base)
