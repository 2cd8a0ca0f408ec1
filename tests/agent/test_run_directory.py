# SPDX-License-Identifier: Apache-2.0
"""Members of two groups reach the agent's socket and nobody else; its version and pid are always whole."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpuctl.agent import run_directory
from vgpuctl.model import agent_service
from vgpuctl.version import __version__

OPERATORS, VIEWERS, OTHERS = 64_101, 64_102, 64_103
CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


@pytest.fixture
def path() -> Iterator[str]:
    """A listening socket of one group, as systemd makes it, where every user may look."""
    with tempfile.TemporaryDirectory(prefix="vgpuctl-agent-") as directory, socket.socket(socket.AF_UNIX) as one:
        os.chmod(directory, 0o755)
        name = f"{directory}/agent.sock"
        one.bind(name)
        one.listen()
        os.chmod(name, agent_service.SOCKET_MODE)
        os.chown(name, 0, OPERATORS)
        yield name


def can_connect(path: str, *groups: int) -> bool:
    words = ["/usr/bin/python3", "-c", CONNECT, path]
    done = subprocess.run(
        words, user=65534, group=65534, extra_groups=groups, capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0 or "PermissionError" in done.stderr, done.stderr
    return done.returncode == 0


def test_a_second_group_connects_and_the_mode_stays(path: str) -> None:
    assert [can_connect(path, group) for group in (OPERATORS, VIEWERS, OTHERS)] == [True, False, False]
    for _ in range(2):
        run_directory.let_group_connect(path, VIEWERS)
        assert [can_connect(path, group) for group in (OPERATORS, VIEWERS, OTHERS)] == [True, True, False]
    status = os.stat(path)
    assert (stat.S_IMODE(status.st_mode), status.st_gid) == (agent_service.SOCKET_MODE, OPERATORS)


def test_a_link_in_place_of_the_socket_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a")
    secret.chmod(0o600)
    link = tmp_path / "agent.sock"
    link.symlink_to(secret)
    with pytest.raises(OSError, match=r"agent\.sock"):
        run_directory.let_group_connect(str(link), VIEWERS)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_the_identity_is_replaced_whole_and_readable_under_any_umask(tmp_path: Path) -> None:
    path = tmp_path / "agent"
    code = "import os, sys, pathlib; os.umask(0o077)\nfrom vgpuctl.agent import run_directory\n"
    code += "run_directory.publish_identity(pathlib.Path(sys.argv[1])); print(os.getpid())"
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
        assert agent_service.parse_identity(path.read_text()) == (__version__, done.stdout.strip())
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        path.write_text("0.0.1 1\n")
    assert [one.name for one in tmp_path.iterdir()] == ["agent"]


@pytest.mark.parametrize("text", [None, "", "0.3.0", "0.3.0 1 2\n"])
def test_an_identity_that_is_none(text: str | None) -> None:
    assert agent_service.parse_identity(text) is None
