# SPDX-License-Identifier: Apache-2.0
"""Addresses of images that an agent may fetch: the rules of an address, and of the prefixes that host.yaml lists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from vgpuctl.config import rules

MAX_CHARACTERS = 2000
PREFIX_PATTERN = "https://[!-~]+/"


def image_url(value: object) -> str:
    """Check the https address of an image: without a user, a password, a fragment, and `..`."""
    text = rules.as_text(value)
    if len(text) > MAX_CHARACTERS or not re.fullmatch(r"[!-\[\]-~]+", text, re.ASCII):
        raise ValueError(f"an address has at most {MAX_CHARACTERS} printable ASCII characters, and no backslash")
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"the address cannot be read: {error}") from error
    if "@" in parts.netloc:
        raise ValueError("the address has a user or a password in it, which journals would show: leave them out")
    if parts.scheme != "https" or not host:
        raise ValueError(f"{text[:200]!a} is not an https address like https://images.example.org/office.qcow2")
    path = unquote(parts.path)
    if "#" in text or "\\" in path or "%" in path or "//" in path or {".", ".."} & set(path.split("/")):
        raise ValueError(f"{text[:200]!a}: write the address without '#', '//', '.', '..', and other spellings of them")
    return text


def image_url_prefix(value: object) -> str:
    """Check the beginning of addresses: a folder of a server, with `/` at its end."""
    text = image_url(value)
    if not text.endswith("/") or "?" in text:
        raise ValueError(f"{text[:200]!a} is no folder of a server: end it with '/'")
    return text


def is_below_prefix(url: str, prefixes: Iterable[str]) -> bool:
    """Return whether an address, which `image_url` has checked, is below one of these folders."""
    return any(_origin(url) == _origin(one) and urlsplit(url).path.startswith(urlsplit(one).path) for one in prefixes)


def _origin(url: str) -> tuple[str | None, int]:
    parts = urlsplit(url)
    return parts.hostname, parts.port or 443
