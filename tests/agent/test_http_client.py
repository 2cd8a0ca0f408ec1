# SPDX-License-Identifier: Apache-2.0
"""The client's HTTP: it reads any answer that is whole, however it arrives, and refuses what is none."""

from __future__ import annotations

import contextlib
import io
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.agent.http_client import MAX_HEAD_LINE_BYTES, BadAnswer, HttpAnswer, HttpConnection

HEAD = b"HTTP/1.1 200 OK\r\n"


class Sent(io.RawIOBase):
    """What the other side has sent before it closed the connection; it arrives in pieces of this size."""

    def __init__(self, sent: bytes, piece: int) -> None:
        self.sent = sent
        self.piece = piece

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self.piece, len(self.sent))
        buffer[:count], self.sent = self.sent[:count], self.sent[count:]
        return count


def answer_in(sent: bytes, piece: int = 1 << 16) -> HttpAnswer:
    return HttpAnswer(io.BufferedReader(Sent(sent, piece)))


class Connection(HttpConnection):
    """A connection that keeps what is sent."""

    def connect(self) -> None:
        self.sock, self.received = self, b""

    def sendall(self, data: bytes) -> None:
        self.received += data


def encoded(body: bytes, form: str, cuts: list[int]) -> bytes:
    """Return an answer with this body: of a known length, in chunks, or up to the connection's end."""
    if form == "length":
        return HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body + b"HTTP/1.1 500 another answer"
    if form == "end":
        return HEAD + b"X: y\n\n" + body
    ends = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    chunks = b"".join(b"%x;note\r\n%b\r\n" % (end - start, body[start:end]) for start, end in pairwise(ends))
    return HEAD + b"transfer-encoding: Chunked\r\n\r\n" + chunks + b"0\r\nTrailer: x\r\n\r\n" + b"more"


@given(
    st.binary(max_size=300),
    st.sampled_from(["length", "end", "chunks"]),
    st.lists(st.integers(0, 300), max_size=6),
    st.integers(1, 400),
    st.integers(1, 50),
)
def test_a_whole_answer_is_read_however_it_arrives(
    body: bytes, form: str, cuts: list[int], piece: int, most: int
) -> None:
    sent = encoded(body, form, cuts)
    answer = answer_in(b"HTTP/1.1 100 Continue\r\n\r\n" + sent, piece)
    assert (answer.status, answer.read(1 << 20), answer.read(1)) == (200, body, b"")
    by_lines = answer_in(sent, piece)
    lines = [*iter(lambda: by_lines.readline(most), b"")]
    assert b"".join(lines) == body
    assert all(len(line) <= most and b"\n" not in line[:-1] for line in lines)


@given(st.binary(max_size=200), st.sampled_from(["length", "chunks"]), st.integers(0, 400))
def test_an_answer_that_breaks_off_is_no_shorter_answer(body: bytes, form: str, kept: int) -> None:
    whole = encoded(body, form, [7]).removesuffix(b"more").removesuffix(b"HTTP/1.1 500 another answer")
    broken = whole[: min(kept, len(whole) - 1)]
    with pytest.raises(ConnectionResetError):
        answer_in(broken).read(1 << 20)


@given(st.binary(max_size=200))
def test_garbage_is_an_error(garbage: bytes) -> None:
    for sent in (garbage, HEAD + garbage, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + garbage):
        with contextlib.suppress(BadAnswer, OSError):
            answer_in(sent, 7).read(1 << 20)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"SSH-2.0-x\r\n", "no HTTP"),
        (b"HTTP/1.1 ok\r\n\r\n", "no number"),
        (HEAD + b"Content-Length: -1\r\n\r\n", "no number"),
        (HEAD + b"Content-Length: 1_0\r\n\r\n", "no number"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", "another length"),
        (HEAD + b"x" * (3 * MAX_HEAD_LINE_BYTES), "a line of more"),
        (HEAD + b"".join(b"x%d: y\r\n" % number for number in range(200)), "headers"),
    ],
)
def test_what_is_no_answer_is_told(sent: bytes, words: str) -> None:
    with pytest.raises(BadAnswer, match=words):
        answer_in(sent).read(1 << 20)


def test_a_request_is_one_request() -> None:
    peer = Connection("agent")
    peer.request("POST", "/v1/x", json.dumps({"a": "é\r\n"}).encode(), {"Key": "k"})
    head, _, body = peer.received.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [b"POST /v1/x HTTP/1.1", b"Host: agent", b"Key: k", b"Content-Length: %d" % len(body)]
    for path, key in (("/v1/x y", "k"), ("/v1/x\r\nA: b", "k"), ("/v1/é", "k"), ("/v1/x", "k\r\nA: b")):
        with pytest.raises(ValueError, match=r"path|control"):
            peer.request("GET", path, None, {"Key": key})
