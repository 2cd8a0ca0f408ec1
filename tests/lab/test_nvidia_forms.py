"""create-vm on the three forms of NVIDIA's driver: a real kernel, real VFIO, and a KVM guest that sees its GPU."""

from __future__ import annotations

import pytest

from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import A100, IGB, leftovers, must, profiles, put_gpu, put_gpu_with_16_vfs, use_defaults

FORMS = ("mdev-pf", "mdev-vf", "vendor-vf")


@pytest.mark.deadline(600)
@pytest.mark.parametrize("form", FORMS)
def test_create_vm_alone_gives_a_running_vm_its_vgpu_and_delete_vm_leaves_nothing(lab: Lab, form: str) -> None:
    put_gpu(lab, form)
    use_defaults(lab)
    before = leftovers(lab)
    made = must(lab, "create-vm", "--profile", "A100-4C")
    assert made["state"] == "running"
    assert [(v["profile"], v["gpu"], v["ownership"], v["present"]) for v in made["vgpus"]] == [
        ("A100-4C", IGB, "managed", True)
    ]
    assert A100 in guest_devices(lab, made["name"])
    gpu = next(g for g in must(lab, "list-gpus") if g["address"] == IGB)
    assert gpu["backend"] == form
    assert [v["vm"] for v in gpu["vgpus"]] == [made["name"]]
    other_size = must(lab, "create-vm", "--profile", "A100-20C", status=4)
    assert other_size["code"] == "no-capacity"
    must(lab, "delete-vm", made["name"])
    assert leftovers(lab) == before


@pytest.mark.deadline(900)
@pytest.mark.parametrize("form", FORMS)
def test_ten_fit_and_the_eleventh_and_another_size_are_refused(lab: Lab, form: str) -> None:
    if form == "mdev-pf":
        put_gpu(lab, form)
    else:
        put_gpu_with_16_vfs(lab, form)
    use_defaults(lab)
    lab.run(
        "for i in 0 1 2 3 4 5 6 7 8 9; do vgpuctl --json create-vm vm-$i --profile A100-4C --no-start "
        "> /root/out-$i.json || exit; done",
        timeout=800,
    )
    assert must(lab, "create-vm", "--profile", "A100-4C", "--no-start", status=4)["code"] == "no-capacity"
    assert must(lab, "create-vm", "--profile", "A100-8C", "--no-start", status=4)["code"] == "no-capacity"
    known = profiles(lab)
    assert all(p["free"] == 0 for p in known.values())
    assert len(must(lab, "list-vms")) == 10
