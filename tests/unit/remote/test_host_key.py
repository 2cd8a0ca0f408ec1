# SPDX-License-Identifier: Apache-2.0
"""Which host keys are accepted, and the errors for the others."""

from __future__ import annotations

import pytest

from vgpuctl.errors import HostKeyRefused
from vgpuctl.remote import host_key, login
from vgpuctl.remote.known_hosts import KnownKey
from vgpuctl.remote.target import Target

TARGET = Target("gpu-01", "gpu-01", 2222, "root")
LOGIN = login.resolve_login(TARGET, {"userknownhostsfile": "/k/known"})
MINE = KnownKey("/k/known", 3, "ssh-ed25519", b"mine")
RSA = KnownKey("/k/known", 4, "ssh-rsa", b"rsa")


@pytest.mark.parametrize("known", [(MINE,), (RSA, MINE), (KnownKey("/k/known", 1, "ssh-ed25519", b"old"), MINE)])
def test_a_known_key_is_accepted(known):
    host_key.check_host_key(TARGET, LOGIN, "ssh-ed25519", b"mine", known)


@pytest.mark.parametrize(
    ("known", "message", "place"),
    [
        ((), "nobody knows its key ssh-ed25519 SHA256:", None),
        ((KnownKey("/k/known", 3, "ssh-ed25519", b"old"),), "is not the one of /k/known:3", "/k/known:3"),
        ((RSA,), "is not the one of /k/known:4", "/k/known:4"),
        ((RSA, KnownKey("/k/known", 5, "ssh-ed25519", b"old")), "is not the one of /k/known:5", "/k/known:5"),
        ((MINE, KnownKey("/k/bad", 7, "ssh-ed25519", b"mine", True)), "is revoked by /k/bad:7", "/k/bad:7"),
    ],
)
def test_any_other_is_refused_with_its_place(known, message, place):
    with pytest.raises(HostKeyRefused, match=message) as caught:
        host_key.check_host_key(TARGET, LOGIN, "ssh-ed25519", b"mine", known)
    assert caught.value.facts.get("place") == place
