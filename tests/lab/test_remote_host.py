"""`--host ssh://` against L2's sshd: vgpuctl on L1 creates and deletes a VM with a vGPU in L2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.machine import Lab
from tests.lab.outside import from_outside, know, make_home
from tests.lab.vgpuctl_in import IGB, leftovers, must, put_gpu, use_defaults


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
