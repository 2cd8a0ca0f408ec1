# SPDX-License-Identifier: Apache-2.0
"""Opening, rebooting and forgetting a simulated host; its hardware; who holds which device node."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.sim.hosts import GPU, MDEV, PF, MakeHost, create, mdev_device, pci_device, run_vm, set_type, uuid, vf
from vgpuctl.errors import HostCannot, InvalidInput, NotFound, Stuck
from vgpuctl.model.names import is_pci_address
from vgpuctl.model.vm import ProcessId, VmState
from vgpuctl.ports.devices import Nvml, Sysfs
from vgpuctl.ports.libvirt import Hypervisor, Storage
from vgpuctl.sim import SCENARIOS, open_host, reset_host
from vgpuctl.sim.host import _read_source
from vgpuctl.sim.machine import build_machine, version_number
from vgpuctl.sim.scenario import compile_scenario


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_built_in_scenario_opens(make: MakeHost, name: str) -> None:
    host = make(name)
    assert host.title
    ports: tuple[Sysfs, Nvml, Hypervisor, Storage] = (host.sysfs, host.nvml, host.hypervisor, host.storage)
    assert all(ports)


def test_state_lives_below_xdg_state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    host = open_host("a100-40")
    assert host.run_dir == tmp_path / "state" / "vgpuctl" / "a100-40" / "run"
    assert stat.S_IMODE(host.run_dir.parent.stat().st_mode) == 0o700
    (tmp_path / "mine.yaml").write_text("version: 1\n")
    mine = open_host(str(tmp_path / "mine.yaml"))
    assert mine.run_dir.parent.name.startswith("mine-")
    assert open_host(str(tmp_path / "." / "mine.yaml")).run_dir == mine.run_dir
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert open_host("empty").run_dir.is_relative_to(tmp_path / "home" / ".local" / "state")


@pytest.mark.parametrize(
    ("text", "hint"), [("a100", "a100-40"), ("/no/such.yaml", "vgpuctl sim list-scenarios --help")]
)
def test_an_unknown_scenario_names_what_there_is(text: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        open_host(text, state_dir=tmp_path)
    assert hint in str(caught.value.hint)
    with pytest.raises(NotFound):
        open_host(str(tmp_path), state_dir=tmp_path / "x")


def test_a_wrong_file_leaves_no_state(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("version: 1\ngpu: []\n")
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"bad\.yaml:2"):
            open_host(str(file), state_dir=tmp_path / "state")
    file.write_text("version: 1\ngpus: []\n")
    open_host(str(file), state_dir=tmp_path / "state")


def test_a_state_directory_error_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(HostCannot, match="cannot store its state"):
        open_host("empty")


def test_a_state_removed_under_a_command_fails(make: MakeHost, tmp_path: Path) -> None:
    host = make("a100-40")
    (tmp_path / "host.state" / "journal").unlink()
    for call in (lambda: host.sysfs.listdir(PF), lambda: set_type(host, 0, 468)):
        with pytest.raises(InvalidInput, match="was removed"):
            call()


def test_a_reboot_empties_run_and_the_devices_and_keeps_the_disks(make: MakeHost) -> None:
    host, other = make("a100-40"), make("a100-40")
    set_type(host, 0, 468)
    vm = run_vm(host, "vm", 1, pci_device("0000:3b:00.4", managed=False))
    host.storage.create_pool("default", "/var/lib/libvirt/images")
    host.storage.create_volume("default", "disk", 1)
    (host.run_dir / "claims").mkdir()
    (host.run_dir / "claims" / "x").write_text("{}")
    (host.run_dir / "lock").write_text("")
    with pytest.raises(Stuck):
        host.sysfs.write_uninterruptible(f"{PF}/driver/unbind", GPU, gpu=GPU, deadline_seconds=0)
    identity = host.machine_id
    host.reboot()
    assert list(host.run_dir.iterdir()) == []
    for ports in (host, other, make("a100-40")):
        assert ports.sysfs.read(f"{vf(0)}/nvidia/current_vgpu_type") == "0\n"
        assert ports.sysfs.read(f"{PF}/sriov_numvfs") == "16\n"
        assert [d.state for d in ports.hypervisor.domains()] == [VmState.STOPPED]
        assert ports.storage.volume("default", "disk") is not None
        assert ports.stuck_writes() == ()
        assert ports.machine_id == identity
    host.hypervisor.undefine(vm)


def test_a_reboot_takes_vfs_that_the_scenario_does_not_boot(make: MakeHost) -> None:
    host = make("gpus: [{model: Flex 170, vfs: {total: 8, enabled: 2}}]\n")
    host.sysfs.write_uninterruptible(f"{PF}/sriov_numvfs", "0", gpu=GPU, deadline_seconds=1)
    host.sysfs.write(f"{PF}/sriov_numvfs", "8")
    host.reboot()
    assert host.sysfs.read(f"{PF}/sriov_numvfs") == "2\n"


def test_a_reset_forgets_everything(make: MakeHost, tmp_path: Path) -> None:
    host = make("t4")
    create(host, GPU, "nvidia-232", 1)
    run_vm(host, "vm", 1, mdev_device(uuid(1)))
    (tmp_path / "host.state" / "etc" / "vgpuctl" / "host.yaml").write_text("version: 1\n")
    (host.run_dir / "lock").write_text("")
    identity = host.machine_id
    host.reset()
    for ports in (host, make("t4")):
        assert ports.sysfs.listdir(MDEV) == ()
        assert ports.hypervisor.domains() == ()
        assert ports.machine_id != identity
    assert list(host.run_dir.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        host.sysfs.read("/etc/vgpuctl/host.yaml")
    assert reset_host("t4", state_dir=tmp_path / "fresh").hypervisor.domains() == ()


def test_a_running_vm_holds_its_device_nodes(make: MakeHost) -> None:
    host = make("mixed")
    set_type(host, 0, 468)
    vm = run_vm(host, "vm", 1, pci_device("0000:3b:00.4", managed=False))
    group = host.sysfs.readlink(f"{vf(0)}/iommu_group").rpartition("/")[2]
    (number,) = host.sysfs.listdir(f"{vf(0)}/vfio-dev")
    for node in (f"/dev/vfio/{group}", f"/dev/vfio/devices/{number}"):
        (holder,) = host.find_holders((node, "/dev/vfio/7"))
        assert "guest=vm" in holder.command
        assert holder.pid > 1 << 22, "never a real process's pid"
        assert host.is_alive(ProcessId(holder.pid, 1))
    assert host.find_holders(("/dev/vfio/vfio",)) == ()
    assert host.find_holders(()) == ()
    host.hypervisor.destroy(vm)
    assert host.find_holders((f"/dev/vfio/{group}",)) == ()


def test_the_console_is_held(make: MakeHost) -> None:
    host = make("gpus: [{model: RTX 4090, driver: nvidia, backend: passthrough, console: true}]\n")
    assert host.sysfs.read(f"{PF}/boot_vga") == "1\n"
    assert host.sysfs.listdir(f"{PF}/drm") == ("card0", "renderD128")
    assert [holder.command for holder in host.find_holders(("/dev/dri/card0",))] == ["/usr/lib/xorg/Xorg :0"]


def test_a_client_of_nvidias_driver_holds_the_gpus_node(make: MakeHost) -> None:
    host = make("gpus: [{model: A100}, {model: A100, held_by: nv-hostengine}, {model: A100, driver: none}]\n")
    assert [name for name in host.sysfs.listdir("/dev") if name.startswith("nvidia")] == [
        "nvidia0",
        "nvidia1",
        "nvidiactl",
    ]
    assert "Device Minor: \t 1\n" in host.sysfs.read("/proc/driver/nvidia/gpus/0000:3f:00.0/information")
    for nodes in (("/dev/nvidia1",), ("/dev/nvidiactl", "/dev/nvidia0")):
        assert [holder.command for holder in host.find_holders(nodes)] == ["nv-hostengine"]
    assert host.find_holders(("/dev/nvidia0",)) == ()


def test_importing_and_opening_a_known_host_is_light(tmp_path: Path) -> None:
    """Shell completion opens a host: it must not load YAML and XML readers."""
    open_host("a100-40", state_dir=tmp_path).close()
    code = (
        "import sys; from pathlib import Path; from vgpuctl.sim import open_host;"
        f"w = open_host('a100-40', state_dir=Path({str(tmp_path)!r}));"
        "w.sysfs.listdir('/sys/bus/pci/devices'); w.hypervisor.domains();"
        "print(*sorted({'lxml', 'ruamel', 'pydantic', 'libvirt', 'subprocess', 'logging'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=_root())
    assert done.stdout.split() == []


def _root() -> Path:
    return Path(__file__).parents[3]


@pytest.mark.parametrize("name", SCENARIOS)
def test_addresses_paths_and_groups_are_unique(name: str) -> None:
    compiled = compile_scenario(_read_source(name)[0], name)
    machine = build_machine(json.loads(json.dumps(compiled)))
    of_gpus = [function for gpu in machine.gpus.values() for function in gpu.functions]
    assert len({function.address for function in of_gpus}) == len(of_gpus)
    everything = list(machine.functions.values())
    assert {f.address for f in of_gpus} <= machine.functions.keys()
    assert len({function.path for function in everything}) == len(everything)
    virtual = [function.group for function in everything if function.kind == "vf"]
    assert len(set(virtual)) == len(virtual)
    names = [f.serial for f in everything if f.kind in ("pf", "vf", "extra", "nvswitch")]
    groups = [f.group for f in everything if f.kind in ("port", "nvswitch")]
    assert len(set(groups)) == len(groups)
    assert len(set(names)) == len(names)
    assert all(is_pci_address(f.address) for f in everything if f.kind != "parent")


def test_versions() -> None:
    assert version_number("10.0.0") == 10_000_000
    assert version_number("8.2") == 8_002_000
    machine = build_machine(compile_scenario('version: 1\nkernel: "5.14.0-427.el9"\nnvidia: {driver: "535"}\n', "x"))
    assert (machine.kernel, machine.driver_major) == ((5, 14), 535)
