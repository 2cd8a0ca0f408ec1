# SPDX-License-Identifier: Apache-2.0
"""Whether the host that answers is the one that known_hosts has; if not, where that stands and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vgpuctl.errors import HostKeyRefused
from vgpuctl.remote.known_hosts import SSH_PORT, KnownKey, fingerprint
from vgpuctl.remote.login import Login, as_typed
from vgpuctl.remote.target import Target


def check(target: Target, found: Login, kind: str, blob: bytes, known: Sequence[KnownKey]) -> None:
    """Refuse a key that known_hosts does not have for this host.

    Raises:
        HostKeyRefused: nobody knows it, another one is known, or it is revoked.
    """
    name = found.key_name if found.key_port == SSH_PORT else f"[{found.key_name}]:{found.key_port}"
    facts: dict[str, Any] = {"check": "host-key", "key": f"{kind} {fingerprint(blob)}"}
    revoked = next((one for one in known if one.revoked and one.blob == blob), None)
    if revoked is not None:
        raise HostKeyRefused(
            f"{target.name}: its key is revoked by {revoked.place}",
            hint="do not trust this host; see who revoked the key, and why",
            place=revoked.place,
            **facts,
        )
    valid = [one for one in known if not one.revoked]
    if any(one.blob == blob for one in valid):
        return
    other = next((one for one in valid if one.kind == kind), valid[0] if valid else None)
    if other is not None:
        raise HostKeyRefused(
            f"{target.name}: its key is not the one of {other.place}: {kind} {fingerprint(blob)} instead of "
            f"{other.kind} {fingerprint(other.blob)}. It is another host, or was installed anew",
            hint=f"ask who runs it; if the new key is right: ssh-keygen -R '{name}' -f {other.path};"
            f" ssh {as_typed(found)}",
            place=other.place,
            known_key=f"{other.kind} {fingerprint(other.blob)}",
            **facts,
        )
    raise HostKeyRefused(
        f"{target.name}: nobody knows its key {kind} {fingerprint(blob)}: it is in no file of known hosts",
        hint=f"log in once and compare it: ssh {as_typed(found)}",
        files=list(found.known_hosts),
        **facts,
    )
