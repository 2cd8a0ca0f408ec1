# SPDX-License-Identifier: Apache-2.0
"""Every command of vgpuctl that a fix of doctor names runs as pasted, on hosts with all kinds of problems."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts import change_hardware
from tests.unit.cli.conftest import Ran
from vgpuctl.sim.host import SCENARIOS

Run = Callable[..., Ran]
COMMAND = re.compile(r"vgpuctl [a-z][^;,()]*")
INVALID_INPUT = 2

HEAD = "version: 1\nnetworks: [{name: default}]\nstorage: {pools: [{name: default}]}\n"
HOSTS = {
    "VFs off": HEAD + "gpus: [{model: A100, vfs: {enabled: 0}}]\n",
    "no IOMMU": HEAD + "iommu: false\ngpus: [{model: A100}]\n",
    "no driver": HEAD + "gpus: [{model: A100, driver: nouveau}]\n",
    "vfio-pci": HEAD + "gpus: [{model: A40}, {model: A40, driver: vfio-pci}]\n",
    "MIG without instances": HEAD + "gpus: [{model: H100, mig: []}]\n",
}
HOST_FILE = """version: 1
gpus:
  "0000:99:00.0": {mode: vgpu}
vgpus:
  spare: {profile: A100-4C, gpu: "0000:99:00.0", carrier: "0000:99:00.4"}
"""


def run_fixes(vgpuctl: Run, host: str) -> list[str]:
    """Run each command that doctor shows for a host; return the commands."""
    shown = vgpuctl("--host", host, "doctor").out
    commands = [c.strip() for line in shown.splitlines() if "fix: " in line for c in COMMAND.findall(line)]
    for command in commands:
        ran = vgpuctl("--host", host, "--yes", *shlex.split(command)[1:])
        assert ran.status != INVALID_INPUT, f"{command}: {ran.err}"
    return commands


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_fixes_on_the_built_in_hosts(vgpuctl: Run, scenario: str) -> None:
    has_vgpus = scenario not in ("empty", "hgx-h100", "h100-pcie-x8")
    assert ("vgpuctl install-host" in run_fixes(vgpuctl, f"sim:{scenario}")) is has_vgpus


@pytest.mark.parametrize("problem", HOSTS)
def test_the_fixes_on_a_host_with_a_problem(vgpuctl: Run, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text(HOSTS[problem])
    assert run_fixes(vgpuctl, f"sim:{path}")


@pytest.mark.parametrize("boots", [0, 1])
@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-4Q"), ("h100-mig", "H100-1-10C")])
def test_the_fixes_of_vms(vgpuctl: Run, scenario: str, profile: str, boots: int) -> None:
    host = f"sim:{scenario}"
    for name in ("one", "two"):
        assert vgpuctl("--host", host, "create-vm", name, "--profile", profile).status == 0
    for _ in range(boots):
        vgpuctl("--host", host, "sim", "reboot")
    assert run_fixes(vgpuctl, host)


def test_the_fixes_after_the_cards_moved(vgpuctl: Run, tmp_path: Path) -> None:
    path = tmp_path / "moved.yaml"
    path.write_text(HEAD + "gpus: [{model: A100, address: '0000:3b:00.0'}]\n")
    host = f"sim:{path}"
    for name, gpu in (("free", ()), ("bound", ("--gpu", "0000:3b:00.0"))):
        assert vgpuctl("--host", host, "create-vm", name, "--profile", "A100-4C", *gpu).status == 0
    change_hardware(path, HEAD + "gpus: [{model: A100, address: '0000:3c:00.0'}]\n")
    assert "vgpuctl set-vm bound --profile A100-4C --gpu 0000:3c:00.0" in run_fixes(vgpuctl, host)
    assert vgpuctl("--host", host, "start-vm", "free", "bound").status == 0
