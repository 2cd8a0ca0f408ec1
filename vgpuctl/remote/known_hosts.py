# SPDX-License-Identifier: Apache-2.0
"""The keys of a host in known_hosts files, with the location of each; sshd(8) describes the format.

paramiko's own reader reports no line numbers and does not support revoked keys. Keys of authorities
(@cert-authority) are skipped: paramiko does not check host certificates.
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
    """A key of a host in a file. `blob` is the key in wire format."""

    path: str
    line: int
    key_type: str
    blob: bytes
    revoked: bool = False

    @property
    def location(self) -> str:
        """Return its location as path:line, which editors accept."""
        return f"{self.path}:{self.line}"


def keys_for(files: Iterable[tuple[str, str]], host: str, port: int) -> tuple[KnownKey, ...]:
    """Return the keys of a host in the order of the files, which are pairs of path and text.

    A host on another port than 22 is listed as [host]:port; entries without the port do not match it.
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
        if marker not in ("", REVOKED) or len(words) < 3 or not _matches_host(words[0], name):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        yield KnownKey(path, number, words[1], blob, marker == REVOKED)


def _matches_host(patterns: str, name: str) -> bool:
    """Return whether a line's first field matches a host: a hash of its name, or patterns; !pattern excludes."""
    if patterns.startswith("|1|"):
        return _matches_hash(patterns, name)
    matches = False
    for pattern in patterns.lower().split(","):
        if _matches_pattern(name, pattern.removeprefix("!")):
            if pattern.startswith("!"):
                return False
            matches = True
    return matches


def _matches_pattern(name: str, pattern: str) -> bool:
    """Match only * and ? as wildcards: a [ belongs to [host]:port."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def _matches_hash(field: str, name: str) -> bool:
    try:
        _, _, salt, digest = field.split("|")
        expected = base64.b64decode(digest)
        actual = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(expected, actual)
