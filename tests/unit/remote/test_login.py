# SPDX-License-Identifier: Apache-2.0
"""Addresses, ssh_config, known_hosts and the remote shell line: everything that is decided before a connection."""

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
from vgpuctl.remote import known_hosts, login, shell_line, ssh_config
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
    text = {"hostname": "10.0.0.1", "port": "2200", "user": "ops", "identityfile": ["/k/one", "none"]}
    result = login.resolve_login(Target("gpu", "gpu", 22, "root", ("/k/mine",)), text)
    assert (result.host, result.port, result.user) == ("10.0.0.1", 22, "root")
    assert result.identity_files == ("/k/mine", "/k/one")
    assert (result.known_hosts_name, result.known_hosts_port) == ("10.0.0.1", 22)


def test_what_ssh_config_does_not_say_is_ssh_s_default():
    result = login.resolve_login(Target("gpu", "gpu"), {})
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
    result = login.resolve_login(Target("gpu", "gpu"), text)
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
        login.resolve_login(Target("gpu", "gpu"), output)


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


@given(st.lists(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12), max_size=4))
def test_every_word_reaches_the_program_there_as_it_was(words):
    """A shell reads the line as under sshd, with a program that prints its arguments in place of vgpuctl."""
    *before, script, sh = shlex.split(shell_line.vgpuctl_line([], "root"))
    text = shlex.split(shell_line.vgpuctl_line(words, "root"))
    assert text == [*before, script, sh, *words]


def test_the_line_says_its_process_and_runs_vgpuctl(tmp_path):
    program = tmp_path / "vgpuctl"
    program.write_text('#!/bin/sh\nfor word; do echo "<$word>"; done\n')
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    words = ["a b", "'", "$(id)", "", "*"]
    ran = subprocess.run(["sh", "-c", shell_line.vgpuctl_line(words, "root")], env=env, capture_output=True, check=True)
    result = shell_line.split_output(b"noise" + ran.stdout)
    assert result is not None
    assert (result[0], result[2].decode()) == (b"noise", "".join(f"<{word}>\n" for word in words))
    assert result[1] > 0
    assert shell_line.split_output(b"vgpuctl-over-ssh ") is None


def test_a_non_root_login_uses_sudo_without_a_prompt():
    assert shlex.split(shell_line.vgpuctl_line(["x"], "ops"))[:3] == ["sudo", "-n", "--"]
    assert shlex.split(shell_line.stop_line(7, "ops"))[:3] == ["sudo", "-n", "--"]
    assert shlex.split(shell_line.vgpuctl_line(["x"], "root"))[0] == "/bin/sh"
