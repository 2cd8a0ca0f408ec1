"""`--host ssh://` against L2's sshd: vgpuctl on L1 creates and deletes a VM with a vGPU in L2."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.plays import PROGRAMS
from tests.lab.machine import Lab
from tests.lab.outside import know, make_home
from tests.lab.vgpuctl_in import IGB, leftovers, must, put_gpu, use_defaults


def from_outside(lab: Lab, home: Path, *words: str, user: str = "root") -> tuple[int, dict[str, Any]]:
    """Run this checkout's vgpuctl on L1 for L2, where `user` logs in; return its exit status and its JSON document."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VGPUCTL_", "SSH_"))}
    done = subprocess.run(
        [PROGRAMS / "vgpuctl", "--host", f"ssh://{user}@127.0.0.1:{lab.emulator.port}", "--json", "--yes", *words],
        env={**environment, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


@pytest.mark.deadline(600)
def test_a_remote_vm_is_created_and_deleted_and_an_unknown_key_refused(lab: Lab, tmp_path: Path) -> None:
    put_gpu(lab, "vendor-vf")
    use_defaults(lab)
    before = leftovers(lab)
    make_home(lab, tmp_path)
    status, reported = from_outside(lab, tmp_path, "list-gpus")
    assert (status, IGB in [gpu["address"] for gpu in reported["data"]]) == (0, True), reported

    status, made = from_outside(lab, tmp_path, "create-vm", "vm-1", "--profile", "A100-4C")
    assert (status, made["changed"]) == (0, True), made
    (vm,) = must(lab, "list-vms")
    assert (vm["state"], [vgpu["present"] for vgpu in vm["vgpus"]]) == ("running", [True])

    (tmp_path / ".ssh/known_hosts").write_text("")
    status, refused = from_outside(lab, tmp_path, "delete-vm", "vm-1")
    assert (status, refused["error"]["code"]) == (3, "host-key"), refused

    know(lab, tmp_path)
    status, removed = from_outside(lab, tmp_path, "delete-vm", "vm-1")
    assert (status, removed["changed"]) == (0, True), removed
    assert leftovers(lab) == before
