# SPDX-License-Identifier: Apache-2.0
"""The hook as libvirt runs it: a shell script with the domain's XML on stdin, and one Python process for our VMs.

Size: what the hook does at a start and at an end, and how little it loads, on the same hosts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.worlds import EagerClock, Silent, create, wish
from vgpuctl.engine.create import create_vm
from vgpuctl.engine.observe import Want, observe
from vgpuctl.errors import InUse, Temporary, VgpuctlError
from vgpuctl.hook import run as hook
from vgpuctl.host.nvml import NoNvml
from vgpuctl.model.vm import VmState
from vgpuctl.model.world import World
from vgpuctl.plan.installation import hook_text
from vgpuctl.sim import open_world
from vgpuctl.simulated import simulated_world
from vgpuctl.value import replace

ROOT = Path(__file__).resolve().parents[3]
FOREIGN = """<domain type='kvm'>
  <name>his</name>
  <uuid>11111111-2222-4333-8444-555555555555</uuid>
  <metadata>
    <other xmlns='urn:other:1'/>
  </metadata>
  <memory unit='KiB'>1024</memory>
  <description>urn:vgpuctl:1 is not his</description>
</domain>
"""
TYPES = "/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type"


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))


def script(tmp_path: Path, scenario: str = "a100-40", python: str = sys.executable) -> Path:
    """The installed script, pointed at a simulated host by an argument of what it starts."""
    path = tmp_path / "hook"
    path.write_text(hook_text(python).replace("vgpuctl.hook", f"vgpuctl.hook --simulated {scenario}"))
    path.chmod(0o755)
    return path


def begin(path: Path, xml: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [path, *(words or ("vm", "prepare", "begin", "-"))],
        input=xml, capture_output=True, text=True, timeout=60, check=False, env=environment(),
    )  # fmt: skip


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]}


def xml_of(world: World, name: str = "vm") -> str:
    record = world.hypervisor.find_domain(name)
    assert record is not None
    return record.xml


def booted(scenario: str = "a100-40", profile: str = "A100-4C", *names: str) -> World:
    world = simulated_world(scenario)
    for name in names or ("vm",):
        create(world, wish(profile, name=name), start=False)
    open_world(scenario).reboot()
    return simulated_world(scenario)


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q"), ("a16", "A16-2Q")])
def test_a_plain_start_after_a_reboot_works(tmp_path, scenario, profile):
    world = booted(scenario, profile)
    path = script(tmp_path, scenario)
    done = begin(path, xml_of(world))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    world.hypervisor.start(world.hypervisor.find_domain("vm").uuid)
    assert world.hypervisor.find_domain("vm").state is VmState.RUNNING
    before = world.claims.all()
    assert begin(path, xml_of(world)).returncode == 0
    assert world.claims.all() == before


@pytest.mark.parametrize(
    ("xml", "words"),
    [
        ('<vm xmlns="urn:vgpuctl:1" reserve="always"/>\n<memory/>\n', ("vm", "release", "end", "shutdown")),
        (FOREIGN, ("his", "prepare", "begin", "-")),
        ("<domain/>", ("his", "prepare", "begin", "-")),
        ("", ("his", "prepare", "begin", "-")),
        ("<vm xmlns='urn:vgpuctl:1'/>\n", ("vm", "started", "begin", "-")),
        ("<vm xmlns='urn:vgpuctl:1'/>\n", ("vm", "release", "end", "migrated")),
        ("<vm xmlns='urn:vgpuctl:1'/>\n", ("vm", "reconnect", "begin", "-")),
        ("<vm xmlns='urn:vgpuctl:1'/>\n", ("vm", "migrate", "begin", "-")),
    ],
)
def test_other_vms_and_other_operations_never_start_python(tmp_path, xml, words):
    done = begin(script(tmp_path, python="/nonexistent/python"), xml, *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    ours = begin(script(tmp_path, python="/nonexistent/python"), "<vm xmlns='urn:vgpuctl:1'/>\n")
    assert ours.returncode != 0, "this test can see whether Python is started"
    lends = '<vm xmlns="urn:vgpuctl:1" reserve="running"/>\n'
    assert begin(script(tmp_path, python="/nonexistent/python"), lends, "vm", "release", "end").returncode != 0


def test_a_place_that_somebody_took_refuses_the_start_in_one_line(tmp_path):
    world = booted()
    world.sysfs.write(TYPES, "469\n")
    done = begin(script(tmp_path), xml_of(world))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "0000:3b:00.4 carries A100-5C, not A100-4C as vm needs" in done.stderr
    assert "vgpuctl show-gpu" in done.stderr
    assert world.claims.all() == ()


def given_by_hand(world: World, carrier: str, type_id: str) -> None:
    for text in ("0\n", f"{type_id}\n"):
        world.sysfs.write(f"/sys/bus/pci/devices/{carrier}/nvidia/current_vgpu_type", text)


def test_a_vgpu_that_was_given_another_type_by_hand_refuses_the_start(tmp_path):
    world = simulated_world("a100-40")
    create(world, wish("A100-4C", name="vm"), start=False)
    path, xml = script(tmp_path), xml_of(world)
    assert begin(path, xml).returncode == 0
    given_by_hand(world, "0000:3b:00.4", "469")
    done = begin(path, xml)
    assert done.returncode == 1
    assert "0000:3b:00.4 carries A100-5C, not A100-4C as vm needs; somebody changed it by hand" in done.stderr


def test_a_type_that_nothing_names_any_more_is_told_by_its_number(tmp_path):
    world = replace(simulated_world("l40s-x4"), clock=EagerClock())
    create(world, wish("L40S-48Q", name="vm"), start=False)
    quiet = replace(world, nvml=NoNvml("libvirt waits"))
    hook.prepare(quiet, xml_of(world))
    carrier = world.claims.all()[0].carrier
    given_by_hand(world, carrier, "1166")
    with pytest.raises(InUse, match=f"{carrier} carries the type 1166, not L40S-48Q as vm needs"):
        hook.prepare(quiet, xml_of(world))


def test_a_start_with_everything_in_place_reads_no_types(tmp_path):
    world = simulated_world("a100-40")
    create(world, wish("A100-4C", name="vm"), start=False)
    read: list[str] = []

    class Noting:
        def __getattr__(self, name: str) -> object:
            return getattr(world.sysfs, name)

        def read(self, path: str) -> str:
            read.append(path)
            return world.sysfs.read(path)

    hook.prepare(replace(world, sysfs=Noting()), xml_of(world))
    assert TYPES in read
    assert not [path for path in read if "creatable_vgpu_types" in path]


def test_a_place_that_another_vm_has_claimed_names_that_vm(tmp_path):
    world = booted()
    create(world, wish("A100-4C", name="other"), start=False)
    world.claims.add(replace(world.claims.all()[0], carrier="0000:3b:00.4"))
    done = begin(script(tmp_path), xml_of(world))
    assert done.returncode == 1
    assert "0000:3b:00.4 is claimed for VM other" in done.stderr


def test_a_copy_is_not_given_the_originals_vgpu(tmp_path):
    world = booted()
    copy = xml_of(world).replace(world.machine_id, "f" * 32)
    assert begin(script(tmp_path), copy).returncode == 0
    assert world.claims.all() == ()


def test_a_record_that_cannot_be_read_refuses_the_start(tmp_path):
    world = booted()
    done = begin(script(tmp_path), xml_of(world).replace('index="0"', 'index="x"').replace("index='0'", "index='x'"))
    assert done.returncode == 1
    assert "the VM's record cannot be read" in done.stderr


LATE = "vgpuctl: the vGPU was not ready within 20 seconds; start the VM again\n"
"""What a start is told that a busy machine did not let finish in time."""


def storm(path: str, world: World, names: list[str]) -> dict[str, tuple[int, str]]:
    """Call the hook for all these VMs at once, as libvirt does; return each one's exit status and stderr."""
    children = {}
    for name in names:
        children[name] = subprocess.Popen(
            [path, name, "prepare", "begin", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(),
        )  # fmt: skip
    for name, child in children.items():
        child.stdin.write(xml_of(world, name))
        child.stdin.close()
    return {name: (child.wait(), child.stderr.read()) for name, child in children.items()}


def test_fifty_starts_at_once_all_get_their_vgpu_while_vms_are_listed(tmp_path):
    names = [f"vdi-{n:03d}" for n in range(50)]
    world = simulated_world("l40s-x4")
    for name in names:
        create_vm(world, wish("L40S-1Q", name=name), start=False, dry_run=False, wait_seconds=60, progress=Silent())
    open_world("l40s-x4").reboot()
    world = simulated_world("l40s-x4")
    path = script(tmp_path, "l40s-x4")
    stop = threading.Event()
    looks: list[int] = []

    def listing() -> None:
        while not stop.is_set():
            looks.append(len(observe(simulated_world("l40s-x4"), Want(models=False)).vms))

    listed = threading.Thread(target=listing)
    listed.start()
    ended = storm(path, world, names)
    late = [name for name, answer in ended.items() if answer == (1, LATE)]
    again = [begin(path, xml_of(world, name)) for name in late]
    stop.set()
    listed.join()
    assert {answer for name, answer in ended.items() if name not in late} <= {(0, "")}
    assert len(late) < 50
    assert [done.returncode for done in again] == [0] * len(late)
    assert set(looks) == {50}
    assert len(world.claims.all()) == 50
    present = [v for v in observe(world, Want(models=False)).vgpus if v.present]
    assert len(present) == 50


NOT_FOR_THE_HOOK = """
    vgpuctl.spec vgpuctl.host.world vgpuctl.host.system vgpuctl.host.journal vgpuctl.host.vendor vgpuctl.host.kernel_log
    vgpuctl.host.scratch vgpuctl.host.virt.domains vgpuctl.host.virt.storage vgpuctl.engine.create vgpuctl.engine.many
    vgpuctl.engine.power vgpuctl.engine.reconcile vgpuctl.capacity.by_policy vgpuctl.capacity.kinds vgpuctl.placement
    vgpuctl.domain.parse vgpuctl.domain.edit vgpuctl.domain.render vgpuctl.cli vgpuctl.remote vgpuctl.doctor vgpuctl.sim
    asyncio shlex tempfile
"""
"""What takes time to load and has no use where a VM of ours starts."""


def test_nothing_heavy_and_nothing_beside_the_standard_library_is_loaded():
    code = "import sys, vgpuctl.hook.run, vgpuctl.host.quiet; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    loaded = set(done.stdout.split())
    tops = {name.partition(".")[0] for name in loaded}
    assert {name for name in tops - set(sys.stdlib_module_names) if not name.startswith("__")} == {"vgpuctl"}
    assert sorted(loaded & set(NOT_FOR_THE_HOOK.split())) == []


def test_the_deadline_says_try_again_and_never_no_capacity():
    hook.with_deadline(0.01)
    with pytest.raises(Temporary, match="not ready within") as raised:
        threading.Event().wait(10)
    assert raised.value.status == 75
    assert raised.value.hint == "start the VM again"


def test_libvirt_is_not_called(tmp_path):
    from vgpuctl.host.virt.absent import AbsentHypervisor

    world = booted()
    xml = xml_of(world)
    hook.prepare(replace(world, hypervisor=AbsentHypervisor("it waits"), clock=EagerClock()), xml)
    assert len(world.claims.all()) == 1


def lending(scenario: str, profile: str, *names: str) -> World:
    """A host with VMs that are off and reserve their places only while they run."""
    world = simulated_world(scenario)
    for name in names:
        create(world, wish(profile, name=name, reserve="running"), start=False)
    return world


def devices(world: World) -> set[str]:
    """Every carrier with a claim or a device."""
    seen = observe(world, Want(models=False))
    return {c.carrier for c in seen.claims} | {v.carrier for v in seen.vgpus if v.present}


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q"), ("a16", "A16-2Q")])
def test_a_plain_start_takes_a_place_and_the_end_gives_it_back(tmp_path, scenario, profile):
    world = lending(scenario, profile, "vm")
    path = script(tmp_path, scenario)
    assert devices(world) == set()
    assert begin(path, xml_of(world)).stderr == ""
    uuid = world.hypervisor.find_domain("vm").uuid
    world.hypervisor.start(uuid)
    assert len(devices(world)) == 1
    for reason in ("saved", "migrated"):
        assert begin(path, xml_of(world), "vm", "release", "end", reason).returncode == 0
        assert len(devices(world)) == 1
    world.hypervisor.destroy(uuid)
    done = begin(path, xml_of(world), "vm", "release", "end", "shutdown")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert devices(world) == set()
    assert begin(path, xml_of(world), "vm", "release", "end", "failed").returncode == 0


def test_a_vm_that_keeps_its_place_always_keeps_it_when_it_ends(tmp_path):
    world = simulated_world("a100-40")
    create(world, wish("A100-4C", name="vm"))
    world.hypervisor.destroy(world.hypervisor.find_domain("vm").uuid)
    before = devices(world)
    hook.release(world, xml_of(world))
    assert devices(world) == before != set()


class WithSave:
    """The files of a host on which libvirt keeps a managed save of some VMs."""

    def __init__(self, inner, *names):
        self._inner, self._names = inner, names

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def listdir(self, path):
        return self._names if path == "/var/lib/libvirt/qemu/save" else self._inner.listdir(path)


def test_a_managed_save_keeps_the_device_also_when_libvirt_does_not_tell_why_the_vm_ended():
    world = lending("a100-40", "A100-4C", "vm")
    hook.prepare(world, xml_of(world))
    before = devices(world)
    hook.release(replace(world, sysfs=WithSave(world.sysfs, "vm.save")), xml_of(world))
    assert devices(world) == before != set()
    hook.release(replace(world, sysfs=WithSave(world.sysfs, "other.save")), xml_of(world))
    assert devices(world) == set()


def test_a_function_that_another_vm_has_refuses_the_start_and_names_the_command_that_moves_it(tmp_path):
    world = lending("a100-40", "A100-4C", "vm")
    create(world, wish("A100-4C", name="kept"))
    done = begin(script(tmp_path), xml_of(world))
    assert done.returncode == 1
    assert done.stderr == (
        "vgpuctl: vm reserves 0000:3b:00.4 only while it runs, and kept has it; "
        "vgpuctl start-vm vm gives it a free one\n"
    )
    assert begin(script(tmp_path), xml_of(world), "vm", "release", "end", "failed").returncode == 0
    assert {c.vm for c in world.claims.all()} == {"kept"}, "the other's is left alone"


@pytest.mark.parametrize(("scenario", "profile", "fit"), [("a100-40", "A100-20C", 2), ("t4", "T4-8Q", 4)])
def test_what_is_promised_to_others_is_not_lent_although_it_is_missing(scenario, profile, fit):
    world = lending(scenario, profile, "vm")
    for number in range(fit):
        create(world, wish(profile, name=f"kept-{number}"))
    open_world(scenario).reboot()
    world = simulated_world(scenario)
    with pytest.raises(VgpuctlError, match=r"kept-0 has it|no room"):
        hook.prepare(world, xml_of(world))
    assert devices(world) == set()
    for number in range(fit):
        hook.prepare(world, xml_of(world, f"kept-{number}"))
    assert len(world.claims.all()) == fit


def test_an_mdev_is_made_on_another_gpu_and_found_there_again(tmp_path):
    scenario = tmp_path / "two.yaml"
    scenario.write_text("version: 1\ngpus:\n  - {model: T4, profiles: [T4-8Q]}\n  - {model: T4, profiles: [T4-8Q]}\n")
    world = lending(str(scenario), "T4-8Q", "vm")
    first = observe(world, Want()).gpus[0].address
    for name in ("kept-1", "kept-2"):
        create(world, wish("T4-8Q", name=name, gpu=first))
    path = script(tmp_path, str(scenario))
    assert begin(path, xml_of(world)).stderr == ""
    uuid = world.hypervisor.find_domain("vm").uuid
    (claim,) = [c for c in world.claims.all() if c.vm == "vm"]
    assert claim.gpu != first
    (seen,) = [v for v in observe(world, Want()).vgpus if v.vm == "vm"]
    assert (seen.gpu, seen.present) == (claim.gpu, True)
    world.hypervisor.start(uuid)
    before = devices(world)
    assert begin(path, xml_of(world)).returncode == 0, "as after a managed save: it is there"
    assert devices(world) == before
    world.hypervisor.destroy(uuid)
    assert begin(path, xml_of(world), "vm", "release", "end", "destroyed").stderr == ""
    assert len(devices(world)) == len(before) - 1


def test_what_a_living_command_works_on_is_left_to_it():
    world = lending("a100-40", "A100-4C", "vm")
    hook.prepare(world, xml_of(world))
    (claim,) = world.claims.all()
    world.claims.remove(claim.carrier, claim.vm_uuid)
    ticks = int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19])
    world.claims.add(replace(claim, process=replace(claim.process, pid=1, start_ticks=ticks)))
    hook.release(world, xml_of(world))
    assert len(devices(world)) == 1
