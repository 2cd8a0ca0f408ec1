# SPDX-License-Identifier: Apache-2.0
"""install-host --deb installs vgpuctl on hosts without it; a failed installation leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remote.conftest import DEAD, EMPTY, FRESH, HALTED
from tests.remote.network import PACKAGE_VERSION, Network
from tests.remote.test_hosts import error_of, hosts_of
from tests.unit.remote.test_bootstrap import package
from vgpuctl.remote.bootstrap_script import COPY_PARENT, COPY_PREFIX

Ssh = Callable[..., "subprocess.CompletedProcess[str]"]
CONTROL = f"Package: vgpuctl\nVersion: {PACKAGE_VERSION}\nArchitecture: all\n"


@pytest.fixture
def deb(tmp_path: Path) -> str:
    """A Debian package of vgpuctl."""
    return str(package(tmp_path, CONTROL))


@pytest.fixture
def large_deb(tmp_path: Path) -> str:
    """A Debian package with 60 MiB more, so that a test can interrupt its copying."""
    return str(package(tmp_path, CONTROL, data=os.urandom(60 << 20)))


def copies() -> set[str]:
    """Return the directories with copies of packages."""
    return {path.name for path in Path(COPY_PARENT).glob(f"{COPY_PREFIX}*")}


def test_a_host_without_vgpuctl_gets_it_and_a_second_run_changes_nothing(network: Network, ssh: Ssh, deb: str) -> None:
    assert "install-host --deb FILE" in error_of(ssh(FRESH, "list-gpus", "--json"))["hint"]
    arguments = ("install-host", "--deb", deb, "--json")
    planned = json.loads(ssh(FRESH, *arguments, "--dry-run").stdout)
    assert planned["changed"] is True
    assert planned["data"]["brought"] == {"version": PACKAGE_VERSION, "was": None}
    assert error_of(ssh(FRESH, "list-gpus", "--json"))["facts"]["check"] == "vgpuctl"

    result = json.loads(ssh(FRESH, *arguments).stdout)
    assert (result["changed"], result["data"]["brought"]) == (True, {"version": PACKAGE_VERSION, "was": None})
    assert planned["data"]["steps"] == [step for step in result["data"]["steps"] if step in planned["data"]["steps"]]
    local = network.vgpuctl("--host", "sim:a100-40", "list-gpus")
    assert ssh(FRESH, "list-gpus").stdout == local.stdout

    again = ssh(FRESH, *arguments, "--progress")
    assert again.stderr == f"vgpuctl {PACKAGE_VERSION} is already installed there: nothing is copied\n"
    assert (json.loads(again.stdout)["changed"], json.loads(again.stdout)["data"]["steps"]) == (False, [])


def test_unsuitable_hosts_do_not_block_the_others(network: Network, ssh: Ssh, deb: str) -> None:
    """gpu-02 has another vgpuctl, first in PATH."""
    result = ssh(f"gpu-02 {DEAD} {EMPTY}", "install-host", "--deb", deb, "--json", "--progress")
    other, dead, good = hosts_of(result).values()
    assert [other["exit_status"], dead["exit_status"], good["exit_status"], result.returncode] == [3, 75, 0, 3]
    assert other["document"]["error"]["code"] == "unmanaged"
    assert f"{network.hosts[EMPTY].address}: copy" in result.stderr
    assert ssh(EMPTY, "list-gpus").returncode == 0


def test_ctrl_c_during_the_copy_leaves_nothing_on_the_host(network: Network, large_deb: str) -> None:
    before = copies()
    child = start_copying(network, large_deb)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=120)
    assert (child.returncode, json.loads(out)["error"]["code"]) == (130, "interrupted")
    assert copies() <= before


def test_a_broken_connection_leaves_nothing_on_the_host(network: Network, large_deb: str) -> None:
    before = copies()
    child = start_copying(network, large_deb)
    network.run("sh", "-c", "kill $(pgrep -f 'sshd: [r]oot@')")
    out, _ = child.communicate(timeout=120)
    assert (child.returncode, json.loads(out)["error"]["code"]) == (75, "unreachable")
    deadline = time.monotonic() + 60
    while copies() - before:
        assert time.monotonic() < deadline


def start_copying(network: Network, deb: str) -> subprocess.Popen[str]:
    """Start to install vgpuctl on a host, and return as soon as a part of the package has been sent."""
    url = f"ssh://root@{network.hosts[HALTED].address}"
    argv = network.argv("--host", url, "install-host", "--deb", deb, "--json", "--progress")
    pipe = subprocess.PIPE
    child = subprocess.Popen(argv, env=network.environment(), stdout=pipe, stderr=pipe, text=True)
    assert child.stderr is not None
    assert child.stderr.readline().startswith("sent ")
    return child
