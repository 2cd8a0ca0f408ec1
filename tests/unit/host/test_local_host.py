# SPDX-License-Identifier: Apache-2.0
"""The ports of the real host, its id and clock, and those of a host whose libvirt is not used."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import uuid

import pytest

from vgpuctl.errors import HostCannot, InvalidInput
from vgpuctl.host.absent import AbsentHypervisor, AbsentStorage
from vgpuctl.host.files import read_machine_id
from vgpuctl.host.local_host import open_local_host
from vgpuctl.host.processes import HostClock, HostProcesses
from vgpuctl.ports.host import Host
from vgpuctl.ports.libvirt import Hypervisor, Storage

ID = "3d1219c7c4c5404aaa1f6d2a48adfda4"


@pytest.fixture
def captured(tmp_path):
    (tmp_path / "sys/class/mdev_bus").mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    return tmp_path


def test_a_captured_tree_is_looked_at_and_nothing_else(captured):
    ports = open_local_host(root=str(captured))
    assert ports.sysfs.listdir("/sys/class") == ("mdev_bus",)
    assert ports.nvml.status().reason == "--root"
    assert "--root" in str(ports.hypervisor.status().reason)
    with pytest.raises(HostCannot):
        ports.hypervisor.domains()
    with pytest.raises(HostCannot):
        ports.storage.image("/etc/hostname")
    assert "read-only" in ports.read_only_reason
    assert (ports.claims.all(), ports.machine_id) == ((), "")
    with pytest.raises(OSError, match="this host is read-only"):
        ports.sysfs.write_uninterruptible("/sys/x", "1", gpu="x", deadline_seconds=1)
    assert sorted(path.name for path in captured.iterdir()) == ["proc", "sys"]


@pytest.mark.parametrize("run", ["run", "elsewhere"])
def test_a_captures_claims_and_stuck_writes_stay_as_they_are(captured, run):
    (captured / run / "vgpuctl/stuck").mkdir(parents=True)
    if run != "run":
        (captured / "run").symlink_to(f"/{run}")
    record = {"process": {"pid": 4711, "start_ticks": 1}, "gpu": "0000:3b:00.0", "path": "/sys/x", "text": "1"}
    file = captured / run / "vgpuctl/stuck/4711"
    file.write_text(json.dumps(record))
    ports = open_local_host(root=str(captured))
    assert [write.gpu for write in ports.claims.stuck_writes()] == ["0000:3b:00.0"]
    with ports.claims.lock(0):
        assert ports.claims.is_locked
    (captured / "proc/1").mkdir()
    assert ports.claims.stuck_writes() == ()
    assert [path.name for path in (captured / run / "vgpuctl").rglob("*")] == ["stuck", "4711"]


def test_a_captured_run_that_leads_nowhere_is_refused(captured):
    (captured / "run").symlink_to("/run")
    with pytest.raises(InvalidInput, match="cannot be followed"):
        open_local_host(root=str(captured))


def test_a_connection_may_be_named_for_it(captured):
    ports = open_local_host(root=str(captured), connect="test:///default")
    assert [domain.name for domain in ports.hypervisor.domains()] == ["test"]
    assert ports.read_only_reason is not None


def test_a_root_that_is_not_there(tmp_path):
    with pytest.raises(InvalidInput, match="does not exist"):
        open_local_host(root=str(tmp_path / "none"))


def test_a_remote_connection_is_refused():
    with pytest.raises(InvalidInput):
        open_local_host(connect="qemu+ssh://other/system")


def test_this_host():
    ports = open_local_host(connect="test:///default", new_uuid=lambda: "u")
    assert ports.name == "local"
    assert ports.sysfs.read("/proc/self/comm")
    assert ports.operations.current().process == HostProcesses().current_process()
    assert ports.new_uuid() == "u"
    assert (ports.read_only_reason is None) == bool(ports.machine_id)


def test_its_uuids_are_random():
    ports = open_local_host()
    assert uuid.UUID(ports.new_uuid()).version == 4
    assert ports.new_uuid() != ports.new_uuid()


def test_one_lock_for_all_ports(captured, tmp_path):
    ports = open_local_host(root=str(captured), connect="test:///default")
    assert isinstance(ports, Host)
    with ports.claims.lock(0):
        with pytest.raises(AssertionError):
            ports.hypervisor.domains()
        with pytest.raises(AssertionError):
            ports.storage.pool("default-pool")
        with pytest.raises(AssertionError):
            ports.sysfs.write("/sys/x", "1")


@pytest.mark.parametrize("code", ["import vgpuctl.host", "import vgpuctl.host.local_host"])
def test_importing_it_loads_nothing_heavy(code):
    heavy = "{'libvirt', 'pynvml', 'lxml', 'subprocess'}"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(sorted({heavy} & set(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_making_it_does_not_load_libvirt_either():
    code = (
        "from vgpuctl.host.local_host import open_local_host; open_local_host(); import sys; "
        "print(sorted({'libvirt', 'pynvml', 'lxml', 'subprocess'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(("euid", "who"), [(0, None), (65534, "user nobody"), (4_000_000_000, "uid 4000000000")])
def test_a_non_root_user_is_known_before_any_write(euid: int, who: str | None) -> None:
    assert open_local_host(euid=euid).unprivileged_user == who


def test_it_is_read_below_the_root(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text(f"{ID}\n")
    assert read_machine_id(str(tmp_path)) == ID
    assert read_machine_id(f"{tmp_path}/") == ID


def test_dbus_keeps_one_too(tmp_path):
    (tmp_path / "var/lib/dbus").mkdir(parents=True)
    (tmp_path / "var/lib/dbus/machine-id").write_text(ID)
    assert read_machine_id(str(tmp_path)) == ID


@pytest.mark.parametrize("target", ["/etc/machine-id", "../../../../../../etc/machine-id"])
def test_dbuss_link_leads_to_the_captures_own_file(tmp_path, target):
    (tmp_path / "var/lib/dbus").mkdir(parents=True)
    (tmp_path / "var/lib/dbus/machine-id").symlink_to(target)
    assert read_machine_id(str(tmp_path)) is None
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("uninitialized\n")
    assert read_machine_id(str(tmp_path)) is None
    (tmp_path / "etc/machine-id").write_text(ID)
    assert read_machine_id(str(tmp_path)) == ID


@pytest.mark.parametrize("text", [None, "", "uninitialized\n", "xyz"])
def test_a_host_that_was_never_booted_has_none(tmp_path, text):
    (tmp_path / "etc").mkdir()
    if text is not None:
        (tmp_path / "etc/machine-id").write_text(text)
    assert read_machine_id(str(tmp_path)) is None


def test_it_goes_on():
    clock = HostClock()
    before, wall = clock.monotonic(), clock.now()
    clock.sleep(0.001)
    assert clock.monotonic() >= before + 0.001
    assert wall > 1_700_000_000


def test_its_status_says_why():
    status = AbsentHypervisor("--root").status()
    assert not status.available
    assert "libvirt is not used: --root" in str(status.reason)


@pytest.mark.parametrize(("port", "absent"), [(Hypervisor, AbsentHypervisor), (Storage, AbsentStorage)])
def test_every_other_call_names_what_is_missing(port, absent):
    calls = [name for name in vars(port) if not name.startswith("_") and name != "status"]
    assert len(calls) > 7
    for name in calls:
        call = getattr(absent("--root"), name)
        needed = [p for p in inspect.signature(call).parameters.values() if p.default is p.empty]
        with pytest.raises(HostCannot, match="--root") as caught:
            call(**{p.name: "x" for p in needed})
        assert caught.value.facts["check"] == "libvirt"
