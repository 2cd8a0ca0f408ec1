# SPDX-License-Identifier: Apache-2.0
"""install-host --wheelhouse installs vgpuctl on hosts without it; a failed installation leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.remote.conftest import BEHIND, CRAMPED, DEAD, EMPTY, FRESH, HALTED
from tests.remote.network import Network
from tests.remote.test_hosts import error_of, hosts_of
from vgpuctl import __version__

Ssh = Callable[..., "subprocess.CompletedProcess[str]"]
OLD = '#!/bin/sh\necho "vgpuctl 0.0.1"\n'


def opt_entries(network: Network, name: str) -> list[str]:
    """Return the names in a host's /opt."""
    return sorted(path.name for path in (network.state(name) / "opt").iterdir())


@pytest.fixture
def padded(wheelhouse: Path, tmp_path: Path) -> Path:
    """A wheelhouse with 64 MiB more, so that a test can interrupt its copying."""
    directory = copy_without(wheelhouse, tmp_path / "padded", "nothing")
    with zipfile.ZipFile(directory / "padding-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("padding", os.urandom(64 << 20))
    return directory


def copy_without(wheelhouse: Path, directory: Path, prefix: str) -> Path:
    """Create a copy of a wheelhouse without the wheels whose names start with `prefix`, and return its path."""
    directory.mkdir()
    for wheel in wheelhouse.iterdir():
        if not wheel.name.lower().startswith(prefix):
            (directory / wheel.name).symlink_to(wheel)
    return directory


def test_a_host_without_vgpuctl_gets_it_and_a_second_run_changes_nothing(
    network: Network, ssh: Ssh, wheelhouse: Path
) -> None:
    assert "install-host --wheelhouse DIR" in error_of(ssh(FRESH, "list-gpus", "--json"))["hint"]
    arguments = ("install-host", "--wheelhouse", str(wheelhouse), "--json")
    planned = json.loads(ssh(FRESH, *arguments, "--dry-run").stdout)
    assert (planned["changed"], opt_entries(network, FRESH)) == (True, [])
    assert planned["data"]["brought"] == {"version": __version__, "was": None}

    result = json.loads(ssh(FRESH, *arguments).stdout)
    assert (result["changed"], result["data"]["brought"]) == (True, {"version": __version__, "was": None})
    assert planned["data"]["steps"] == [step for step in result["data"]["steps"] if step in planned["data"]["steps"]]
    link, environment = opt_entries(network, FRESH)
    assert (link, (network.state(FRESH) / "opt" / link).readlink()) == ("vgpuctl", Path(environment))
    local = network.vgpuctl("--host", "sim:a100-40", "list-gpus")
    assert ssh(FRESH, "list-gpus").stdout == local.stdout

    again = ssh(FRESH, *arguments, "--progress")
    assert again.stderr == f"vgpuctl {__version__} is already installed there: nothing is copied\n"
    assert (json.loads(again.stdout)["changed"], opt_entries(network, FRESH)) == (False, ["vgpuctl", environment])
    assert json.loads(again.stdout)["data"]["steps"] == []


def test_unsuitable_hosts_do_not_block_the_others(network: Network, ssh: Ssh, wheelhouse: Path) -> None:
    result = ssh(f"{CRAMPED} {DEAD} {EMPTY}", "install-host", "--wheelhouse", str(wheelhouse), "--json", "--progress")
    cramped, dead, good = hosts_of(result).values()
    assert [cramped["exit_status"], dead["exit_status"], good["exit_status"], result.returncode] == [6, 75, 0, 6]
    facts = cramped["document"]["error"]["facts"]
    assert (facts["check"], facts["free_bytes"] < facts["needs_bytes"]) == ("space", True)
    assert f"{network.hosts[EMPTY].address}: copy" in result.stderr
    assert ssh(EMPTY, "list-gpus").returncode == 0


def test_an_install_that_fails_half_way_keeps_the_old_version_and_can_be_rerun(
    network: Network, ssh: Ssh, wheelhouse: Path, tmp_path: Path
) -> None:
    """The old version is in a plain virtual environment, as pip or the Ansible role creates it."""
    old = network.state(BEHIND) / "opt" / "vgpuctl"
    (old / "bin").mkdir(parents=True)
    (old / "pyvenv.cfg").touch()
    (old / "bin" / "vgpuctl").write_text(OLD)
    (old / "bin" / "vgpuctl").chmod(0o755)
    incomplete = copy_without(wheelhouse, tmp_path / "lame", "markupsafe")
    failed = error_of(ssh(BEHIND, "install-host", "--wheelhouse", str(incomplete), "--json"))
    assert any("markupsafe" in line.lower() for line in failed["facts"]["lines"])
    assert (opt_entries(network, BEHIND), (old / "bin" / "vgpuctl").read_text()) == (["vgpuctl"], OLD)

    result = json.loads(ssh(BEHIND, "install-host", "--wheelhouse", str(wheelhouse), "--json").stdout)
    assert result["data"]["brought"] == {"version": __version__, "was": "0.0.1"}
    assert len(opt_entries(network, BEHIND)) == 2
    assert ssh(BEHIND, "list-gpus").returncode == 0


def test_ctrl_c_during_the_copy_leaves_nothing_on_the_host(network: Network, padded: Path) -> None:
    child = start_copying(network, padded)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=120)
    assert (child.returncode, json.loads(out)["error"]["code"]) == (130, "interrupted")
    assert [name for name in opt_entries(network, HALTED) if "vgpuctl" in name] == []


def test_a_broken_connection_leaves_nothing_on_the_host(network: Network, padded: Path) -> None:
    child = start_copying(network, padded)
    network.run("sh", "-c", "kill $(pgrep -f 'sshd: [r]oot@')")
    out, _ = child.communicate(timeout=120)
    assert (child.returncode, json.loads(out)["error"]["code"]) == (75, "unreachable")
    deadline = time.monotonic() + 60
    while opt_entries(network, HALTED):
        assert time.monotonic() < deadline


def start_copying(network: Network, wheelhouse: Path) -> subprocess.Popen[str]:
    """Start to install vgpuctl on a host, and return as soon as a part of the wheelhouse has been sent."""
    url = f"ssh://root@{network.hosts[HALTED].address}"
    argv = network.argv("--host", url, "install-host", "--wheelhouse", str(wheelhouse), "--json", "--progress")
    pipe = subprocess.PIPE
    child = subprocess.Popen(argv, env=network.environment(), stdout=pipe, stderr=pipe, text=True)
    assert child.stderr is not None
    assert child.stderr.readline().startswith("sent ")
    return child


@pytest.mark.parametrize("broken", ["", "vgpuctl-0.1.0-py3-none-any.whl"])
def test_a_broken_wheelhouse_is_refused_before_anything_connects(ssh: Ssh, tmp_path: Path, broken: str) -> None:
    if broken:
        (tmp_path / broken).write_bytes(b"half a wheel")
    error = error_of(ssh(DEAD, "install-host", "--wheelhouse", str(tmp_path), "--json"))
    assert error["code"] == "invalid-input"


def test_a_host_with_another_vgpuctl_first_in_path_keeps_it(ssh: Ssh, wheelhouse: Path) -> None:
    result = ssh("gpu-02", "install-host", "--wheelhouse", str(wheelhouse), "--dry-run", "--json")
    assert (result.returncode, error_of(result)["code"]) == (3, "unmanaged")
