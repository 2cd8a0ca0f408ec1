# SPDX-License-Identifier: Apache-2.0
"""install-host --wheelhouse: vgpuctl is installed on hosts without it, and a failed installation leaves nothing."""

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


def there(network: Network, name: str) -> list[str]:
    """Return what lies in a host's /opt."""
    return sorted(path.name for path in (network.state(name) / "opt").iterdir())


@pytest.fixture
def padded(wheelhouse: Path, tmp_path: Path) -> Path:
    """A wheelhouse with more to copy than is on its way at once."""
    made = without(wheelhouse, tmp_path / "padded", "nothing")
    with zipfile.ZipFile(made / "padding-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("padding", os.urandom(64 << 20))
    return made


def without(wheelhouse: Path, made: Path, prefix: str) -> Path:
    """Return a wheelhouse that lacks some wheels."""
    made.mkdir()
    for wheel in wheelhouse.iterdir():
        if not wheel.name.startswith(prefix):
            (made / wheel.name).symlink_to(wheel)
    return made


def test_a_host_without_vgpuctl_gets_it_and_a_second_run_changes_nothing(
    network: Network, ssh: Ssh, wheelhouse: Path
) -> None:
    assert "install-host --wheelhouse DIR" in error_of(ssh(FRESH, "list-gpus", "--json"))["hint"]
    words = ("install-host", "--wheelhouse", str(wheelhouse), "--json")
    would = json.loads(ssh(FRESH, *words, "--dry-run").stdout)
    assert (would["changed"], there(network, FRESH)) == (True, [])
    assert would["data"]["brought"] == {"version": __version__, "was": None}

    done = json.loads(ssh(FRESH, *words).stdout)
    assert (done["changed"], done["data"]["brought"]) == (True, {"version": __version__, "was": None})
    assert would["data"]["steps"] == [step for step in done["data"]["steps"] if step in would["data"]["steps"]]
    link, environment = there(network, FRESH)
    assert (link, (network.state(FRESH) / "opt" / link).readlink()) == ("vgpuctl", Path(environment))
    local = network.vgpuctl("--host", "sim:a100-40", "list-gpus")
    assert ssh(FRESH, "list-gpus").stdout == local.stdout

    again = ssh(FRESH, *words, "--progress")
    assert again.stderr == f"vgpuctl {__version__} is there already: nothing is copied\n"
    assert (json.loads(again.stdout)["changed"], there(network, FRESH)) == (False, ["vgpuctl", environment])
    assert json.loads(again.stdout)["data"]["steps"] == []


def test_unsuitable_hosts_block_no_other(network: Network, ssh: Ssh, wheelhouse: Path) -> None:
    done = ssh(f"{CRAMPED} {DEAD} {EMPTY}", "install-host", "--wheelhouse", str(wheelhouse), "--json", "--progress")
    cramped, dead, good = hosts_of(done).values()
    assert [cramped["exit_status"], dead["exit_status"], good["exit_status"], done.returncode] == [6, 75, 0, 6]
    facts = cramped["document"]["error"]["facts"]
    assert (facts["check"], facts["free_bytes"] < facts["needs_bytes"]) == ("space", True)
    assert f"{network.hosts[EMPTY].address}: copy" in done.stderr
    assert ssh(EMPTY, "list-gpus").returncode == 0


def test_a_half_failed_install_keeps_the_old_one_and_can_be_rerun(
    network: Network, ssh: Ssh, wheelhouse: Path, tmp_path: Path
) -> None:
    """The old one is a plain environment, as pip or the role of Ansible makes it."""
    old = network.state(BEHIND) / "opt" / "vgpuctl"
    (old / "bin").mkdir(parents=True)
    (old / "pyvenv.cfg").touch()
    (old / "bin" / "vgpuctl").write_text(OLD)
    (old / "bin" / "vgpuctl").chmod(0o755)
    lame = without(wheelhouse, tmp_path / "lame", "mdurl")
    failed = error_of(ssh(BEHIND, "install-host", "--wheelhouse", str(lame), "--json"))
    assert any("mdurl" in line for line in failed["facts"]["lines"])
    assert (there(network, BEHIND), (old / "bin" / "vgpuctl").read_text()) == (["vgpuctl"], OLD)

    done = json.loads(ssh(BEHIND, "install-host", "--wheelhouse", str(wheelhouse), "--json").stdout)
    assert done["data"]["brought"] == {"version": __version__, "was": "0.0.1"}
    assert len(there(network, BEHIND)) == 2
    assert ssh(BEHIND, "list-gpus").returncode == 0


def test_ctrl_c_while_it_is_copied_leaves_nothing_there(network: Network, padded: Path) -> None:
    child = copying(network, padded)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=120)
    assert (child.returncode, json.loads(out)["error"]["code"]) == (130, "interrupted")
    assert [name for name in there(network, HALTED) if "vgpuctl" in name] == []


def test_a_connection_that_breaks_leaves_nothing_there(network: Network, padded: Path) -> None:
    child = copying(network, padded)
    network.run("sh", "-c", "kill $(pgrep -f 'sshd: [r]oot@')")
    out, _ = child.communicate(timeout=120)
    assert (child.returncode, json.loads(out)["error"]["code"]) == (75, "unreachable")
    until = time.monotonic() + 60
    while there(network, HALTED):
        assert time.monotonic() < until


def copying(network: Network, wheelhouse: Path) -> subprocess.Popen[str]:
    """Begin to install vgpuctl on a host, and return when a part of it has been sent."""
    url = f"ssh://root@{network.hosts[HALTED].address}"
    words = network.argv("--host", url, "install-host", "--wheelhouse", str(wheelhouse), "--json", "--progress")
    pipe = subprocess.PIPE
    child = subprocess.Popen(words, env=network.environment(), stdout=pipe, stderr=pipe, text=True)
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
    done = ssh("gpu-02", "install-host", "--wheelhouse", str(wheelhouse), "--dry-run", "--json")
    assert (done.returncode, error_of(done)["code"]) == (3, "foreign")
