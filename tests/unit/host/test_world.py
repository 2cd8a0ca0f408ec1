# SPDX-License-Identifier: Apache-2.0
"""The real host put together."""

import json
import subprocess
import sys
import uuid

import pytest

from vgpuctl.errors import HostCannot, InvalidInput
from vgpuctl.host.world import local_world
from vgpuctl.model.world import World

ID = "3d1219c7c4c5404aaa1f6d2a48adfda4"


@pytest.fixture
def captured(tmp_path):
    (tmp_path / "sys/class/mdev_bus").mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    return tmp_path


def test_a_captured_tree_is_looked_at_and_nothing_else(captured):
    world = local_world(root=str(captured))
    assert world.sysfs.listdir("/sys/class") == ("mdev_bus",)
    assert world.nvml.status().reason == "--root"
    assert "--root" in str(world.hypervisor.status().reason)
    with pytest.raises(HostCannot):
        world.hypervisor.domains()
    with pytest.raises(HostCannot):
        world.storage.image("/etc/hostname")
    assert "only looked at" in world.read_only
    assert (world.claims.all(), world.machine_id) == ((), "")
    with pytest.raises(OSError, match="nothing is written"):
        world.sysfs.write_parked("/sys/x", "1", gpu="x", deadline_seconds=1)
    assert sorted(path.name for path in captured.iterdir()) == ["proc", "sys"]


@pytest.mark.parametrize("run", ["run", "elsewhere"])
def test_a_captures_claims_and_stuck_writes_stay_as_they_are(captured, run):
    (captured / run / "vgpuctl/stuck").mkdir(parents=True)
    if run != "run":
        (captured / "run").symlink_to(f"/{run}")
    record = {"process": {"pid": 4711, "start_ticks": 1}, "gpu": "0000:3b:00.0", "path": "/sys/x", "text": "1"}
    file = captured / run / "vgpuctl/stuck/4711"
    file.write_text(json.dumps(record))
    world = local_world(root=str(captured))
    assert [write.gpu for write in world.claims.stuck()] == ["0000:3b:00.0"]
    with world.claims.lock(0):
        assert world.claims.held
    (captured / "proc/1").mkdir()
    assert world.claims.stuck() == ()
    assert [path.name for path in (captured / run / "vgpuctl").rglob("*")] == ["stuck", "4711"]


def test_a_captured_run_that_leads_nowhere_is_refused(captured):
    (captured / "run").symlink_to("/run")
    with pytest.raises(InvalidInput, match="cannot be followed"):
        local_world(root=str(captured))


def test_a_connection_may_be_named_for_it(captured):
    world = local_world(root=str(captured), connect="test:///default")
    assert [domain.name for domain in world.hypervisor.domains()] == ["test"]
    assert world.read_only is not None


def test_a_root_that_is_not_there(tmp_path):
    with pytest.raises(InvalidInput, match="no directory"):
        local_world(root=str(tmp_path / "none"))


def test_a_remote_connection_is_refused():
    with pytest.raises(InvalidInput):
        local_world(connect="qemu+ssh://other/system")


def test_this_host():
    world = local_world(connect="test:///default", new_uuid=lambda: "u")
    assert world.name == "local"
    assert world.sysfs.read("/proc/self/comm")
    assert world.processes.alive(world.processes.this())
    assert world.new_uuid() == "u"
    assert (world.read_only is None) == bool(world.machine_id)


def test_its_uuids_are_random():
    world = local_world()
    assert uuid.UUID(world.new_uuid()).version == 4
    assert world.new_uuid() != world.new_uuid()


def test_one_lock_for_all_seams(captured, tmp_path):
    world = local_world(root=str(captured), connect="test:///default")
    assert isinstance(world, World)
    with world.claims.lock(0):
        with pytest.raises(AssertionError):
            world.hypervisor.domains()
        with pytest.raises(AssertionError):
            world.storage.pool("default-pool")
        with pytest.raises(AssertionError):
            world.sysfs.write("/sys/x", "1")


@pytest.mark.parametrize("code", ["import vgpuctl.host", "import vgpuctl.host.world"])
def test_importing_it_loads_nothing_heavy(code):
    heavy = "{'libvirt', 'pynvml', 'lxml', 'subprocess', 'tempfile', 'uuid'}"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(sorted({heavy} & set(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_making_it_does_not_load_libvirt_either():
    code = (
        "from vgpuctl.host.world import local_world; local_world(); import sys; "
        "print(sorted({'libvirt', 'pynvml', 'lxml', 'subprocess'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(("euid", "who"), [(0, None), (65534, "user nobody"), (4_000_000_000, "uid 4000000000")])
def test_who_is_not_root_is_known_before_anything_is_written(euid: int, who: str | None) -> None:
    assert local_world(euid=euid).unprivileged == who
