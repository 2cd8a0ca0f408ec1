# SPDX-License-Identifier: Apache-2.0
"""The keys that known_hosts files have for a host, with the place of each, as sshd(8) describes the format.

paramiko's own reader does not tell a line's number, nor does it know revoked keys. Keys of authorities
(@cert-authority) are left out: paramiko does not check a host's certificate.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from vgpuctl.value import Value

SSH_PORT = 22
REVOKED = "@revoked"


class KnownKey(Value):
    """A key that a file has for a host. `blob` is the key as it comes over the wire."""

    path: str
    line: int
    kind: str
    blob: bytes
    revoked: bool = False

    @property
    def place(self) -> str:
        """Where it stands, as editors take it."""
        return f"{self.path}:{self.line}"


def keys_for(files: Iterable[tuple[str, str]], host: str, port: int) -> tuple[KnownKey, ...]:
    """Return the keys of a host in the order of the files, which are pairs of path and text.

    A host on another port than 22 stands there as [host]:port, and is not looked for without its port here.
    """
    name = host.lower() if port == SSH_PORT else f"[{host.lower()}]:{port}"
    return tuple(key for path, text in files for key in _keys_in(path, text, name))


def fingerprint(blob: bytes) -> str:
    """Return a key's fingerprint as ssh prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _keys_in(path: str, text: str, name: str) -> Iterator[KnownKey]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        if marker not in ("", REVOKED) or len(words) < 3 or not _names(words[0], name):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        yield KnownKey(path, number, words[1], blob, marker == REVOKED)


def _names(patterns: str, name: str) -> bool:
    """Say whether a line's first field means a host: a hash of its name, or patterns, of which !pattern forbids."""
    if patterns.startswith("|1|"):
        return _hashed(patterns, name)
    meant = False
    for pattern in patterns.lower().split(","):
        if _matches(name, pattern.removeprefix("!")):
            if pattern.startswith("!"):
                return False
            meant = True
    return meant


def _matches(name: str, pattern: str) -> bool:
    """Match * and ? alone: a [ is that of [host]:port."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def _hashed(field: str, name: str) -> bool:
    try:
        _, _, salt, digest = field.split("|")
        wanted = base64.b64decode(digest)
        made = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(wanted, made)
