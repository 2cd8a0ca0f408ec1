# SPDX-License-Identifier: Apache-2.0
"""Where an image of the fleet comes from: checked, before anything is stored.

A file is read where it is, on the controller's machine, each time it is sent; the controller keeps no copy. So only who
comes through the socket may name one: a token from elsewhere could else have the controller's own files sent to hosts.
"""

from __future__ import annotations

import os
import shlex
import stat

from vgpuctl.agent.image_rights import check_image_path, check_image_request
from vgpuctl.config import rules
from vgpuctl.config.image_urls import image_url
from vgpuctl.controller.model import Image
from vgpuctl.errors import FileFailed, InvalidInput, NotAllowed
from vgpuctl.host.image_check import check_image, sha256_of
from vgpuctl.model.image_copy import BadImage, ChecksumDiffers, ImageRequest

FOLDER = "/srv/images"
DIGITS = 12
"""So many digits of the SHA-256 are in the name of a copy: another content never has the same name."""


def image_source(
    name: str,
    is_local: bool,
    *,
    path: str | None,
    file: str | None,
    url: str | None,
    folder: str | None,
    sha256: str | None,
    size: int | None,
) -> Image:
    """Return an image with its path on hosts, its size and its SHA-256, as far as they are known.

    Raises:
        InvalidInput: not exactly one source is given, or something is wrong with it. NotAllowed: a file of another
            machine. BadImage, ChecksumDiffers: the file is no image, or another one. FileFailed: it cannot be read.
    """
    if sum(one is not None for one in (path, file, url)) != 1:
        raise InvalidInput(
            "an image has one source: specify one of --file, --url and --path",
            hint=f"vgpuctl controller ensure-image {name} --file FILE",
        )
    if path is not None:
        if folder is not None:
            raise InvalidInput("folder: an image with a path is in no other folder: omit --folder")
        image = Image(id="", name=name, version="", path=_checked("path", path), os="", sha256=sha256, bytes=size)
        check_image_request(ImageRequest(image.path, size, sha256, shared=True))
        return image
    if file is not None:
        sha256, size = _read_file(file, is_local, sha256, size)
    checked_url = None if url is None else _checked("url", url)
    if sha256 is None:
        raise InvalidInput("an image that hosts fetch needs its checksum: --sha256", hint="sha256sum FILE")
    check_image_request(ImageRequest("/srv/images/x", size, sha256, checked_url))
    target = f"{(folder or FOLDER).rstrip('/')}/{name}-{sha256[:DIGITS]}.img"
    return Image(
        id="", name=name, version="", path=_checked("folder", target), os="", sha256=sha256, bytes=size, file=file,
        url=checked_url,
    )  # fmt: skip


def _checked(field: str, text: str) -> str:
    try:
        return image_url(text) if field == "url" else check_image_path(text)
    except ValueError as error:
        raise InvalidInput(f"{field}: {error}") from error


def _read_file(file: str, is_local: bool, sha256: str | None, size: int | None) -> tuple[str, int]:
    """Return the SHA-256 and the size of a file of this machine, which is an image."""
    if not is_local:
        raise NotAllowed(
            f"{file} would be a file of the controller's machine, and the request comes from elsewhere",
            hint="run ensure-image on that machine, or use --url",
            rule="socket",
        )
    try:
        rules.path(file)
        before = os.stat(file)
        if not stat.S_ISREG(before.st_mode):
            raise BadImage(f"{file} is no regular file", hint=f"file {shlex.quote(file)}")
        check_image(file, file)
        digest, length = sha256_of(file)
        after = os.stat(file)
    except ValueError as error:
        raise InvalidInput(f"file: {error}") from error
    except OSError as error:
        raise FileFailed(
            f"{file} cannot be read: {error.strerror}", hint=f"ls -l {shlex.quote(file)}", path=file, errno=error.errno
        ) from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or length != after.st_size:
        raise ChecksumDiffers(f"{file} was changed while it was read", hint="wait until it is written, and try again")
    if sha256 not in (None, digest):
        raise ChecksumDiffers(f"{file} has the SHA-256 {digest}, and {sha256} is expected", sha256=digest)
    if size not in (None, length):
        raise ChecksumDiffers(f"{file} has {length} bytes, and {size} are expected", bytes=length)
    return digest, length
