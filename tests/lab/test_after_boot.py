"""Before libvirt starts, vgpuctl restores the vGPUs that a boot loses. A plain `virsh start` creates missing ones."""

from __future__ import annotations

import pytest

from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import A100, IGB, must, put_gpu, use_defaults, wait_for_restore

# Has the effect of an installation with pip: Python finds vgpuctl without environment variables (-I).
INSTALLED = """
place=$(python3 -c 'import site; print(*site.getsitepackages(), sep="\\n")' | grep -m1 ^/usr/local)
mkdir -p "$place" && printf '%s\\n' /opt/vgpuctl/src /opt/vgpuctl/lib > "$place/vgpuctl.pth"
"""
AT_BOOT = f"""
echo vgpulab > /etc/modules-load.d/vgpulab.conf
echo 'options vgpulab pf={IGB} form=mdev-pf' > /etc/modprobe.d/vgpulab.conf
"""


@pytest.mark.quick
@pytest.mark.deadline(900)
def test_a_vgpu_is_restored_after_a_boot_and_a_plain_start_creates_a_missing_one(lab: Lab) -> None:
    lab.run(f"{INSTALLED}{AT_BOOT}")
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    must(lab, "install-host", "--restart-libvirt")
    assert must(lab, "install-host")["steps"] == []
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
    carrier = made["vgpus"][0]["carrier"]
    lab.reboot()
    wait_for_restore(lab)
    assert lab.run("ls /sys/bus/mdev/devices").stdout.split() == [carrier]
    assert lab.run("ls /run/vgpuctl/claims").stdout.split() == [carrier]
    assert must(lab, "reconcile-host")["findings"] == []
    lab.run(f"echo 1 > /sys/bus/mdev/devices/{carrier}/remove")
    lab.run("virsh start vm-1", timeout=120)
    assert A100 in guest_devices(lab, "vm-1")
    assert must(lab, "show-vm", "vm-1")["vgpus"][0]["present"]
    lab.run("virsh destroy vm-1")
    must(lab, "delete-vm", "vm-1")
    must(lab, "uninstall-host")
    assert lab.run("ls /etc/libvirt/hooks/qemu.d", check=False).stdout.strip() == ""


@pytest.mark.deadline(900)
def test_a_gpu_that_is_not_ready_does_not_block_libvirt_and_its_vm_starts_later(lab: Lab) -> None:
    lab.run(INSTALLED)
    put_gpu(lab, "mdev-pf")
    use_defaults(lab)
    lab.run("printf 'boot: {hold_libvirt_seconds: 5, deadline_seconds: 600}\\n' >> /etc/vgpuctl/host.yaml")
    must(lab, "install-host", "--restart-libvirt")
    carrier = must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")["vgpus"][0]["carrier"]
    lab.run("virsh autostart vm-1")
    lab.reboot()
    # The driver is not loaded: the unit no longer holds libvirt back, and continues to wait.
    lab.wait_until("virsh domstate vm-1 | grep -qx 'shut off'", timeout=300)
    shown = lab.run("systemctl show -p ActiveState,SubState vgpuctl-restore.service").stdout.split()
    assert shown == ["ActiveState=active", "SubState=running"]
    put_gpu(lab, "mdev-pf")
    lab.wait_until("virsh domstate vm-1 | grep -qx running", timeout=120)
    assert lab.run("ls /sys/bus/mdev/devices").stdout.split() == [carrier]
    lab.wait_until("systemctl show -p SubState vgpuctl-restore.service | grep -qx SubState=exited", timeout=120)
    must(lab, "stop-vm", "vm-1", "--force")
    must(lab, "delete-vm", "vm-1")
    must(lab, "uninstall-host")


@pytest.mark.deadline(600)
def test_a_plain_start_without_room_fails_with_the_reason(lab: Lab) -> None:
    lab.run(INSTALLED)
    put_gpu(lab, "vendor-vf")
    use_defaults(lab)
    must(lab, "install-host", "--restart-libvirt")
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
    vf = f"/sys/bus/pci/devices/{made['vgpus'][0]['carrier']}/nvidia/current_vgpu_type"
    lab.run(f"echo 0 > {vf}")
    types = lab.run(["cat", vf.replace("current_vgpu_type", "creatable_vgpu_types")]).stdout
    bigger = next(line.split()[0] for line in types.splitlines() if line.endswith("A100-8C"))
    names = lab.run(f"readlink -f /sys/bus/pci/devices/{IGB}/virtfn*").stdout.split()
    other = next(n for n in names if n.rpartition("/")[2] != made["vgpus"][0]["carrier"])
    lab.run(f"echo {bigger} > {other}/nvidia/current_vgpu_type")
    refused = lab.run("virsh start vm-1", check=False, timeout=120)
    assert refused.returncode != 0
    assert "A100-4C" in refused.stderr
    lab.run(f"echo 0 > {other}/nvidia/current_vgpu_type")
    lab.run("virsh start vm-1", timeout=120)
    assert must(lab, "show-vm", "vm-1")["state"] == "running"


@pytest.mark.deadline(900)
@pytest.mark.parametrize("form", ["mdev-pf", "vendor-vf"])
def test_a_vm_that_reserves_while_running_has_its_vgpu_only_from_start_to_stop(lab: Lab, form: str) -> None:
    lab.run(INSTALLED)
    put_gpu(lab, form)
    use_defaults(lab)
    must(lab, "install-host", "--restart-libvirt")
    words = ("--profile", "A100-4C", "--no-start")
    vgpu = must(lab, "create-vm", "lent", *words, "--reserve", "running")["vgpus"][0]
    assert lab.run("ls /run/vgpuctl/claims", check=False).stdout.split() == []
    lab.run("virsh start lent", timeout=120)
    assert lab.run("ls /run/vgpuctl/claims").stdout.split() == [vgpu["carrier"]]
    assert must(lab, "show-vm", "lent")["vgpus"][0]["present"]
    lab.run("virsh destroy lent")
    assert lab.run("ls /run/vgpuctl/claims").stdout.split() == []
    assert lab.run("ls /sys/bus/mdev/devices", check=False).stdout.split() == []
    assert must(lab, "reconcile-host")["findings"] == []
    kept = must(lab, "create-vm", "kept", *words)["vgpus"][0]
    if form == "vendor-vf":
        assert kept["carrier"] == vgpu["carrier"]
        refused = lab.run("virsh start lent", check=False, timeout=120)
        assert refused.returncode != 0
        assert "kept uses it; vgpuctl start-vm lent" in refused.stderr
    must(lab, "start-vm", "lent")
    claims = lab.run("ls /run/vgpuctl/claims").stdout.split()
    assert len(claims) == 2
    assert kept["carrier"] in claims
    must(lab, "stop-vm", "lent", "--force")
    assert lab.run("ls /run/vgpuctl/claims").stdout.split() == [kept["carrier"]]
    must(lab, "uninstall-host")
