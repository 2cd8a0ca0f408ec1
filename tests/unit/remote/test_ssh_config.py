# SPDX-License-Identifier: Apache-2.0
"""ssh_config with its includes, and the login that it gives."""

from __future__ import annotations

import os

import pytest

from vgpuctl.errors import InvalidInput
from vgpuctl.remote import ssh_config
from vgpuctl.remote.session import Target


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
