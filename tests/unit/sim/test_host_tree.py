# SPDX-License-Identifier: Apache-2.0
"""The host's virtual tree: what exists, and nothing else."""

from __future__ import annotations

import contextlib
import errno

import pytest

from tests.unit.sim.hosts import GPU, MDEV, PCI, PF, MakeHost, create, refused, uuid
from vgpuctl.sim import SCENARIOS, SimHost

ACTS_WHEN_READ = "reset_gpu"
NEED_A_VGPU = ("placement_id", "gpu_instance_id")


def link(host: SimHost, path: str) -> str | None:
    try:
        return host.sysfs.readlink(path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return None


def walk(host: SimHost, path: str) -> list[str]:
    """Return every path below a directory, without following links."""
    result = []
    for name in host.sysfs.listdir(path):
        below = f"{path}/{name}"
        result.append(below)
        if link(host, below) is None:
            with contextlib.suppress(NotADirectoryError):
                result += walk(host, below)
    return result


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_link_leads_somewhere_and_every_file_reads(make: MakeHost, name: str) -> None:
    host = make(name)
    if "mdev_bus" in host.sysfs.listdir("/sys/class") and name == "a16":
        create(host, "0000:3b:00.4", "nvidia-713", 1)
    for path in walk(host, "/sys") + walk(host, "/proc"):
        if path.endswith(ACTS_WHEN_READ):
            continue
        target = link(host, path)
        if target is not None:
            assert not target.startswith("/"), path
            host.sysfs.listdir(path)
            continue
        with contextlib.suppress(IsADirectoryError, PermissionError):
            try:
                host.sysfs.read(path)
            except OSError as error:
                if path.rpartition("/")[2] not in NEED_A_VGPU or error.errno != errno.ENXIO:
                    raise


def test_a_function_and_its_port(make: MakeHost) -> None:
    host = make("a100-40")
    assert host.sysfs.read(f"{PF}/vendor") == "0x10de\n"
    assert host.sysfs.read(f"{PF}/device") == "0x20f1\n"
    assert host.sysfs.read(f"{PF}/class") == "0x030200\n"
    assert host.sysfs.read(f"{PF}/numa_node") == "0\n"
    assert host.sysfs.read(f"{PCI}/0000:3a:00.0/class") == "0x060400\n"
    assert host.sysfs.readlink(f"{PF}/subsystem") == "../../../../bus/pci"
    assert host.sysfs.readlink(f"{PF}/driver") == "../../../../bus/pci/drivers/nvidia"
    assert GPU in host.sysfs.listdir("/sys/bus/pci/drivers/nvidia")
    assert host.sysfs.listdir("/sys/kernel/iommu_groups/20/devices") == (GPU,)
    assert "boot_vga" not in host.sysfs.listdir(PF), "a 3D controller is no VGA device"


def test_proc(make: MakeHost) -> None:
    host = make("a100-40")
    assert "Model: \t\t NVIDIA A100-PCIE-40GB\n" in host.sysfs.read(f"/proc/driver/nvidia/gpus/{GPU}/information")
    assert "  550.90.05" in host.sysfs.read("/proc/driver/nvidia/version")
    assert host.sysfs.read("/proc/sys/kernel/osrelease") == "6.8.0-45-generic\n"
    assert "iommu=on" in host.sysfs.read("/proc/cmdline")
    assert host.sysfs.read("/sys/module/nvidia/version") == "550.90.05\n"
    refused(errno.ENOENT, lambda: make("empty", "other").sysfs.read("/proc/driver/nvidia/version"))


@pytest.mark.parametrize(("text", "running"), [("t4", 1), ("gpus: [{model: V710}]\n", 0)])
def test_the_vgpu_manager_service_runs_with_nvidias_driver(make: MakeHost, text: str, running: int) -> None:
    host, services = make(text), "/sys/fs/cgroup/system.slice"
    names = host.sysfs.listdir(services)
    assert names == ("nvidia-vgpu-mgr.service",) * running
    assert all(host.sysfs.read(f"{services}/{name}/cgroup.procs").strip().isdecimal() for name in names)


def test_a_host_without_mdev_has_no_mdev_bus(make: MakeHost) -> None:
    host = make("a100-40")
    refused(errno.ENOENT, lambda: host.sysfs.listdir(MDEV))
    refused(errno.ENOENT, lambda: host.sysfs.listdir("/sys/class/mdev_bus"))


def test_reading_what_resets_a_card_is_a_bug(make: MakeHost) -> None:
    host = make("gpus: [{model: V710}]\n")
    with pytest.raises(AssertionError, match="resets the card"):
        host.sysfs.read(f"{PF}/reset_gpu")


def test_a_new_mdev_is_everywhere_at_once(make: MakeHost) -> None:
    host = make("t4")
    before = len(host.sysfs.listdir("/sys/kernel/iommu_groups"))
    create(host, GPU, "nvidia-232", 1)
    assert host.sysfs.listdir(MDEV) == (uuid(1),)
    assert uuid(1) in host.sysfs.listdir(PF)
    assert len(host.sysfs.listdir("/sys/kernel/iommu_groups")) == before + 1


def test_gpus_behind_one_switch_share_the_path_of_its_upstream_port(make: MakeHost) -> None:
    sysfs = make("h100-pcie-x8").sysfs
    devices = "/sys/bus/pci/devices"
    first, second = (sysfs.readlink(f"{devices}/0000:{bus}:00.0") for bus in ("1a", "1b"))
    assert first == "../../../devices/pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0"
    assert first.split("/")[:-2] == second.split("/")[:-2]
    assert {"0000:19:00.0", "0000:19:01.0", "class"} <= set(sysfs.listdir(f"{devices}/0000:18:00.0"))
    assert sysfs.read("/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:01.0/class") == "0x060400\n"


def test_an_nvswitch_is_a_bridge_device_of_nvidia_in_a_group_of_its_own(make: MakeHost) -> None:
    sysfs = make("hgx-h100").sysfs
    path = "/sys/bus/pci/devices/0000:03:00.0"
    assert [sysfs.read(f"{path}/{name}") for name in ("class", "vendor", "device")] == [
        "0x068000\n",
        "0x10de\n",
        "0x22a3\n",
    ]
    group = sysfs.readlink(f"{path}/iommu_group").rpartition("/")[2]
    assert sysfs.listdir(f"/sys/kernel/iommu_groups/{group}/devices") == ("0000:03:00.0",)
