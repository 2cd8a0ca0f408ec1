"""Tests of the lab itself. Only if they pass does a failing lab test say something about vgpuctl."""

from __future__ import annotations

import time

import pytest

from tests.lab import recipe
from tests.lab.domains import pci_hostdev, seen_devices, shut_down, start, tiny_domain, wait_ready
from tests.lab.errors import CommandFailed, LabDied
from tests.lab.machine import Lab

IGB = "/sys/bus/pci/devices/0000:01:00.0"
IGB_VF = "8086:10ca"


def test_the_host_is_fully_booted_and_set_up(lab: Lab) -> None:
    assert lab.run("uname -r").stdout.startswith("6.12.")
    assert lab.run("systemctl is-system-running").stdout.strip() == "running"
    assert "default" in lab.run("virsh net-list --name").stdout.split()
    assert "default" in lab.run("virsh pool-list --name").stdout.split()
    assert "<domain>kvm</domain>" in lab.run("virsh domcapabilities").stdout


def test_no_network_outside(lab: Lab) -> None:
    assert lab.run("timeout 5 bash -c '< /dev/tcp/10.0.2.2/22'", check=False).returncode != 0


def test_python_modules_of_vgpuctl_are_installed(lab: Lab) -> None:
    modules = "click, ruamel.yaml, jinja2, lxml.etree, pynvml, paramiko, pycdlib"
    lab.run(f"PYTHONPATH=/opt/vgpuctl/lib python3 -c 'import {modules}, pytest, hypothesis, libvirt'")


@pytest.mark.parametrize("disk", [False, True], ids=["kernel", "disk"])
def test_a_kvm_guest_boots_and_obeys_the_power_button(lab: Lab, disk: bool) -> None:
    start(lab, "tiny", tiny_domain("tiny", disk=disk))
    assert "8086:29c0" in seen_devices(wait_ready(lab, "tiny"))
    shut_down(lab, "tiny")


def test_igb_makes_vfs_each_in_its_own_group(lab: Lab) -> None:
    lab.run("modprobe igb")
    lab.run(f"echo 7 > {IGB}/sriov_numvfs")
    groups = lab.run(f"readlink -f {IGB}/virtfn*/iommu_group").stdout.split()
    assert len(groups) == len(set(groups)) == 7


def test_a_guest_sees_its_vf(lab: Lab) -> None:
    lab.run(f"modprobe igb && echo 7 > {IGB}/sriov_numvfs")
    address = lab.run(f"basename $(readlink {IGB}/virtfn0)").stdout.strip()
    start(lab, "tiny", tiny_domain("tiny", devices=pci_hostdev(address)))
    assert IGB_VF in seen_devices(wait_ready(lab, "tiny"))
    shut_down(lab, "tiny")


def test_two_edu_functions_share_one_iommu_group(lab: Lab) -> None:
    listed = lab.run("lspci -Dnd 1234:11e8").stdout.splitlines()
    links = [f"/sys/bus/pci/devices/{line.split()[0]}/iommu_group" for line in listed]
    groups = lab.run(["readlink", *links]).stdout.split()
    assert len(groups) == 3
    assert len(set(groups)) == 2


def test_load_restores_the_clean_state(lab: Lab) -> None:
    lab.run(f"modprobe igb && echo 7 > {IGB}/sriov_numvfs && touch /root/left-behind")
    lab.load("session")
    assert lab.run(f"cat {IGB}/sriov_numvfs").stdout.strip() == "0"
    assert IGB_VF not in lab.run("lspci -n").stdout
    assert lab.run("test -e /root/left-behind", check=False).returncode == 1


def test_a_saved_state_keeps_vfs_and_modules(lab: Lab) -> None:
    def with_vfs(host: Lab) -> None:
        host.run(f"modprobe igb && echo 7 > {IGB}/sriov_numvfs")

    for _ in range(2):
        lab.at("igb-vfs", with_vfs)
        assert lab.run("lspci -n").stdout.count(IGB_VF) == 7
        lab.run(f"echo 0 > {IGB}/sriov_numvfs")


def test_the_clock_is_right_after_a_load(lab: Lab) -> None:
    assert abs(float(lab.run("date +%s.%N").stdout) - time.time()) < 5


def test_nvme_can_be_plugged_in_and_has_vfs(lab: Lab) -> None:
    address = lab.hotplug_nvme()
    device = f"/sys/bus/pci/devices/{address}"
    lab.run(f"modprobe nvme && echo 0 > {device}/sriov_drivers_autoprobe")
    lab.run(f"echo {recipe.NVME_VFS} > {device}/sriov_numvfs")
    groups = lab.run(f"readlink -f {device}/virtfn*/iommu_group").stdout.split()
    assert len(set(groups)) == recipe.NVME_VFS
    lab.load("session")
    assert address not in lab.pci_addresses()


@pytest.mark.parametrize("module", ["mtty", "mdpy", "mbochs"])
def test_mdev_samples_offer_types(lab: Lab, module: str) -> None:
    lab.run(["modprobe", module])
    assert lab.run(f"ls /sys/class/mdev_bus/{module}/mdev_supported_types").stdout.split()


def test_the_module_of_the_lab_is_installed(lab: Lab) -> None:
    assert "vgpulab.ko" in lab.run("modinfo -n vgpulab").stdout


def test_a_command_past_its_deadline_is_not_a_death(lab: Lab) -> None:
    with pytest.raises(CommandFailed, match="deadline"):
        lab.run(["sleep", "60"], timeout=2)
    assert lab.alive()


def test_a_panic_differs_from_a_failure(lab: Lab) -> None:
    with pytest.raises(CommandFailed, match="status 3"):
        lab.run("exit 3")
    with pytest.raises(LabDied, match="panic"):
        lab.run("echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger", timeout=20)
    assert not lab.alive()


def test_the_lab_comes_back_after_a_death(lab: Lab) -> None:
    assert lab.run("systemctl is-system-running").stdout.strip() == "running"


@pytest.mark.parametrize("hard", [False, True], ids=["in-good-order", "reset-button"])
def test_a_reboot_keeps_files_and_loses_devices(lab: Lab, hard: bool) -> None:
    lab.run(f"modprobe igb && echo 7 > {IGB}/sriov_numvfs && touch /root/kept && sync")
    lab.reboot(hard=hard)
    assert lab.run("ls /root/kept").stdout
    assert lab.run("systemctl is-system-running").stdout.strip() == "running"
    assert lab.run(f"cat {IGB}/sriov_numvfs").stdout.strip() == "0"
    assert "default" in lab.run("virsh net-list --name").stdout.split()


def test_apparmor_confines_an_ordinary_qemu(lab_apparmor: Lab) -> None:
    start(lab_apparmor, "tiny", tiny_domain("tiny", disk=True))
    wait_ready(lab_apparmor, "tiny")
    script = "pid=$(cat /run/libvirt/qemu/tiny.pid); ps -o user= -p $pid; cat /proc/$pid/attr/current"
    user, label = lab_apparmor.run(script).stdout.split("\n")[:2]
    assert user.startswith("libvirt")
    assert label.startswith("libvirt-")
    assert "(enforce)" in label
    shut_down(lab_apparmor, "tiny")


@pytest.mark.parametrize(
    ("part", "facts"), [pytest.param("proc", 20, marks=pytest.mark.quick), ("mixed", 25), ("mig", 38)]
)
def test_the_module_has_the_drivers_files_and_refuses_what_its_table_says(lab: Lab, part: str, facts: int) -> None:
    lab.push(recipe.MODULE_SOURCES / "check.sh", "/root")
    result = lab.run(f"KO=$(modinfo -n vgpulab) bash /root/check.sh {part}", check=False, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("PASS") >= facts
