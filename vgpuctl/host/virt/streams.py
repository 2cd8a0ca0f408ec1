# SPDX-License-Identifier: Apache-2.0
"""The content of a volume, through libvirt's streams: a pool's files may be on another machine, or root's alone."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import virConnect, virStorageVol

_SEND_BYTES = 256 << 10
_MAX_BYTES = 16 << 20


def upload(connect: virConnect, volume: virStorageVol, data: bytes) -> None:
    """Write bytes into a volume; `finish` waits until libvirt has received them."""
    stream = connect.newStream(0)
    try:
        volume.upload(stream, 0, len(data), 0)
        sent = 0
        while sent < len(data):
            sent += stream.send(data[sent : sent + _SEND_BYTES])
    except BaseException:
        with suppress(Exception):  # it may never have started; the volume is deleted anyway
            stream.abort()
        raise
    stream.finish()


def download(connect: virConnect, volume: virStorageVol) -> bytes:
    """Read the bytes of a volume, at most `_MAX_BYTES`."""
    stream = connect.newStream(0)
    try:
        volume.download(stream, 0, _MAX_BYTES, 0)
        parts = []
        while part := stream.recv(_SEND_BYTES):
            parts.append(part)
    except BaseException:
        with suppress(Exception):  # it may never have started
            stream.abort()
        raise
    stream.finish()
    return b"".join(parts)
