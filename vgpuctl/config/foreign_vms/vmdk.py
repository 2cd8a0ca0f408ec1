# SPDX-License-Identifier: Apache-2.0
"""Read which other files a VMDK names: the extents with its data, and the parent of a snapshot.

A descriptor is a text, in a file of its own or in the first sectors of a sparse disk (magic `KDMV`). Source: VMware's
Virtual Disk Format 5.0. QEMU opens what a descriptor names, so a VMDK can lead to any file of the host
(CVE-2022-47951).
"""

from __future__ import annotations

import re
import struct

HEAD_BYTES = 2 << 20
"""So many bytes of a VMDK are read: QEMU reads at most 1 MiB from where the descriptor begins."""
_SPARSE = struct.Struct("<4sIIQQQ")
_SECTOR, _DESCRIPTOR_BYTES = 512, 1 << 20
_BLANK = r"[^\S\n]"
_EXTENT = re.compile(
    rf'^{_BLANK}*(?:RW|RDONLY|NOACCESS){_BLANK}+\d{{1,20}}{_BLANK}+\w{{1,20}}{_BLANK}*"([^"\n]*)',
    re.IGNORECASE | re.MULTILINE,
)
_PARENT = re.compile(rf'^{_BLANK}*parentFileNameHint{_BLANK}*={_BLANK}*"?([^"\n]*)', re.IGNORECASE | re.MULTILINE)


def named_files(head: bytes) -> tuple[str, ...]:
    """Return the files that a VMDK names, from its first bytes. QEMU takes any text for a descriptor, so this does.

    Raises:
        ValueError: a sparse disk has its descriptor where no program of VMware's puts it.
    """
    text = _find_descriptor(head).decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\0", 1)[0]
    return tuple(dict.fromkeys(name for name in (*_EXTENT.findall(text), *_PARENT.findall(text)) if name))


def _find_descriptor(head: bytes) -> bytes:
    if head.startswith(b"COWD"):  # ESXi's sparse extent, whose descriptor is a file of its own
        return b""
    if not head.startswith(b"KDMV") or len(head) < _SPARSE.size:
        return head[:_DESCRIPTOR_BYTES]
    offset = _SPARSE.unpack_from(head)[5]
    if offset * _SECTOR >= min(len(head), _DESCRIPTOR_BYTES):
        raise ValueError(f"its descriptor begins at sector {offset}, where vgpuctl does not read it")
    return head[offset * _SECTOR :][:_DESCRIPTOR_BYTES] if offset else b""
