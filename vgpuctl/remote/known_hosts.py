# SPDX-License-Identifier: Apache-2.0
"""Checks a host's key against known_hosts files; an error names the file and line of the stored key, and the remedy.

sshd(8) describes the format. `paramiko.HostKeys` does not suffice: it reports no lines, compares names without their
wildcards and exclusions, knows one key of each type for a host, and rejects a file for one @revoked line or one broken
key. Keys of authorities (@cert-authority) are skipped: paramiko does not check host certificates.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from vgpuctl.errors import HostKeyRefused
from vgpuctl.model.host_key import fingerprint
from vgpuctl.remote.session import Target
from vgpuctl.remote.ssh_config import SSH_PORT, Login, ssh_arguments
from vgpuctl.value import Value

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
    name = _entry_name(host.lower(), port)
    return tuple(key for path, text in files for key in _keys_in(path, text, name))


def check_host_key(target: Target, login: Login, key_type: str, blob: bytes, known_keys: Sequence[KnownKey]) -> None:
    """Refuse a key that known_hosts does not have for this host.

    Raises:
        HostKeyRefused: the key is unknown, another key is known, or it is revoked.
    """
    name = _entry_name(login.known_hosts_name, login.known_hosts_port)
    facts: dict[str, Any] = {"check": "host-key", "key": f"{key_type} {fingerprint(blob)}"}
    revoked = next((known for known in known_keys if known.revoked and known.blob == blob), None)
    if revoked is not None:
        raise HostKeyRefused(
            f"{target.name}: its key is revoked by {revoked.location}",
            hint="do not trust this host; find out who revoked the key, and why",
            place=revoked.location,
            **facts,
        )
    valid = [known for known in known_keys if not known.revoked]
    if any(known.blob == blob for known in valid):
        return
    other = next((known for known in valid if known.key_type == key_type), valid[0] if valid else None)
    if other is not None:
        raise HostKeyRefused(
            f"{target.name}: its key is not the one of {other.location}: {key_type} {fingerprint(blob)} instead of "
            f"{other.key_type} {fingerprint(other.blob)}. It is another host, or was reinstalled",
            hint=f"ask the host's admin; if the new key is correct: ssh-keygen -R '{name}' -f {other.path};"
            f" ssh {ssh_arguments(login)}",
            place=other.location,
            known_key=f"{other.key_type} {fingerprint(other.blob)}",
            **facts,
        )
    raise HostKeyRefused(
        f"{target.name}: its key {key_type} {fingerprint(blob)} is unknown: no known_hosts file has it",
        hint=f"compare the key and log in once: ssh {ssh_arguments(login)}",
        files=list(login.known_hosts_files),
        **facts,
    )


def check_pinned_key(target: Target, key_type: str, blob: bytes, pinned: str) -> None:
    """Refuse a key that is not the one that somebody pinned; known_hosts does not count then.

    `pinned`: `SHA256:...`, as ssh prints it, or `TYPE SHA256:...`.

    Raises:
        HostKeyRefused: it is another key.
    """
    actual = fingerprint(blob)
    if hmac.compare_digest(actual, pinned.rpartition(" ")[2]):
        return
    raise HostKeyRefused(
        f"{target.name}: its key is {key_type} {actual}, not {pinned}. It is another host, or was reinstalled",
        hint="ask the host's admin; on the host: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
        check="host-key",
        key=f"{key_type} {actual}",
        known_key=pinned,
    )


def _entry_name(host: str, port: int) -> str:
    return host if port == SSH_PORT else f"[{host}]:{port}"


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
