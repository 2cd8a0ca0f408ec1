# SPDX-License-Identifier: Apache-2.0
"""known_hosts: which lines are a host's, which host keys are accepted, and the errors for the others."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from vgpuctl.errors import HostKeyRefused
from vgpuctl.remote import known_hosts, ssh_config
from vgpuctl.remote.known_hosts import KnownKey
from vgpuctl.remote.session import Target

KEY = base64.b64encode(b"a key").decode()
TARGET = Target("gpu-01", "gpu-01", 2222, "root")
LOGIN = ssh_config.resolve_login(TARGET, {"userknownhostsfile": "/k/known"})
MINE = KnownKey("/k/known", 3, "ssh-ed25519", b"mine")
RSA = KnownKey("/k/known", 4, "ssh-rsa", b"rsa")


@pytest.mark.parametrize("known", [(MINE,), (RSA, MINE), (KnownKey("/k/known", 1, "ssh-ed25519", b"old"), MINE)])
def test_a_known_key_is_accepted(known):
    known_hosts.check_host_key(TARGET, LOGIN, "ssh-ed25519", b"mine", known)


@pytest.mark.parametrize(
    ("known", "message", "place"),
    [
        ((), "its key ssh-ed25519 SHA256:", None),
        ((KnownKey("/k/known", 3, "ssh-ed25519", b"old"),), "is not the one of /k/known:3", "/k/known:3"),
        ((RSA,), "is not the one of /k/known:4", "/k/known:4"),
        ((RSA, KnownKey("/k/known", 5, "ssh-ed25519", b"old")), "is not the one of /k/known:5", "/k/known:5"),
        ((MINE, KnownKey("/k/bad", 7, "ssh-ed25519", b"mine", True)), "is revoked by /k/bad:7", "/k/bad:7"),
    ],
)
def test_any_other_is_refused_with_its_place(known, message, place):
    with pytest.raises(HostKeyRefused, match=message) as caught:
        known_hosts.check_host_key(TARGET, LOGIN, "ssh-ed25519", b"mine", known)
    assert caught.value.facts.get("place") == place


def _hashed(name: str) -> str:
    salt = b"salt"
    made = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(made).decode()}"


@pytest.mark.parametrize(
    ("names", "host", "port"),
    [
        ("gpu-01", "GPU-01", 22),
        ("front,gpu-*", "gpu-01", 22),
        ("[gpu-01]:2222", "gpu-01", 2222),
        (_hashed("gpu-01"), "gpu-01", 22),
        (_hashed("[gpu-01]:2222"), "gpu-01", 2222),
    ],
)
def test_a_known_hosts_line_has_its_location(names, host, port):
    text = f"# comment\n\n{names} ssh-ed25519 {KEY} somebody\nbroken line\nx ssh-rsa !!!\n"
    (result,) = known_hosts.keys_for([("/k/known", text)], host, port)
    assert (result.location, result.key_type, result.blob, result.revoked) == (
        "/k/known:3",
        "ssh-ed25519",
        b"a key",
        False,
    )


@pytest.mark.parametrize(
    ("names", "host", "port"),
    [
        ("gpu-01", "gpu-011", 22),
        ("gpu-01", "gpu-01", 2222),
        ("[gpu-01]:2222", "gpu-01", 22),
        ("gpu-*,!gpu-01", "gpu-01", 22),
        ("@cert-authority gpu-01", "gpu-01", 22),
        ("[g]pu-01", "gpu-01", 22),
        (_hashed("other"), "gpu-01", 22),
        ("|1|x", "gpu-01", 22),
    ],
)
def test_a_line_of_another_host_is_not(names, host, port):
    assert not known_hosts.keys_for([("/k/known", f"{names} ssh-ed25519 {KEY}\n")], host, port)


def test_a_revoked_key_is_marked():
    (result,) = known_hosts.keys_for([("/k/known", f"@revoked * ssh-ed25519 {KEY}\n")], "gpu-01", 22)
    assert result.revoked
