# SPDX-License-Identifier: Apache-2.0
"""The content of a volume on its way to another libvirt. The test driver has no streams: they are given here."""

from __future__ import annotations

import pytest

from vgpuctl.errors import LibvirtFailed
from vgpuctl.host.virt.volume_sending import PART_BYTES, REPORT_BYTES, pump


class Source:
    """A stream that gives data and holes, in their order; it counts no end as an error."""

    def __init__(self, *parts: bytes | int) -> None:
        self._parts = list(parts)

    def recvFlags(self, count: int, flags: int) -> bytes | int:
        assert (count, flags) == (PART_BYTES, 1)
        if not self._parts:
            return b""
        return -3 if isinstance(self._parts[0], int) else self._parts.pop(0)

    def recvHole(self, flags: int) -> int:
        hole = self._parts.pop(0)
        assert isinstance(hole, int)
        return hole


class Sink:
    """A stream that takes at most a few bytes at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.content = b""

    def send(self, data: bytes) -> int:
        self.content += data[: self._most]
        return min(len(data), self._most)

    def sendHole(self, length: int, flags: int) -> None:
        self.content += b"." * length


@pytest.mark.parametrize(
    ("dense_bytes", "content"),
    [(0, b"abcdefgh....ij.."), (10, b"abcdefgh\0\0..ij.."), (99, b"abcdefgh\0\0\0\0ij\0\0")],
)
def test_data_and_holes_come_in_their_order_and_no_hole_shows_what_a_new_image_has(
    dense_bytes: int, content: bytes
) -> None:
    sink = Sink(3)
    source = Source(b"abcdefgh", 4, b"ij", 2)
    pump(source, sink, 10, lambda percent: None, dense_bytes)  # type: ignore[arg-type]
    assert sink.content == content


def test_progress_counts_what_is_in_use_and_is_never_complete_before_the_end() -> None:
    part = bytes(REPORT_BYTES)
    percents: list[float] = []
    pump(Source(part, part, part), Sink(len(part)), 2 * len(part), percents.append)  # type: ignore[arg-type]
    assert percents == [50.0, 99.0, 99.0]


@pytest.mark.parametrize(("uri", "code"), [("test:///default", 50), ("test:///no/such/file", 27)])
def test_an_error_of_either_libvirt_names_the_volume(storage, uri: str, code: int) -> None:
    storage.start_pool("default")
    with pytest.raises(LibvirtFailed, match="cannot send volume a of pool default to test:") as caught:
        storage.send_volume("default", "a", uri, lambda percent: None)
    assert caught.value.facts["libvirt_code"] == code
