# SPDX-License-Identifier: Apache-2.0
"""A dry run changes no VM, device, claim, note or file of the host, even after killed commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.command_tree import walk_commands
from tests.unit.cli.conftest import Ran
from vgpuctl.host.claim_store import ClaimStore
from vgpuctl.host.operation_files import OperationFiles
from vgpuctl.host.processes import HostProcesses
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import Claim, DrainedVm, ProcessId

GPU = "0000:3b:00.0"
DEAD = ProcessId(4194399, 1)
DEAD_UUID = "6c9a3b4e-0000-4000-8000-000000000000"
MIXED = {
    "create-vm": "new --profile A100-4C",
    "ensure-vm": "-f SPEC",
    "delete-vm": "runs",
    "start-vm": "off",
    "stop-vm": "runs",
    "reboot-vm": "runs",
    "attach-vgpu": "off --profile A100-4C",
    "detach-vgpu": "off --vgpu 0000:3b:00.5",
    "set-vm": "runs --profile A100-4C:2 --memory 8GiB --label a=b --drain",
    "move-vms": "--defragment",
    "resize-disk": "cloned 300GiB",
    "refresh-vm": "cloned --image /srv/images/ubuntu-24.04.qcow2 --drain",
    "create-vgpu": "new --profile A100-4C",
    "ensure-vgpu": "new --profile A100-4C",
    "delete-vgpu": "lab",
    "apply": f"--set gpus[{GPU}].reserved_for=vdi-*",
    "set-mode": "0000:86:00.0 sriov --vfs 4",
    "cordon": GPU,
    "uncordon": "A16",
    "reconcile-host": "",
    "doctor": "--fix",
    "restore-host": "",
    "install-host": "",
    "uninstall-host": "",
}
OTHERS = {
    "set-mig": ("h100-mig", f"{GPU} --for H100-1-10C:4 --drain"),
    "set-mixed-size": ("rtx-pro-6000", f"{GPU} off --drain"),
    "set-scheduler": ("t4", f"{GPU} --policy equal_share --drain"),
    "attach-gpu": ("h100-pcie-x8", "off --gpus 2"),
    "detach-gpu": ("h100-pcie-x8", "off --gpu 0000:3d:00.0"),
}
LINES = {**{name: ("mixed", line) for name, line in MIXED.items()}, **OTHERS}


def files(state: Path) -> dict[str, bytes]:
    """Return every file below, without lock files."""
    paths = (path for path in sorted(state.rglob("*")) if path.is_file() and path.name != "lock")
    return {str(path.relative_to(state)): path.read_bytes() for path in paths}


def leave(state: Path, running: str, off: str) -> None:
    """Create what killed commands leave: a note for each VM, a claim, and an unfinished file."""
    processes = HostProcesses()
    store = ClaimStore(state / "run", processes, OperationFiles(state / "run", processes))
    for uuid in (running, off):
        store.add_drained_vm(DrainedVm(uuid, GPU, DEAD))
    stray = Claim(f"{GPU[:-1]}7", Backend.VENDOR_VF, GPU, f"{GPU[:-1]}7", "gone", DEAD_UUID, None, None, DEAD, "test")
    with store.lock(1):
        store.add(stray)
    (state / "etc/vgpuctl").mkdir(parents=True, exist_ok=True)
    (state / f"etc/vgpuctl/.host.yaml.vgpuctl-{DEAD.pid}-{DEAD.start_ticks}").write_text("version: 1\n")


def test_every_command_with_a_dry_run_is_here() -> None:
    with_it = {words.split()[-1] for words, one in walk_commands() if any(p.name == "dry_run" for p in one.params)}
    assert with_it == set(LINES)


@pytest.mark.parametrize("command", LINES)
def test_nothing_is_written(command: str, vgpuctl: Callable[..., Ran], tmp_path: Path) -> None:
    name, line = LINES[command]
    spec = tmp_path / "spec.yaml"
    spec.write_text("name: new\nprofile: A100-4C\n")

    def run(text: str) -> Ran:
        return vgpuctl("--host", f"sim:{name}", "--json", *shlex.split(text.replace("SPEC", str(spec))))

    profile = {"h100-mig": "H100-1-10C", "rtx-pro-6000": "DC-4Q", "t4": "T4-4Q"}.get(name, "A100-4C")
    gives = "--mode passthrough --gpus 2" if name == "h100-pcie-x8" else f"--profile {profile}"
    made = [run(f"create-vm {vm} {gives}") for vm in ("runs", "off")]
    assert [ran.status for ran in (*made, run("stop-vm off"))] == [0, 0, 0], made[0].out
    if name == "mixed":
        assert run("create-vm cloned --profile A100-4C --image /srv/images/ubuntu-24.04.qcow2").status == 0
        assert run("create-vgpu lab --profile T4-4Q").status == 0
        assert run("cordon A16").status == 0
    state = tmp_path / "state/vgpuctl" / name
    leave(state, *(ran.document["data"]["uuid"] for ran in made))
    before = files(state)
    ran = run(f"{command} {line} --dry-run")
    assert ran.document["ok"], ran.out
    assert files(state) == before
