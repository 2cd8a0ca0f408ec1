# SPDX-License-Identifier: Apache-2.0
"""The host agent through SSH: `vgpuctl agent dial` on the host joins the login to the agent's socket."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.conftest import running
from tests.remote.conftest import DIALLED, UNKNOWN
from tests.remote.network import Network

CALLS = """
import sys
import vgpuctl

host = vgpuctl.connect(sys.argv[1])
print(host.create_vm("vdi-1", profile="A100-4C").data.state)
print([vm.name for vm in host.list_vms().data])
print(host.delete_vm("vdi-1").changed)
"""


def on_client(network: Network, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program on the client."""
    argv = [*network.argv()[:2], "--", sys.executable, "-c", code, *words]
    return subprocess.run(argv, env=network.environment(), capture_output=True, text=True, timeout=120, check=False)


def test_a_program_uses_an_agent_through_ssh(network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    url = f"ssh://root@{network.hosts[DIALLED].address}"
    with running("sim:a100-40", tmp_path, path=f"{network.state(DIALLED)}/home/agent.sock"):
        done = on_client(network, CALLS, url)
    assert done.stdout == "running\n['vdi-1']\nTrue\n", done.stderr


def test_a_host_whose_key_is_unknown_is_refused(network: Network) -> None:
    done = on_client(network, CALLS, f"ssh://root@{network.hosts[UNKNOWN].address}")
    assert done.returncode
    assert "HostKeyRefused" in done.stderr
