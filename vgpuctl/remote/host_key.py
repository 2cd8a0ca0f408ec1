# SPDX-License-Identifier: Apache-2.0
"""Checks a host's key against known_hosts; an error names the conflicting entry and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vgpuctl.errors import HostKeyRefused
from vgpuctl.remote.known_hosts import SSH_PORT, KnownKey, fingerprint
from vgpuctl.remote.login import Login, ssh_arguments
from vgpuctl.remote.target import Target


def check_host_key(target: Target, login: Login, key_type: str, blob: bytes, known_keys: Sequence[KnownKey]) -> None:
    """Refuse a key that known_hosts does not have for this host.

    Raises:
        HostKeyRefused: the key is unknown, another key is known, or it is revoked.
    """
    name = (
        login.known_hosts_name
        if login.known_hosts_port == SSH_PORT
        else f"[{login.known_hosts_name}]:{login.known_hosts_port}"
    )
    facts: dict[str, Any] = {"check": "host-key", "key": f"{key_type} {fingerprint(blob)}"}
    revoked = next((known for known in known_keys if known.revoked and known.blob == blob), None)
    if revoked is not None:
        raise HostKeyRefused(
            f"{target.name}: its key is revoked by {revoked.location}",
            hint="do not trust this host; see who revoked the key, and why",
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
            f"{other.key_type} {fingerprint(other.blob)}. It is another host, or was installed anew",
            hint=f"ask who runs it; if the new key is right: ssh-keygen -R '{name}' -f {other.path};"
            f" ssh {ssh_arguments(login)}",
            place=other.location,
            known_key=f"{other.key_type} {fingerprint(other.blob)}",
            **facts,
        )
    raise HostKeyRefused(
        f"{target.name}: nobody knows its key {key_type} {fingerprint(blob)}: it is in no file of known hosts",
        hint=f"log in once and compare it: ssh {ssh_arguments(login)}",
        files=list(login.known_hosts_files),
        **facts,
    )
