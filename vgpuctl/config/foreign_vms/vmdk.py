# SPDX-License-Identifier: Apache-2.0
"""Read which other files a VMDK may name: the extents with its data, and the parent of a snapshot.

A descriptor is a text, in a file of its own or in the first sectors of a sparse disk (magic `KDMV`). Source: VMware's
Virtual Disk Format 5.0. QEMU opens what a descriptor names, so a VMDK can lead to any file of the host
(CVE-2022-47951). QEMU reads a descriptor with scanf and strstr (its block/vmdk.c): an extent may go over several lines,
and the parent may be anywhere. So no line is understood here: every text after a quotation mark counts as a name.
"""

from __future__ import annotations

import re
import struct

HEAD_BYTES = 2 << 20
"""So many bytes of a VMDK are read: QEMU reads at most 1 MiB from where the descriptor begins."""
_SPARSE = struct.Struct("<4sIIQQQ")
_SECTOR, _DESCRIPTOR_BYTES = 512, 1 << 20
_MAX_NAME = 255
"""Linux has no longer name in a folder; QEMU cuts off names of more than 511 bytes."""
_QUOTED = re.compile(rb'"([^"\r\n]{1,256})')
_PARENT = re.compile(rb'(?=parentFileNameHint..([^"]{1,256}))', re.DOTALL)
"""QEMU skips two characters of any kind, and takes what comes before the next quotation mark."""


def named_files(head: bytes) -> tuple[str, ...]:
    """Return all names that a program could take for other files, from the first bytes of a VMDK.

    Most are no files: settings have their values in quotation marks too. QEMU takes any text for a descriptor, so this
    does.

    Raises:
        ValueError: a sparse disk has its descriptor where no program of VMware's puts it, or a name is too long.
    """
    text = _find_descriptor(head).split(b"\0", 1)[0]
    names = tuple(dict.fromkeys((*_QUOTED.findall(text), *_PARENT.findall(text))))
    if any(len(name) > _MAX_NAME for name in names):
        raise ValueError(f"its descriptor has a text of more than {_MAX_NAME} bytes in quotation marks")
    return tuple(name.decode("utf-8", "surrogateescape") for name in names)


def _find_descriptor(head: bytes) -> bytes:
    """Return the text, and what follows it. QEMU seeks the parent of a sparse disk in sector 1, whatever it says."""
    if head.startswith(b"KDMV"):
        offset = _SPARSE.unpack_from(head.ljust(_SPARSE.size, b"\0"))[5]
        if offset not in (0, 1):
            raise ValueError(f"its descriptor begins at sector {offset}: only sector 1 is allowed")
    elif not head.startswith(b"COWD"):
        return head[:_DESCRIPTOR_BYTES]
    return head[_SECTOR:][:_DESCRIPTOR_BYTES]
