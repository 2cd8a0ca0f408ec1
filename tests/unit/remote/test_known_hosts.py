# SPDX-License-Identifier: Apache-2.0
"""Addresses of hosts, the login that ssh_config gives, and which host keys known_hosts accepts."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os

import pytest

from vgpuctl.errors import HostKeyRefused, InvalidInput
from vgpuctl.remote import known_hosts, ssh_config
from vgpuctl.remote.known_hosts import KnownKey
from vgpuctl.remote.session import Target, expand_range, parse_url


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("ssh://gpu-01", Target("gpu-01", "gpu-01")),
        ("ssh://ops@gpu-01:2222", Target("ops@gpu-01:2222", "gpu-01", 2222, "ops")),
        ("ssh://root@[fe80::1%eth0]:22/", Target("root@[fe80::1%eth0]:22", "fe80::1%eth0", 22, "root")),
        ("ssh://10.0.0.1", Target("10.0.0.1", "10.0.0.1")),
    ],
)
def test_addresses(url, target):
    assert parse_url(url) == target


@pytest.mark.parametrize(
    "url",
    ["ssh://", "ssh:gpu", "ssh://a/b", "ssh://a:0", "ssh://a:70000", "ssh://-x", "ssh://-l@a", "ssh://a b", "ssh://a:b:c",
     "ssh://u:secret@a"],
)  # fmt: skip
def test_what_is_no_address_is_refused(url):
    with pytest.raises(InvalidInput):
        parse_url(url)


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("ssh://gpu{08..10}", ["ssh://gpu08", "ssh://gpu09", "ssh://gpu10"]),
        ("ssh://ops@{a,b}-1.x:22", ["ssh://ops@a-1.x:22", "ssh://ops@b-1.x:22"]),
        ("ssh://gpu{1..1}", ["ssh://gpu1"]),
        ("ssh://root@[fe80::1:{1..2}]:22", ["ssh://root@[fe80::1:1]:22", "ssh://root@[fe80::1:2]:22"]),
        ("ssh://[::1]", ["ssh://[::1]"]),
    ],
)
def test_ranges(text, urls):
    assert list(expand_range(text)) == urls


@pytest.mark.parametrize(
    ("text", "hint"),
    [("ssh://a{1..", "'ssh://gpu{01..20}'"), ("ssh://a[1:3]", "write 'ssh://a{1..3}'"), ("ssh://{{1..2}}", "quotes")],
)
def test_what_is_no_range_is_refused(text, hint):
    with pytest.raises(InvalidInput, match="--host 'ssh://") as caught:
        expand_range(text)
    assert hint in str(caught.value.hint)


def test_what_was_typed_wins_over_ssh_config():
    text = {"hostname": "10.0.0.1", "port": "2200", "user": "ops", "identityfile": ["/k/one", "none"]}
    result = ssh_config.resolve_login(Target("gpu", "gpu", 22, "root"), text)
    assert (result.host, result.port, result.user) == ("10.0.0.1", 22, "root")
    assert result.identity_files == ("/k/one",)
    assert (result.known_hosts_name, result.known_hosts_port) == ("10.0.0.1", 22)


def test_what_ssh_config_does_not_say_is_ssh_s_default():
    result = ssh_config.resolve_login(Target("gpu", "gpu"), {})
    home = os.path.expanduser("~/.ssh")
    assert (result.port, result.identities_only, result.use_agent, result.proxy_jumps, result.proxy_command) == (
        22,
        False,
        True,
        (),
        None,
    )
    assert result.identity_files[0] == f"{home}/id_ed25519"
    assert result.known_hosts_files[0] == f"{home}/known_hosts"
    assert result.connect_timeout_seconds == 10


def test_the_rest_of_ssh_config():
    text = {
        "hostkeyalias": "farm", "port": "2200", "identitiesonly": "yes", "identityagent": "none",
        "identityfile": ["none"], "userknownhostsfile": "/k/a /k/b", "globalknownhostsfile": "none",
        "connecttimeout": "2m", "proxyjump": "ops@front:2222,back", "proxycommand": "nc %h %p",
    }  # fmt: skip
    result = ssh_config.resolve_login(Target("gpu", "gpu"), text)
    assert (result.known_hosts_name, result.known_hosts_port) == ("farm", 22)
    assert (result.identities_only, result.use_agent, result.identity_files) == (True, False, ())
    assert result.known_hosts_files == ("/k/a", "/k/b")
    assert result.connect_timeout_seconds == 120
    assert result.proxy_jumps == (Target("ops@front:2222", "front", 2222, "ops"), Target("back", "back"))


@pytest.mark.parametrize(
    "output", [{"port": "ssh"}, {"connecttimeout": "soon"}, {"proxyjump": "a b"}, {"hostname": "-oX"}, {"user": "-l"}]
)
def test_invalid_ssh_config_is_refused(output):
    with pytest.raises(InvalidInput, match="gpu: ssh_config"):
        ssh_config.resolve_login(Target("gpu", "gpu"), output)


def test_an_include_is_expanded_in_its_place(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    ssh = tmp_path / ".ssh"
    ssh.mkdir()
    (ssh / "config").write_text("Host a\n  Include more\n  Port 1\n")
    (ssh / "more").write_text("Host b\n  Port 2\n")

    def text_of(path: str) -> str | None:
        return (ssh / os.path.basename(path)).read_text() if path.startswith(str(ssh)) else None

    assert ssh_config.read_ssh_config(text_of).split("\n")[:7] == [
        "Host *", "Host a", "Host b", "  Port 2", "Host a", "  Port 1", "Host *",
    ]  # fmt: skip
    (ssh / "more").write_text("Include more\n")
    with pytest.raises(InvalidInput, match="more than 16 deep"):
        ssh_config.read_ssh_config(text_of)


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
