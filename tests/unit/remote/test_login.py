# SPDX-License-Identifier: Apache-2.0
"""Addresses, ssh_config, known_hosts and the line for the shell there: all that is decided before anything connects."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.errors import InvalidInput
from vgpuctl.remote import config_text, known_hosts, login, remote_command
from vgpuctl.remote.target import Target, parse_url

KEY = base64.b64encode(b"a key").decode()


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


def test_what_was_typed_wins_over_ssh_config():
    said = {"hostname": "10.0.0.1", "port": "2200", "user": "ops", "identityfile": ["/k/one", "none"]}
    found = login.login(Target("gpu", "gpu", 22, "root", ("/k/mine",)), said)
    assert (found.host, found.port, found.user) == ("10.0.0.1", 22, "root")
    assert found.identity_files == ("/k/mine", "/k/one")
    assert (found.key_name, found.key_port) == ("10.0.0.1", 22)


def test_what_ssh_config_does_not_say_is_ssh_s_default():
    found = login.login(Target("gpu", "gpu"), {})
    home = os.path.expanduser("~/.ssh")
    assert (found.port, found.only_files, found.agent, found.jumps, found.proxy_command) == (22, False, True, (), None)
    assert found.identity_files[0] == f"{home}/id_ed25519"
    assert found.known_hosts[0] == f"{home}/known_hosts"
    assert found.connect_seconds == 10


def test_the_rest_of_ssh_config():
    said = {
        "hostkeyalias": "farm", "port": "2200", "identitiesonly": "yes", "identityagent": "none",
        "identityfile": ["none"], "userknownhostsfile": "/k/a /k/b", "globalknownhostsfile": "none",
        "connecttimeout": "2m", "proxyjump": "ops@front:2222,back", "proxycommand": "nc %h %p",
    }  # fmt: skip
    found = login.login(Target("gpu", "gpu"), said)
    assert (found.key_name, found.key_port) == ("farm", 22)
    assert (found.only_files, found.agent, found.identity_files) == (True, False, ())
    assert found.known_hosts == ("/k/a", "/k/b")
    assert found.connect_seconds == 120
    assert found.jumps == (Target("ops@front:2222", "front", 2222, "ops"), Target("back", "back"))


@pytest.mark.parametrize(
    "said", [{"port": "ssh"}, {"connecttimeout": "soon"}, {"proxyjump": "a b"}, {"hostname": "-oX"}, {"user": "-l"}]
)
def test_ssh_config_that_cannot_be_meant_is_refused(said):
    with pytest.raises(InvalidInput, match="gpu: ssh_config"):
        login.login(Target("gpu", "gpu"), said)


def test_an_include_stands_where_it_is_and_ends_with_its_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    ssh = tmp_path / ".ssh"
    ssh.mkdir()
    (ssh / "config").write_text("Host a\n  Include more\n  Port 1\n")
    (ssh / "more").write_text("Host b\n  Port 2\n")

    def text_of(path: str) -> str | None:
        return (ssh / os.path.basename(path)).read_text() if path.startswith(str(ssh)) else None

    assert config_text.read(text_of).split("\n")[:7] == [
        "Host *", "Host a", "Host b", "  Port 2", "Host a", "  Port 1", "Host *",
    ]  # fmt: skip
    (ssh / "more").write_text("Include more\n")
    with pytest.raises(InvalidInput, match="more than 16 deep"):
        config_text.read(text_of)


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
def test_a_line_of_known_hosts_is_found_with_its_place(names, host, port):
    text = f"# comment\n\n{names} ssh-ed25519 {KEY} somebody\nbroken line\nx ssh-rsa !!!\n"
    (found,) = known_hosts.keys_for([("/k/known", text)], host, port)
    assert (found.place, found.kind, found.blob, found.revoked) == ("/k/known:3", "ssh-ed25519", b"a key", False)


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
    (found,) = known_hosts.keys_for([("/k/known", f"@revoked * ssh-ed25519 {KEY}\n")], "gpu-01", 22)
    assert found.revoked


@given(st.lists(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12), max_size=4))
def test_every_word_reaches_the_program_there_as_it_was(words):
    """A shell reads the line, as sshd has it read, with a program that prints its words in vgpuctl's place."""
    *before, script, sh = shlex.split(remote_command.line([], "root"))
    said = shlex.split(remote_command.line(words, "root"))
    assert said == [*before, script, sh, *words]


def test_the_line_says_its_process_and_runs_vgpuctl(tmp_path):
    program = tmp_path / "vgpuctl"
    program.write_text('#!/bin/sh\nfor word; do echo "<$word>"; done\n')
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    words = ["a b", "'", "$(id)", "", "*"]
    ran = subprocess.run(["sh", "-c", remote_command.line(words, "root")], env=env, capture_output=True, check=True)
    found = remote_command.split(b"noise" + ran.stdout)
    assert found is not None
    assert (found[0], found[2].decode()) == (b"noise", "".join(f"<{word}>\n" for word in words))
    assert found[1] > 0
    assert remote_command.split(b"vgpuctl-over-ssh ") is None


def test_who_is_not_root_becomes_root_by_sudo_that_asks_nothing():
    assert shlex.split(remote_command.line(["x"], "ops"))[:3] == ["sudo", "-n", "--"]
    assert shlex.split(remote_command.stop_line(7, "ops"))[:3] == ["sudo", "-n", "--"]
    assert shlex.split(remote_command.line(["x"], "root"))[0] == "/bin/sh"
