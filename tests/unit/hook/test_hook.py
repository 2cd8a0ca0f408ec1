# SPDX-License-Identifier: Apache-2.0
"""The hook as libvirt runs it: a shell script with the domain's XML on stdin, and one Python process for managed VMs.

Size: what the hook does at a start and at an end, and how little it loads, on the same hosts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.hosts import EagerClock, context, create, living_operation, request
from vgpuctl import library
from vgpuctl.errors import InUse, Temporary, VgpuctlError
from vgpuctl.hook import run as hook
from vgpuctl.host.absent import AbsentNvml
from vgpuctl.model.vm import VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.create import create_vm
from vgpuctl.operations.plans.installation import HOOK_PATH, hook_text
from vgpuctl.ports.host import Host
from vgpuctl.sim import open_host
from vgpuctl.simulated import open_simulated_host
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
    """The installed script, with an argument that selects a simulated host."""
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


def xml_of(ports: Host, name: str = "vm") -> str:
    record = ports.hypervisor.find_domain(name)
    assert record is not None
    return record.xml


def booted(scenario: str = "a100-40", profile: str = "A100-4C", *names: str) -> Host:
    ports = open_simulated_host(scenario)
    for name in names or ("vm",):
        create(ports, request(profile, name=name), start=False)
    open_host(scenario).reboot()
    return open_simulated_host(scenario)


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q"), ("a16", "A16-2Q")])
def test_a_plain_start_after_a_reboot_works(tmp_path, scenario, profile):
    ports = booted(scenario, profile)
    path = script(tmp_path, scenario)
    done = begin(path, xml_of(ports))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    ports.hypervisor.start(ports.hypervisor.find_domain("vm").uuid)
    assert ports.hypervisor.find_domain("vm").state is VmState.RUNNING
    before = ports.claims.all()
    assert begin(path, xml_of(ports)).returncode == 0
    assert ports.claims.all() == before


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
    record = '<vm xmlns="urn:vgpuctl:1" reserve="running"/>\n'
    assert begin(script(tmp_path, python="/nonexistent/python"), record, "vm", "release", "end").returncode != 0


def test_a_taken_placement_refuses_the_start_in_one_line(tmp_path):
    ports = booted()
    ports.sysfs.write(TYPES, "469\n")
    done = begin(script(tmp_path), xml_of(ports))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "0000:3b:00.4 has A100-5C, not A100-4C as vm needs" in done.stderr
    assert "vgpuctl show-gpu" in done.stderr
    assert ports.claims.all() == ()


def installed(tmp_path: Path, scenario: str = "a100-40") -> Path:
    """The hook's file as install-host writes it, with an argument that selects the simulated host."""
    library.open_host(f"sim:{scenario}").install_host()
    file = tmp_path / "xdg/vgpuctl" / scenario / HOOK_PATH.lstrip("/")
    assert os.access(file, os.X_OK)
    text = file.read_text()
    assert text.count("-m vgpuctl.hook ") == 1
    file.write_text(text.replace("-m vgpuctl.hook ", f"-m vgpuctl.hook --simulated {scenario} "))
    return file


def test_the_installed_file_makes_the_vgpu_and_lets_the_vm_start(tmp_path):
    ports = booted()
    done = begin(installed(tmp_path), xml_of(ports))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [claim.carrier for claim in ports.claims.all()] == ["0000:3b:00.4"]


def refused_by(ports: Host, tmp_path: Path, why: str) -> tuple[str, str]:
    """Make a start impossible; return the XML that libvirt gives the hook, and what the hook has to say."""
    xml = xml_of(ports)
    if why == "taken":
        ports.sysfs.write(TYPES, "469\n")
        return xml, "vgpuctl: 0000:3b:00.4 has A100-5C, not A100-4C as vm needs; vgpuctl show-gpu 0000:3b:00.0"
    if why == "unreadable":
        return xml.replace('index="0"', 'index="x"').replace("index='0'", "index='x'"), (
            "vgpuctl: the VM's record cannot be read: "
        )
    if why == "linked lock":
        lock = tmp_path / "xdg/vgpuctl/a100-40/run/lock"
        lock.unlink(missing_ok=True)
        lock.symlink_to("/nowhere")
        return xml, f"vgpuctl: {lock} is a symbolic link to /nowhere"
    without = xml.replace("<hostdev", "<gone").replace("</hostdev", "</gone")
    return without, "vgpuctl: the definition of vm lacks A100-4C (0000:3b:00.4)"


@pytest.mark.parametrize("why", ["taken", "unreadable", "linked lock", "device removed"])
def test_the_installed_file_stops_each_start_whose_vgpu_cannot_be_made_with_one_line(tmp_path, why):
    ports = booted()
    path = installed(tmp_path)
    xml, reason = refused_by(ports, tmp_path, why)
    done = begin(path, xml)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(reason)


@pytest.mark.parametrize("python", ["/nonexistent/bin/python", "/bin/false", "/usr/bin"])
def test_a_python_that_is_gone_or_has_no_vgpuctl_stops_only_vms_of_ours(tmp_path, python):
    path = installed(tmp_path)
    text = path.read_text()
    assert text.count(sys.executable) == 1
    path.write_text(text.replace(sys.executable, python))
    ours = begin(path, xml_of(booted()))
    assert ours.returncode != 0
    assert python in ours.stderr or python == "/bin/false"
    assert begin(path, FOREIGN, "his", "prepare", "begin", "-").returncode == 0


def given_by_hand(ports: Host, carrier: str, type_id: str) -> None:
    for text in ("0\n", f"{type_id}\n"):
        ports.sysfs.write(f"/sys/bus/pci/devices/{carrier}/nvidia/current_vgpu_type", text)


def test_a_vgpu_that_was_given_another_type_by_hand_refuses_the_start(tmp_path):
    ports = open_simulated_host("a100-40")
    create(ports, request("A100-4C", name="vm"), start=False)
    path, xml = script(tmp_path), xml_of(ports)
    assert begin(path, xml).returncode == 0
    given_by_hand(ports, "0000:3b:00.4", "469")
    done = begin(path, xml)
    assert done.returncode == 1
    assert "0000:3b:00.4 has A100-5C, not A100-4C as vm needs; vgpuctl show-gpu 0000:3b:00.0" in done.stderr


def test_a_type_without_a_known_name_is_shown_as_number(tmp_path):
    ports = replace(open_simulated_host("l40s-x4"), clock=EagerClock())
    create(ports, request("L40S-48Q", name="vm"), start=False)
    quiet = replace(ports, nvml=AbsentNvml("libvirt waits"))
    hook.prepare(quiet, xml_of(ports))
    carrier = ports.claims.all()[0].carrier
    given_by_hand(ports, carrier, "1166")
    with pytest.raises(InUse, match=f"{carrier} has the type 1166, not L40S-48Q as vm needs"):
        hook.prepare(quiet, xml_of(ports))


def test_a_start_with_everything_in_place_reads_no_types(tmp_path):
    ports = open_simulated_host("a100-40")
    create(ports, request("A100-4C", name="vm"), start=False)
    read: list[str] = []

    class Noting:
        def __getattr__(self, name: str) -> object:
            return getattr(ports.sysfs, name)

        def read(self, path: str) -> str:
            read.append(path)
            return ports.sysfs.read(path)

    hook.prepare(replace(ports, sysfs=Noting()), xml_of(ports))
    assert TYPES in read
    assert not [path for path in read if "creatable_vgpu_types" in path]


def test_a_claimed_placement_names_the_other_vm(tmp_path):
    ports = booted()
    create(ports, request("A100-4C", name="other"), start=False)
    ports.claims.add(replace(ports.claims.all()[0], carrier="0000:3b:00.4"))
    done = begin(script(tmp_path), xml_of(ports))
    assert done.returncode == 1
    assert "0000:3b:00.4 is claimed for VM other" in done.stderr


def test_a_copy_is_not_given_the_originals_vgpu(tmp_path):
    ports = booted()
    copy = xml_of(ports).replace(ports.machine_id, "f" * 32)
    assert begin(script(tmp_path), copy).returncode == 0
    assert ports.claims.all() == ()


def test_a_record_that_cannot_be_read_refuses_the_start(tmp_path):
    ports = booted()
    done = begin(script(tmp_path), xml_of(ports).replace('index="0"', 'index="x"').replace("index='0'", "index='x'"))
    assert done.returncode == 1
    assert "the VM's record cannot be read" in done.stderr


LATE = "vgpuctl: the vGPU was not ready within 20 seconds; start the VM again\n"
"""The error of a start that did not finish in time on a busy machine."""


def storm(path: str, ports: Host, names: list[str]) -> dict[str, tuple[int, str]]:
    """Run the hook for all these VMs at once, like libvirt; return each exit status and stderr."""
    children = {}
    for name in names:
        children[name] = subprocess.Popen(
            [path, name, "prepare", "begin", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(),
        )  # fmt: skip
    for name, child in children.items():
        child.stdin.write(xml_of(ports, name))
        child.stdin.close()
    return {name: (child.wait(), child.stderr.read()) for name, child in children.items()}


def test_fifty_starts_at_once_all_get_their_vgpu_while_vms_are_listed(tmp_path):
    names = [f"vdi-{n:03d}" for n in range(50)]
    ports = open_simulated_host("l40s-x4")
    for name in names:
        create_vm(ports, context(wait_seconds=60), request("L40S-1Q", name=name), start=False)
    open_host("l40s-x4").reboot()
    ports = open_simulated_host("l40s-x4")
    path = script(tmp_path, "l40s-x4")
    stop = threading.Event()
    observations: list[int] = []

    def listing() -> None:
        while not stop.is_set():
            observations.append(len(observe(open_simulated_host("l40s-x4"), ReadScope(models=False)).vms))

    listed = threading.Thread(target=listing)
    listed.start()
    ended = storm(path, ports, names)
    late = [name for name, answer in ended.items() if answer == (1, LATE)]
    again = [begin(path, xml_of(ports, name)) for name in late]
    stop.set()
    listed.join()
    assert {answer for name, answer in ended.items() if name not in late} <= {(0, "")}
    assert len(late) < 50
    assert [done.returncode for done in again] == [0] * len(late)
    assert set(observations) == {50}
    assert len(ports.claims.all()) == 50
    present = [v for v in observe(ports, ReadScope(models=False)).vgpus if v.present]
    assert len(present) == 50


NOT_FOR_THE_HOOK = """
    vgpuctl.config.host_spec vgpuctl.config.yaml_reader vgpuctl.host.local_host vgpuctl.host.system_files
    vgpuctl.host.logs vgpuctl.host.commands vgpuctl.host.virt.domains
    vgpuctl.host.virt.storage vgpuctl.operations.create vgpuctl.operations.ensure_vms vgpuctl.operations.power
    vgpuctl.operations.reconcile vgpuctl.domain.render vgpuctl.cli vgpuctl.remote vgpuctl.doctor vgpuctl.sim
    asyncio decimal fractions tempfile
"""
"""Modules that are slow to load and not needed when a managed VM starts."""


def test_the_hook_loads_only_light_standard_library_modules():
    code = "import sys, vgpuctl.hook.run; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    loaded = set(done.stdout.split())
    tops = {name.partition(".")[0] for name in loaded}
    assert {name for name in tops - set(sys.stdlib_module_names) if not name.startswith("__")} == {"vgpuctl"}
    assert sorted(loaded & set(NOT_FOR_THE_HOOK.split())) == []
    assert [name for name in NOT_FOR_THE_HOOK.split() if find_spec(name) is None] == []


def test_the_deadline_says_try_again_and_never_no_capacity():
    hook.set_deadline(0.01)
    with pytest.raises(Temporary, match="not ready within") as raised:
        threading.Event().wait(10)
    assert raised.value.status == 75
    assert raised.value.hint == "start the VM again"


def test_libvirt_is_not_called(tmp_path):
    from vgpuctl.host.absent import AbsentHypervisor

    ports = booted()
    xml = xml_of(ports)
    hook.prepare(replace(ports, hypervisor=AbsentHypervisor("it waits"), clock=EagerClock()), xml)
    assert len(ports.claims.all()) == 1


def lending(scenario: str, profile: str, *names: str) -> Host:
    """A host with VMs that are off and reserve their places only while they run."""
    ports = open_simulated_host(scenario)
    for name in names:
        create(ports, request(profile, name=name, reserve="running"), start=False)
    return ports


def devices(ports: Host) -> set[str]:
    """Every carrier with a claim or a device."""
    seen = observe(ports, ReadScope(models=False))
    return {c.carrier for c in seen.claims} | {v.carrier for v in seen.vgpus if v.present}


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q"), ("a16", "A16-2Q")])
def test_a_plain_start_claims_and_the_end_releases(tmp_path, scenario, profile):
    ports = lending(scenario, profile, "vm")
    path = script(tmp_path, scenario)
    assert devices(ports) == set()
    assert begin(path, xml_of(ports)).stderr == ""
    uuid = ports.hypervisor.find_domain("vm").uuid
    ports.hypervisor.start(uuid)
    assert len(devices(ports)) == 1
    for reason in ("saved", "migrated"):
        assert begin(path, xml_of(ports), "vm", "release", "end", reason).returncode == 0
        assert len(devices(ports)) == 1
    ports.hypervisor.destroy(uuid)
    done = begin(path, xml_of(ports), "vm", "release", "end", "shutdown")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert devices(ports) == set()
    assert begin(path, xml_of(ports), "vm", "release", "end", "failed").returncode == 0


def test_a_vm_with_a_permanent_reservation_keeps_it(tmp_path):
    ports = open_simulated_host("a100-40")
    create(ports, request("A100-4C", name="vm"))
    ports.hypervisor.destroy(ports.hypervisor.find_domain("vm").uuid)
    before = devices(ports)
    hook.release(ports, xml_of(ports))
    assert devices(ports) == before != set()


class WithSave:
    """The files of a host on which libvirt keeps a managed save of some VMs."""

    def __init__(self, inner, *names):
        self._inner, self._names = inner, names

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def listdir(self, path):
        return self._names if path == "/var/lib/libvirt/qemu/save" else self._inner.listdir(path)


def test_a_managed_save_keeps_the_device_without_a_reason_from_libvirt():
    ports = lending("a100-40", "A100-4C", "vm")
    hook.prepare(ports, xml_of(ports))
    before = devices(ports)
    hook.release(replace(ports, sysfs=WithSave(ports.sysfs, "vm.save")), xml_of(ports))
    assert devices(ports) == before != set()
    hook.release(replace(ports, sysfs=WithSave(ports.sysfs, "other.save")), xml_of(ports))
    assert devices(ports) == set()


def test_a_function_of_another_vm_refuses_the_start_with_a_hint_to_move(tmp_path):
    ports = lending("a100-40", "A100-4C", "vm")
    create(ports, request("A100-4C", name="kept"))
    done = begin(script(tmp_path), xml_of(ports))
    assert done.returncode == 1
    assert done.stderr == (
        "vgpuctl: vm reserves 0000:3b:00.4 only while it runs, and kept uses it; "
        "vgpuctl start-vm vm assigns a free one\n"
    )
    assert begin(script(tmp_path), xml_of(ports), "vm", "release", "end", "failed").returncode == 0
    assert {c.vm for c in ports.claims.all()} == {"kept"}, "the other's is left alone"


@pytest.mark.parametrize(("scenario", "profile", "fit"), [("a100-40", "A100-20C", 2), ("t4", "T4-8Q", 4)])
def test_a_missing_device_of_another_vm_is_not_taken(scenario, profile, fit):
    ports = lending(scenario, profile, "vm")
    for number in range(fit):
        create(ports, request(profile, name=f"kept-{number}"))
    open_host(scenario).reboot()
    ports = open_simulated_host(scenario)
    with pytest.raises(VgpuctlError, match=r"kept-0 uses it|no room"):
        hook.prepare(ports, xml_of(ports))
    assert devices(ports) == set()
    for number in range(fit):
        hook.prepare(ports, xml_of(ports, f"kept-{number}"))
    assert len(ports.claims.all()) == fit


def test_an_mdev_is_made_on_another_gpu_and_reused(tmp_path):
    scenario = tmp_path / "two.yaml"
    scenario.write_text("version: 1\ngpus:\n  - {model: T4, profiles: [T4-8Q]}\n  - {model: T4, profiles: [T4-8Q]}\n")
    ports = lending(str(scenario), "T4-8Q", "vm")
    first = observe(ports, ReadScope()).gpus[0].address
    for name in ("kept-1", "kept-2"):
        create(ports, request("T4-8Q", name=name, gpu=first))
    path = script(tmp_path, str(scenario))
    assert begin(path, xml_of(ports)).stderr == ""
    uuid = ports.hypervisor.find_domain("vm").uuid
    (claim,) = [c for c in ports.claims.all() if c.vm == "vm"]
    assert claim.gpu != first
    (seen,) = [v for v in observe(ports, ReadScope()).vgpus if v.vm == "vm"]
    assert (seen.gpu, seen.present) == (claim.gpu, True)
    ports.hypervisor.start(uuid)
    before = devices(ports)
    assert begin(path, xml_of(ports)).returncode == 0, "as after a managed save: it is there"
    assert devices(ports) == before
    ports.hypervisor.destroy(uuid)
    assert begin(path, xml_of(ports), "vm", "release", "end", "destroyed").stderr == ""
    assert len(devices(ports)) == len(before) - 1


def test_a_running_commands_vm_is_left_alone():
    ports = lending("a100-40", "A100-4C", "vm")
    hook.prepare(ports, xml_of(ports))
    (claim,) = ports.claims.all()
    ports.claims.remove(claim.carrier, claim.vm_uuid)
    ports.claims.add(replace(claim, operation=living_operation(ports).id))
    hook.release(ports, xml_of(ports))
    assert len(devices(ports)) == 1


WHOLE = [f"0000:{bus}:00.0" for bus in ("1a", "1b")]


def test_several_whole_gpus_are_claimed_again_after_a_reboot() -> None:
    ports = open_simulated_host("h100-pcie-x8")
    create(ports, request(name="vm", mode="passthrough", gpus=2), start=False)
    open_host("h100-pcie-x8").reboot()
    ports = open_simulated_host("h100-pcie-x8")
    assert ports.claims.all() == ()
    hook.prepare(ports, xml_of(ports))
    assert sorted(claim.carrier for claim in ports.claims.all()) == WHOLE


def test_whole_gpus_that_are_reserved_while_the_vm_runs_are_all_claimed_or_none() -> None:
    ports = open_simulated_host("h100-pcie-x8")
    create(ports, request(name="vm", mode="passthrough", gpus=2, reserve="running"), start=False)
    hook.prepare(ports, xml_of(ports))
    assert sorted(claim.carrier for claim in ports.claims.all()) == WHOLE
    hook.release(ports, xml_of(ports))
    assert ports.claims.all() == ()
    create(ports, request(name="other", mode="passthrough", gpus=1), start=False)
    with pytest.raises(InUse, match=r"reserves .* only while it runs, and other uses it") as raised:
        hook.prepare(ports, xml_of(ports))
    assert raised.value.hint == "vgpuctl start-vm vm assigns a free one"
    assert [claim.vm for claim in ports.claims.all()] == ["other"]
