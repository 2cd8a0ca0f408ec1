# SPDX-License-Identifier: Apache-2.0
"""The content of a volume, from this host's libvirt to that of another host, through this process.

Holes of a file are sent as holes (virStreamRecvHole, libvirt 3.4), so a thin image stays thin and takes no time for
what is not in it. A volume of the other host that is longer keeps its end: new qcow2 images are small. What such an
image has at its beginning is overwritten also where the source has a hole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.host.virt import constants

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import LibvirtConnection, virStream

PART_BYTES = 256 << 10
"""The most that libvirt's protocol takes at once is a little more."""
REPORT_BYTES = 8 << 20
DENSE_BYTES = 4 << 20
"""No new image is as long."""
_HOLE = -3
"""What virStreamRecvFlags returns at a hole."""


class VolumeSending:
    """The part of `ports.Storage` that sends a volume to another host; `LibvirtStorage` inherits it."""

    _connection: LibvirtConnection

    def send_volume(self, pool: str, name: str, target_uri: str, report: Callable[[float], None]) -> None:
        """Send a volume's content to the volume of the same pool and name on another host."""
        call, failure = "virStorageVolUpload", f"cannot send volume {name} of pool {pool} to {target_uri}"
        with (
            self._connection.call(call, failure, pool=pool, volume=name, target_uri=target_uri) as connect,
            self._connection.open_other(target_uri) as other,
        ):
            volume = connect.storagePoolLookupByName(pool).storageVolLookupByName(name)
            target = other.storagePoolLookupByName(pool).storageVolLookupByName(name)
            used_bytes = int(volume.info()[2])
            report(0.0)
            source, sink = connect.newStream(0), other.newStream(0)
            with _aborted_on_failure(source, sink):
                volume.download(source, 0, 0, constants.VIR_STORAGE_VOL_DOWNLOAD_SPARSE_STREAM)
                target.upload(sink, 0, 0, constants.VIR_STORAGE_VOL_UPLOAD_SPARSE_STREAM)
                pump(source, sink, used_bytes, report)
                source.finish()
                sink.finish()  # waits until the other libvirt has written all of it
        report(100.0)


@contextmanager
def _aborted_on_failure(*streams: virStream) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for stream in streams:
            with suppress(Exception):  # it may never have started
                stream.abort()
        raise


def pump(
    source: virStream,
    sink: virStream,
    used_bytes: int,
    report: Callable[[float], None],
    dense_bytes: int = DENSE_BYTES,
) -> None:
    """Send what a stream gives into another one, and report the percentage of the bytes that are in use.

    `dense_bytes`: so far from the beginning holes are sent as zeros.
    """
    sent = reported = offset = 0
    receive = partial(source.recvFlags, PART_BYTES, constants.VIR_STREAM_RECV_STOP_AT_HOLE)
    while part := receive():
        if part == _HOLE:
            length = source.recvHole(0)
            zeros = max(0, min(length, dense_bytes - offset))
            _send(sink, bytes(zeros))
            if length > zeros:
                sink.sendHole(length - zeros, 0)
            offset += length
            continue
        assert isinstance(part, bytes)
        _send(sink, part)
        sent += len(part)
        offset += len(part)
        if sent - reported >= REPORT_BYTES:
            reported = sent
            report(min(99.0, 100.0 * sent / max(used_bytes, sent)))


def _send(sink: virStream, data: bytes) -> None:
    position = 0
    while position < len(data):
        position += sink.send(data[position : position + PART_BYTES])
