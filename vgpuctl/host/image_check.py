# SPDX-License-Identifier: Apache-2.0
"""Whether a file is an image that can be copied to hosts: qcow2 or raw, whole, and without another file.

It reads the file's first 64 KiB alone. A qcow2 that was cut off shows by its tables, whose places are in the header
(QEMU's docs/interop/qcow2.txt, "Header"); the whole content is proven by its SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable

from vgpuctl.host.backing_chain import ImageHeader, parse_header, read_image_head
from vgpuctl.model.image_copy import MAX_IMAGE_BYTES, BadImage

CHUNK_BYTES = 1 << 20
_FORMATS = ("raw", "qcow2")
_MAX_CLUSTER_BITS = 21


def check_image(file: str, path: str) -> ImageHeader:
    """Return the header of the image `file`, which errors call `path`.

    Raises:
        BadImage: it is none that can be copied.
        OSError: it cannot be read.
    """
    _, size, head = read_image_head(file)
    convert = f"qemu-img convert -O qcow2 {shlex.quote(path)} NEW.qcow2 makes a whole image of it"
    if not 0 < size <= MAX_IMAGE_BYTES:
        raise BadImage(f"{path} has {size} bytes: it is no image", path=path)
    try:
        header = parse_header(head, size)
    except ValueError as error:
        raise BadImage(f"{path} looks like a qcow2 image, but {error}", hint=f"qemu-img info {path}") from error
    if header.format not in _FORMATS:
        raise BadImage(f"{path} is {header.format}, and images are qcow2 or raw", hint=convert, path=path)
    if header.format == "raw" and not size % 512 == 0:
        raise BadImage(
            f"{path} is no image: it is no qcow2, and {size} bytes are no whole number of sectors of 512 bytes",
            hint=f"file {shlex.quote(path)}",
        )
    if header.backing_file is not None:
        name = repr(header.backing_file)[1:-1][:200]
        raise BadImage(f"{path} needs its backing file {name}, which would be missing", hint=convert, path=path)
    if header.has_data_file:
        raise BadImage(f"{path} keeps its data in another file (data_file)", hint=convert, path=path)
    end = _end_of_tables(head) if header.format == "qcow2" else 0
    if end > size:
        raise BadImage(
            f"{path} is cut off: it has {size} bytes, and its tables end at {end}", hint=f"qemu-img check {path}"
        )
    return header


def _end_of_tables(head: bytes) -> int:
    """Return where the tables of a qcow2 end that its header names."""

    def number(offset: int, length: int) -> int:
        return int.from_bytes(head[offset : offset + length], "big")

    cluster_bits = min(number(20, 4), _MAX_CLUSTER_BITS)
    return max(number(40, 8) + 8 * number(36, 4), number(48, 8) + (number(56, 4) << cluster_bits))


def sha256_of(file: str, is_cancelled: Callable[[], bool] = lambda: False) -> tuple[str, int]:
    """Return a file's SHA-256 and size; it is read from its begin to its end, in parts.

    Raises:
        OSError: it cannot be read. InterruptedError: `is_cancelled` said so.
    """
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as content:
        while data := content.read(CHUNK_BYTES):
            if is_cancelled():
                raise InterruptedError
            digest.update(data)
            size += len(data)
    return digest.hexdigest(), size
