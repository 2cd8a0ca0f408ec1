"""AppArmor enabled and QEMU as an unprivileged user, as on Debian: every backend works, and so does libvirt's hook."""

from __future__ import annotations

import pytest

from tests.lab.console import ask_guest, guest_devices
from tests.lab.machine import Lab
from tests.lab.test_after_boot import INSTALLED
from tests.lab.test_drawing import DRAWING
from tests.lab.vgpuctl_in import A100, IGB, leftovers, must, put_gpu, use_defaults

EDU = "0000:03:00.0"
# A Python outside /usr/bin, as pyenv, uv and conda install it.
OTHER_PYTHON = "/opt/python/bin/python3.13"
CONFINED = "pid=$(cat /run/libvirt/qemu/vm-1.pid); cat /proc/$pid/attr/current; ps -o user= -p $pid"


def confined(lab: Lab) -> bool:
    """Return whether vm-1's QEMU has its own AppArmor profile and runs as an unprivileged user."""
    output = lab.run(CONFINED).stdout
    return "(enforce)" in output and output.splitlines()[-1].startswith("libvirt")


@pytest.mark.deadline(400)
def test_a_confined_libvirtd_runs_the_hook_with_any_python(lab_apparmor: Lab) -> None:
    lab = lab_apparmor
    lab.run(f"{INSTALLED}\nmkdir -p {OTHER_PYTHON.rpartition('/')[0]} && cp /usr/bin/python3.13 {OTHER_PYTHON}")
    assert "libvirtd (enforce)" in lab.run("cat /proc/$(pidof libvirtd)/attr/current").stdout
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    lab.run(f"{OTHER_PYTHON} -I -m vgpuctl --yes install-host --restart-libvirt")
    assert OTHER_PYTHON in lab.read("/etc/libvirt/hooks/qemu.d/vgpuctl")
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
    carrier = made["vgpus"][0]["carrier"]
    lab.run(f"echo 1 > /sys/bus/mdev/devices/{carrier}/remove && rm /run/vgpuctl/claims/{carrier}")
    lab.run("virsh start vm-1", timeout=120)
    assert confined(lab)
    assert must(lab, "show-vm", "vm-1")["vgpus"][0]["present"]
    must(lab, "delete-vm", "vm-1")
    lab.run(f"{OTHER_PYTHON} -I -m vgpuctl --yes uninstall-host --restart-libvirt")
    assert lab.run("ls /etc/libvirt/hooks/qemu.d", check=False).stdout.strip() == ""


@pytest.mark.deadline(400)
@pytest.mark.parametrize(
    "backend",
    [
        "mdev-pf",
        "mdev-vf",
        "vendor-vf",
        "sriov-vf",
        "passthrough",
    ],
)
def test_each_backend_makes_starts_and_deletes_a_confined_vm(lab_apparmor: Lab, backend: str) -> None:
    lab = lab_apparmor
    use_defaults(lab)
    words, seen = ["--profile", "A100-4C"], A100
    if backend == "sriov-vf":
        lab.run(f"modprobe igb && echo 2 > /sys/bus/pci/devices/{IGB}/sriov_numvfs")
        words, seen = ["--mode", "sriov", "--gpu", IGB], "8086:10ca"
    elif backend == "passthrough":
        words, seen = ["--mode", "passthrough", "--gpu", EDU], "1234:11e8"
    else:
        put_gpu(lab, backend)
    before = leftovers(lab)
    made = must(lab, "create-vm", "vm-1", *words)
    assert [v["backend"] for v in made["vgpus"]] == [backend]
    assert confined(lab)
    assert seen in guest_devices(lab, "vm-1")
    must(lab, "delete-vm", "vm-1")
    assert leftovers(lab) == before


@pytest.mark.deadline(400)
def test_a_confined_qemu_draws_on_a_gpu(lab_apparmor: Lab) -> None:
    """Libvirt makes the render node in QEMU's own /dev, gives it to QEMU's user, and adds it to the profile."""
    lab = lab_apparmor
    use_defaults(lab)
    lab.run("modprobe vgem; udevadm settle")
    must(lab, "create-vm", "vm-1", "--mode", "virtio-gpu", "--gpu", "vgem", "--image", DRAWING)
    assert confined(lab)
    assert "LLVMPIPE" in ask_guest(lab, "vm-1", "renderer")  # a number before the name may be printable, too
    must(lab, "delete-vm", "vm-1")


def test_an_image_that_qemus_user_cannot_read_is_refused(lab_apparmor: Lab) -> None:
    lab, hidden = lab_apparmor, "/root/hidden"
    put_gpu(lab, "vendor-vf")
    use_defaults(lab)
    lab.run(f"mkdir -m 0700 {hidden} && cp /var/lib/libvirt/images/tiny.qcow2 {hidden}/")
    before = leftovers(lab)
    words = ("create-vm", "vm-1", "--profile", "A100-4C", "--image", f"{hidden}/tiny.qcow2")
    assert "/root" in must(lab, *words, status=6)["message"]
    assert leftovers(lab) == before
