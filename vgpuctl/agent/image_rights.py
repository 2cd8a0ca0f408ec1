# SPDX-License-Identifier: Apache-2.0
"""Which images a controller may bring to this host: what host.yaml allows it, and what nobody may."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from vgpuctl.agent.allowed_files import AllowedFiles
from vgpuctl.agent.allowed_values import not_allowed
from vgpuctl.config import rules
from vgpuctl.config.allow_spec import AllowSpec
from vgpuctl.config.image_urls import image_url, is_below_prefix
from vgpuctl.errors import InvalidInput
from vgpuctl.model.image_copy import MAX_IMAGE_BYTES, ImageRequest

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

MAX_PATH_CHARACTERS, MAX_NAME_CHARACTERS = 1000, 200


def check_image_request(request: ImageRequest) -> None:
    """Refuse a request that no image follows from, whoever sends it.

    Raises:
        InvalidInput: naming the field.
    """
    try:
        check_image_path(request.path)
        if request.url is not None:
            image_url(request.url)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    digits = request.sha256 or ""
    if request.sha256 is not None and (len(digits) != 64 or set(digits) - set("0123456789abcdef")):
        raise InvalidInput("sha256: 64 hexadecimal digits, as sha256sum prints them")
    if request.bytes is not None and not 0 < request.bytes <= MAX_IMAGE_BYTES:
        raise InvalidInput(f"bytes: {request.bytes} is no size of an image")
    if request.shared and request.url is not None:
        raise InvalidInput("url: omit it for an image on shared storage, which nobody copies")
    if not request.shared and request.sha256 is None:
        raise InvalidInput("sha256: an image that is copied needs it", hint="sha256sum FILE")
    if not request.shared and request.url is None and request.bytes is None:
        raise InvalidInput("bytes: an image that is sent needs its size")


def check_image_path(path: str) -> str:
    """Return the path of an image: absolute, and spelled in one way.

    Raises:
        ValueError: it is none.
    """
    text = rules.path(path)
    if posixpath.normpath(text) != text or text.startswith("//") or text.count("/") < 2:
        raise ValueError(f"path: {text[:200]!a} is not the plain path of a file in a folder: no '//', '.' and '..'")
    if len(text) > MAX_PATH_CHARACTERS or len(posixpath.basename(text)) > MAX_NAME_CHARACTERS:
        raise ValueError(f"path: it is longer than {MAX_PATH_CHARACTERS} characters, or its name than 200")
    return text


def refuse_image(host: Host, allow: AllowSpec, request: ImageRequest) -> None:
    """Refuse an image that host.yaml does not allow to a controller's account.

    Raises:
        NotAllowed: its folder or its server is not listed, or others than root could change the folder.
    """
    if request.url is not None and not is_below_prefix(request.url, allow.image_urls):
        prefix = request.url.rpartition("/")[0] + "/"
        raise not_allowed(f"{request.url} is below no address that is listed", "agent.allow.image_urls", prefix)
    files = AllowedFiles(host, allow)
    if request.shared:
        files.image(request.path)
    else:
        files.new_file(request.path)
