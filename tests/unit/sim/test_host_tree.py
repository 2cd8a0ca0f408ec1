# SPDX-License-Identifier: Apache-2.0
"""The host's virtual tree: what exists and nothing else, errnos of wrong paths, and the real files below /etc."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest

from tests.unit.sim.hosts import GPU, MDEV, PCI, PF, MakeHost, create, refused, remove, uuid
from vgpuctl.sim import SCENARIOS, SimHost
from vgpuctl.sim.tree import DirectoryNode, FileNode, LinkNode, Tree, fixed_directory, text_file

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


def test_directories_are_made_once_and_only_when_entered() -> None:
    made: list[str] = []

    def make() -> dict[str, FileNode]:
        made.append("x")
        return {"f": text_file(1)}

    tree = Tree(fixed_directory({"a": DirectoryNode(make), "b": DirectoryNode(make)}))
    tree.find("/a")
    assert made == []
    for _ in range(3):
        _, node = tree.find("/a/f")
        assert isinstance(node, FileNode)
        assert node.show is not None
        assert node.show() == "1\n"
    assert made == ["x"]


def test_links_in_the_middle_are_followed_and_the_last_one_on_request() -> None:
    tree = Tree(
        fixed_directory(
            {
                "a": fixed_directory({"b": fixed_directory({"f": text_file(1)})}),
                "l": LinkNode("/a"),
                "m": LinkNode("/l/b"),
            }
        )
    )
    assert tree.find("/l/b/f")[0] == "/a/b/f"
    assert tree.find("/m/f")[0] == "/a/b/f"
    assert tree.find("/m")[0] == "/a/b"
    assert isinstance(tree.find("/m", follow=False)[1], LinkNode)
    assert tree.find("/m/../b/./f")[0] == "/a/b/f"


@pytest.mark.parametrize(
    ("path", "number"),
    [("/none", errno.ENOENT), ("/f/x", errno.ENOTDIR), ("/f/..", errno.ENOTDIR), ("/dead/x", errno.ENOENT),
     ("/loop/x", errno.ELOOP)],
)  # fmt: skip
def test_what_is_not_there(path: str, number: int) -> None:
    tree = Tree(
        fixed_directory(
            {"f": text_file(1), "dead": LinkNode("/gone"), "loop": LinkNode("/pool"), "pool": LinkNode("/loop")}
        )
    )
    refused(number, lambda: tree.find(path))


def test_wrong_paths_have_the_kernels_errno(make: MakeHost) -> None:
    host = make("a100-40")
    refused(errno.ENOENT, lambda: host.sysfs.read("/sys/none"))
    refused(errno.ENOENT, lambda: host.sysfs.listdir("/sys/bus/none/devices"))
    refused(errno.EISDIR, lambda: host.sysfs.read(PF))
    refused(errno.EISDIR, lambda: host.sysfs.write(PF, "1"))
    refused(errno.ENOTDIR, lambda: host.sysfs.listdir(f"{PF}/vendor"))
    refused(errno.ENOTDIR, lambda: host.sysfs.read(f"{PF}/vendor/x"))
    refused(errno.EINVAL, lambda: host.sysfs.readlink(f"{PF}/vendor"))
    refused(errno.EACCES, lambda: host.sysfs.write(f"{PF}/vendor", "1"))
    refused(errno.EACCES, lambda: remove(host, f"{PF}/vendor"))
    refused(errno.EACCES, lambda: host.sysfs.read("/sys/bus/pci/drivers_probe"))


def test_paths_are_followed_as_the_kernel_does(make: MakeHost) -> None:
    host = make("a100-40")
    assert host.sysfs.read(f"{PF}/virtfn0/physfn/virtfn1/../vendor") == "0x8086\n", "the port is above"
    assert host.sysfs.read("/sys//bus/pci/devices/../devices/0000:3b:00.0/vendor") == "0x10de\n"
    assert host.sysfs.listdir("/") == ("dev", "etc", "proc", "sys", "usr")
    assert host.sysfs.listdir("/sys/bus/pci/") == ("devices", "drivers", "drivers_probe")


def test_etc_has_real_files_in_the_state_directory(make: MakeHost, tmp_path: Path) -> None:
    host = make("a100-40")
    refused(errno.ENOENT, lambda: host.sysfs.read("/etc/vgpuctl/host.yaml"))
    refused(errno.ENOENT, lambda: host.sysfs.write("/etc/vgpuctl/host.yaml", "x"))
    refused(errno.ENOENT, lambda: host.sysfs.listdir("/etc/vgpuctl/templates"))
    real = tmp_path / "host.state" / "etc" / "vgpuctl" / "host.yaml"
    real.write_text("version: 1\n")
    assert host.sysfs.read("/etc/vgpuctl/host.yaml") == "version: 1\n"
    host.sysfs.write("/etc/vgpuctl/host.yaml", "version: 1 # mine\n")
    assert real.read_text() == "version: 1 # mine\n"
    assert host.sysfs.listdir("/etc/vgpuctl") == ("host.yaml",)
    assert host.sysfs.listdir("/etc") == ("libvirt", "machine-id", "ssh", "vgpuctl")
    assert host.sysfs.read("/etc/machine-id") == f"{host.machine_id}\n"


def test_etc_does_not_lead_out(make: MakeHost, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    host = make("a100-40")
    with pytest.raises(OSError, match="No such file"):
        host.sysfs.read("/etc/../../secret")


def test_kept_files_have_real_permissions_and_others_the_kernels(make: MakeHost, tmp_path: Path) -> None:
    host = make("a100-40")
    (tmp_path / "host.state" / "etc" / "vgpuctl" / "host.yaml").touch(mode=0o600)
    assert host.sysfs.permissions("/etc/vgpuctl/host.yaml").mode == 0o600
    assert host.sysfs.permissions("/run/vgpuctl").mode == 0o700
    assert host.sysfs.permissions(PF).mode == 0o755
    refused(errno.ENOENT, lambda: host.sysfs.permissions("/run/vgpuctl/none"))
