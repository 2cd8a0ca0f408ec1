"""Mode virtio-gpu on a real kernel, libvirt and QEMU: a guest says who draws for it.

The GPU is the kernel's vgem, which has a render node and no hardware: Mesa draws on the CPU behind it.
"""

from __future__ import annotations

import pytest

from tests.lab.console import ask_guest
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import call, leftovers, must, use_defaults

DRAWING = "/var/lib/libvirt/images/drawing.qcow2"
LINK = "/dev/dri/by-path/platform-vgem-render"


@pytest.mark.quick
@pytest.mark.deadline(900)
def test_qemu_draws_for_two_guests_on_one_gpu_and_a_guest_says_its_renderer(lab: Lab) -> None:
    use_defaults(lab)
    lab.run("modprobe vgem; udevadm settle")
    before = leftovers(lab)
    (gpu,) = [g for g in must(lab, "list-gpus", "--all") if g["render_node"]]
    assert (gpu["address"], gpu["render_node"], gpu["draws_for"]) == ("vgem", "/dev/dri/renderD128", [])
    made = must(lab, "create-vm", "vm-1", "--mode", "virtio-gpu", "--image", DRAWING)
    assert (made["render_gpu"], made["vgpus"]) == ("vgem", [])
    must(lab, "create-vm", "vm-2", "--mode", "virtio-gpu", "--gpu", "vgem", "--image", DRAWING)
    assert f"rendernode='{LINK}'" in lab.run("virsh dumpxml vm-2").stdout
    assert must(lab, "show-gpu", "vgem")["draws_for"] == ["vm-1", "vm-2"]
    rows = {row["vm"]: (row["profile"], row["gpu"], row["vm_state"]) for row in must(lab, "top")["vgpus"]}
    assert rows == dict.fromkeys(("vm-1", "vm-2"), ("virtio-gpu", "vgem", "running"))
    must(lab, "stop-vm", "vm-2", "--force")  # the other one starts sooner
    assert "LLVMPIPE" in ask_guest(
        lab, "vm-1", "renderer", timeout=720
    )  # a number before the name may be printable, too
    must(lab, "stop-vm", "vm-1", "--force")
    lab.run("modprobe -r vgem; udevadm settle")
    refused = call(lab, "start-vm", "vm-1")[1]["error"]
    assert (refused["facts"]["check"], refused["facts"]["node"]) == ("render-node", LINK)
    assert LINK in lab.run("virsh start vm-1", check=False, timeout=120).stderr
    must(lab, "delete-vm", "vm-1", "vm-2")
    lab.run("modprobe vgem; udevadm settle")
    assert leftovers(lab) == before
