"""vGPUs without a VM, on a real libvirt and QEMU: virsh attaches the device XML from create-vgpu to an unmanaged VM."""

from __future__ import annotations

import pytest

from tests.lab.console import ask_guest, guest_devices
from tests.lab.domains import start, tiny_domain
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import A100, IGB, leftovers, must, put_gpu, use_defaults

PORTS = "<controller type='pci' index='0' model='pcie-root'/>" + "".join(
    f"<controller type='pci' index='{n}' model='pcie-root-port'/>" for n in range(1, 7)
)
WAIT_FOR_IT = "n=0; until grep -q 0x10de /sys/bus/pci/devices/*/vendor || [ $n = 30 ]; do sleep 1; n=$((n+1)); done"


@pytest.mark.deadline(600)
def test_a_vgpu_attached_with_virsh_cannot_be_deleted_in_use(lab: Lab) -> None:
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    before = leftovers(lab)
    start(lab, "theirs", tiny_domain("theirs", devices=PORTS))
    made = must(lab, "create-vgpu", "spare", "--profile", "A100-4C")
    assert (made["gpu"], made["present"]) == (IGB, True)
    assert must(lab, "reconcile-host")["findings"] == []
    device = made["usage"][1].removeprefix("virt-install --hostdev ")
    lab.wait_until(f"virsh nodedev-list --cap mdev | grep -qx {device}", timeout=60)
    lab.run("cat > /root/spare.xml", stdin=made["hostdev"])
    lab.run("virsh attach-device theirs /root/spare.xml --persistent", timeout=120)
    ask_guest(lab, "theirs", WAIT_FOR_IT)
    assert A100 in guest_devices(lab, "theirs")
    refused = must(lab, "delete-vgpu", "spare", status=3)
    assert refused["facts"]["vms"] == ["theirs"]
    assert [(v["name"], v["vm"]) for v in must(lab, "list-vgpus")] == [("spare", "theirs")]
    lab.run("virsh destroy theirs")
    assert must(lab, "delete-vgpu", "spare", status=3)["code"] == "in-use"
    lab.run("virsh detach-device theirs /root/spare.xml --config")
    must(lab, "delete-vgpu", "spare")
    assert must(lab, "reconcile-host")["findings"] == []
    lab.run("virsh undefine theirs")
    assert leftovers(lab) == before
    assert "spare" not in lab.run("cat /etc/vgpuctl/host.yaml").stdout
