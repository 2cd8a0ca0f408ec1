# SPDX-License-Identifier: Apache-2.0
"""Images that a controller brings to a host: what it asks the agent for, and what the agent answers."""

from __future__ import annotations

from enum import StrEnum

from vgpuctl.errors import Failed, InvalidInput, Refused, Temporary
from vgpuctl.value import Value

FENCE_HEADER = "vgpuctl-fence"
"""The header with the fence, as JSON, of a request that changes images: the body of one may be a part of an image."""
RANGE_BYTES = 64 << 20
"""So many bytes of an image one request sends at most."""
MAX_IMAGE_BYTES = 64 << 40
SPARE_BYTES = 1 << 30
"""So much of a file system stays free: VMs whose disks are there pause when it is full."""


class CopyState(StrEnum):
    """`missing`: the host does not have the image; `copying`: it gets it, or checks what it got."""

    MISSING = "missing"
    COPYING = "copying"
    READY = "ready"
    FAILED = "failed"


class ImageRequest(Value):
    """An image that a host should have at `path`. `shared`: the file is there already, and nobody copies it.

    `url`: the agent fetches it from there; None: the controller sends it. `bytes`: how large it is, None: not known.
    """

    path: str
    bytes: int | None = None
    sha256: str | None = None
    url: str | None = None
    shared: bool = False


class ImageCopy(Value):
    """An image on a host. `have`: how many of its `bytes` are there. `code`, `error`, `hint`: why it failed."""

    path: str
    state: CopyState
    bytes: int | None = None
    have: int = 0
    code: str | None = None
    error: str | None = None
    hint: str | None = None


class ChecksumDiffers(Failed):
    """An image that a host got is not the one that was meant: its SHA-256 or its size is another one."""

    code = "checksum-differs"


class BadImage(InvalidInput):
    """A file is no image that VMs are made of: another format, damaged, cut off, or it needs another file."""

    code = "bad-image"


class UrlRefused(InvalidInput):
    """The server of an image has not what was asked for: no such file, a redirect, no length."""

    code = "url-refused"


class UrlFailed(Temporary):
    """The server of an image does not answer, or stopped half-way."""

    code = "url-failed"


class WrongOffset(Refused):
    """A part of an image does not begin where the host's copy ends; `facts` have how much the host has: `have`."""

    code = "wrong-offset"


class NotACopy(Refused):
    """The file is none that a controller brought to this host, so it is not deleted."""

    code = "not-a-copy"
