# SPDX-License-Identifier: Apache-2.0
"""After a boot everything recorded is restored without libvirt; one failure does not stop the others."""

from __future__ import annotations

import pytest

from tests.faults import Watch
from tests.hosts import EagerClock, SimulatedHost, context, create, living_operation, open_sim_host, picture, request
from tests.layouts import FLEX
from tests.meanwhile import on_call, rebooted, unchanged, with_calls
from tests.reserving_vms import record_of
from vgpuctl.config.host_spec import BootSpec, GpuSpec, HostSpec, VgpuSpec, parse_host_spec
from vgpuctl.domain.record import record_to_xml
from vgpuctl.errors import Busy, Failed, InvalidInput
from vgpuctl.gpu_setup.sriov import count_vfs
from vgpuctl.host.absent import AbsentHypervisor
from vgpuctl.model.gpu import Backend, GpuMode, MigSpec
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.vm import GPU_SETUP_CLAIM, Claim
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.boot import read_domain_files
from vgpuctl.operations.gpu_mode import ModeRequest, set_mode
from vgpuctl.operations.restore import restore_host
from vgpuctl.value import replace

A16 = "0000:17:00.0"
TYPE_FILE = "/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type"


def restore(host: SimulatedHost, spec: HostSpec | None = None, *, dry_run: bool = False) -> Outcome:
    """As at boot: libvirt does not answer."""
    ports = replace(host.ports, hypervisor=AbsentHypervisor("it has not started yet"))
    return restore_host(ports, context(dry_run=dry_run, wait_seconds=5.0), spec or HostSpec(1))


def with_vms(
    directory, *names: str, scenario: str = "a100-40", profile: str = "A100-4C", clock: EagerClock | None = None
) -> SimulatedHost:
    """Return a host with VMs that are off."""
    host = open_sim_host(directory, scenario, clock=clock)
    for name in names:
        create(host.ports, request(profile, name=name), start=False)
    return host


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q"), ("a16", "A16-2Q")])
def test_after_a_reboot_every_vgpu_is_where_it_was(tmp_path, scenario, profile):
    host = with_vms(tmp_path, "one", "two", scenario=scenario, profile=profile)
    before = picture(host)
    host = rebooted(host)
    with unchanged(host):
        assert restore(host, dry_run=True).changed
    done = restore(host)
    assert [entry.name for entry in done.data.restored] == ["one", "two"]
    assert picture(host) == before
    again = restore(host)
    assert (again.changed, again.data.complete) == (False, 2)


def test_one_vm_that_cannot_be_restored_stops_no_other_and_is_named(tmp_path):
    host = rebooted(with_vms(tmp_path, "one", "two"))
    host.ports.sysfs.write(TYPE_FILE, "469\n")
    with pytest.raises(Failed) as raised:
        restore(host)
    assert "vm one: 0000:3b:00.4 has A100-5C" in str(raised.value)
    assert [entry.name for entry in raised.value.facts["failed"]] == ["one", "two"]
    host.ports.sysfs.write_uninterruptible(TYPE_FILE, "0\n", gpu="0000:3b:00.0", deadline_seconds=5)
    assert len(restore(host).data.restored) == 2


@pytest.mark.parametrize(("scenario", "profile"), [("t4", "T4-2Q"), ("a16", "A16-2Q")])
def test_what_does_not_change_is_read_once_however_many_vms_there_are(tmp_path, scenario, profile):
    asked = {}
    for number in (1, 4):
        names = [f"vm-{name}" for name in range(number)]
        host = rebooted(with_vms(tmp_path / str(number), *names, scenario=scenario, profile=profile))
        constant = []
        watch = Watch()
        watch.before = lambda number, call, args, constant=constant: constant.extend(
            [call] if call == "nvml.gpu" or (call == "sysfs.read" and str(args[0]).endswith("/description")) else []
        )
        assert len(restore(replace(host, ports=watch.watch(host.ports))).data.restored) == number
        asked[number] = constant
    assert asked[4] == asked[1] != []


DRIVERS = "/sys/bus/pci/drivers/nvidia"


def with_unbound_vf(tmp_path, clock: EagerClock) -> SimulatedHost:
    host = with_vms(tmp_path, "vm", clock=clock)
    host.sim.reboot()
    host.ports.sysfs.write_uninterruptible(
        f"{DRIVERS}/unbind", "0000:3b:00.4\n", gpu="0000:3b:00.0", deadline_seconds=5
    )
    return host


def test_what_a_vgpu_costs_does_not_grow_with_the_vfs_of_its_gpu(tmp_path):
    reads = []
    for vfs in (4, 16):
        text = f"version: 1\ngpus: [{{model: A100, vfs: {{total: {vfs}, enabled: {vfs}}}}}]\n"
        host = open_sim_host(tmp_path / str(vfs), text=text)
        seen = []
        for count in (1, 3):
            for number in range(len(seen), count):
                create(host.ports, request("A100-4C", name=f"vm-{number}"), start=False)
            host = rebooted(host)
            watch = Watch()
            restore(replace(host, ports=watch.watch(host.ports)))
            seen.append(sum(call.startswith("sysfs.") for call in watch.calls))
        reads.append(seen[1] - seen[0])
    assert reads[0] == reads[1] > 0


def test_a_vf_that_is_taken_after_the_first_look_is_not_written_over(tmp_path):
    host = rebooted(with_vms(tmp_path, "vm"))
    ports = on_call(host.ports, "claims.lock", lambda: host.ports.sysfs.write(TYPE_FILE, "469\n"), nth=1)
    with pytest.raises(Failed, match=r"0000:3b:00\.4 has A100-5C"):
        restore(replace(host, ports=ports))
    assert host.ports.sysfs.read(TYPE_FILE) == "469\n"


def test_a_driver_that_comes_late_is_waited_for(tmp_path):
    clock = EagerClock()
    host = with_unbound_vf(tmp_path, clock)
    begin = clock.seconds

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.seconds == begin + 7:
            host.ports.sysfs.write(f"{DRIVERS}/bind", "0000:3b:00.4\n")

    assert len(restore(replace(host, ports=with_calls(host.ports, "clock", sleep=sleep))).data.restored) == 1
    assert clock.seconds - begin == 7


def test_the_deadline_ends_the_waiting_and_says_what_was_missing(tmp_path):
    clock = EagerClock()
    host = with_unbound_vf(tmp_path, clock)
    begin = clock.seconds
    assert "would wait" in restore(host, dry_run=True).warnings[0]
    with pytest.raises(Failed, match=r"0000:3b:00\.4: no nvidia directory.*20 seconds after"):
        restore(host, HostSpec(1, boot=BootSpec(20)))
    assert clock.seconds - begin == 20


@pytest.mark.parametrize(
    ("scenario", "profile", "gpu", "carrier"),
    [
        ("a100-40", "A100-4C", "0000:3b:00.0", "0000:3b:00.5"),
        ("t4", "T4-2Q", None, "11111111-2222-4333-8444-555555555555"),
        ("a16", "A16-2Q", None, "11111111-2222-4333-8444-555555555555"),
    ],
)
def test_a_vgpu_without_a_vm_comes_back_and_is_claimed(tmp_path, scenario, profile, gpu, carrier):
    host = open_sim_host(tmp_path, scenario)
    if gpu is None:
        create(host.ports, request(profile, name="probe"), start=False)
        gpu = host.ports.claims.all()[0].gpu
    claims = host.ports.claims.all()
    spec = HostSpec(1, vgpus={"spare": VgpuSpec(profile, gpu, carrier)})
    assert restore(host, spec, dry_run=True).steps
    assert [entry.name for entry in restore(host, spec).data.restored] == ["spare"]
    seen = picture(host)
    assert carrier in {**seen.mdevs, **seen.types}
    (kept,) = (c for c in host.ports.claims.all() if c not in claims)
    assert (kept.carrier, kept.vm, kept.framebuffer_mib is None) == (carrier, "vgpu spare", False)
    assert not restore(host, spec).changed


def test_libvirts_files_name_the_vms_and_a_damaged_one_is_reported(tmp_path):
    host = open_sim_host(tmp_path)
    assert read_domain_files(host.ports) == ((), ())
    create(host.ports, request("A100-4C", name="vm"), start=False)
    vms, problems = read_domain_files(host.ports)
    assert ([vm.name for vm in vms], problems) == (["vm"], ())
    assert vms[0].record is not None


def test_the_vfs_that_host_yaml_wants_come_back_before_the_vms_that_need_them(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    set_mode(host.ports, context(), ModeRequest(A16, "vgpu"))
    create(host.ports, request("A16-2Q", gpu=A16, name="vm"), start=False)
    before = picture(host)
    host = rebooted(host)
    spec = HostSpec(1, gpus={A16: GpuSpec(mode="vgpu"), "0000:99:00.0": GpuSpec(mode="sriov", vfs=2)})
    assert A16 in " ".join(restore(host, spec, dry_run=True).steps)
    with pytest.raises(Failed, match=r"1 of 3 could not be restored: gpu 0000:99:00\.0") as raised:
        restore(host, spec)
    assert [entry.name for entry in raised.value.facts["restored"]] == [A16, "vm"]
    (mdev,) = [(uuid, result) for uuid, result in before.mdevs.items() if result[0].startswith("0000:17:")]
    assert list(picture(host).mdevs.items()) == [mdev]


def test_a_record_with_a_strange_spec_stops_no_other_vm(tmp_path):
    host = with_vms(tmp_path, "one", "two")
    record = record_of(host, "one")
    for spec in ("[]", "{", "null"):
        host.ports.hypervisor.set_record(record.vm_uuid, record_to_xml(replace(record, request_json=spec)))
        host = rebooted(host)
        assert [entry.name for entry in restore(host).data.restored] == ["one", "two"]


def test_an_unreadable_host_yaml_is_reported_and_vms_are_restored(tmp_path):
    host = with_vms(tmp_path, "vm")
    before = picture(host)
    host = rebooted(host)
    unread = InvalidInput("host.yaml:2:1: gpu: unknown field")
    with pytest.raises(Failed, match=r"^1 of 2 .*: file host\.yaml: host\.yaml:2:1: gpu: unknown field"):
        restore_host(host.ports, context(wait_seconds=5.0), HostSpec(1), host_file_error=unread)
    assert picture(host) == before


def test_a_gpu_that_can_never_be_so_is_not_waited_for(tmp_path):
    clock = EagerClock()
    host = open_sim_host(tmp_path, "mixed", clock=clock)
    begun = clock.monotonic()
    with pytest.raises(Failed, match="has no mode"):
        restore(host, HostSpec(1, gpus={"0000:d8:00.0": GpuSpec(mode="vgpu")}))
    assert clock.monotonic() - begun < 10


def test_a_bug_that_one_gpu_meets_keeps_no_vm_from_its_vgpus(tmp_path):
    host = with_vms(tmp_path, "vm")
    before = picture(host).types
    host = rebooted(host)

    def drained_vms():
        raise RuntimeError("unforeseen")

    spec = parse_host_spec('version: 1\ngpus: {"0000:3b:00.0": {mode: vgpu}}', "host.yaml")
    with pytest.raises(Failed, match="RuntimeError: unforeseen"):
        restore(replace(host, ports=with_calls(host.ports, "claims", drained_vms=drained_vms)), spec)
    assert picture(host).types == before


H100_DARK = """version: 1
gpus: [{model: H100, address: "0000:3b:00.0", vfs: {enabled: 0}}]
faults: [{on: nvml, match: "*", message: no library}]
"""


@pytest.mark.parametrize(("output", "words"), [({"mig": MigSpec()}, "MIG"), ({"mixed_size": False}, "mixed sizes")])
def test_what_is_to_be_off_and_nvml_does_not_tell_is_not_waited_for(tmp_path, output, words):
    clock = EagerClock()
    host = open_sim_host(tmp_path, text=H100_DARK, clock=clock)
    begin = clock.seconds
    spec = HostSpec(1, gpus={"0000:3b:00.0": GpuSpec("vgpu", **output)}, boot=BootSpec(300))
    done = restore(host, spec)
    assert (clock.seconds - begin, [entry.name for entry in done.data.restored]) == (0, ["0000:3b:00.0"])
    assert count_vfs(host.ports, "0000:3b:00.0") > 0, "VMs wait for them"
    (warning,) = done.warnings
    assert warning.startswith(f"{words} of 0000:3b:00.0 ")
    assert warning.endswith(" should be off, but NVML does not report the current state: no library")
    again = restore(host, spec)
    assert (again.changed, again.warnings) == (False, (warning,))


def test_what_is_to_be_on_and_nvml_does_not_tell_is_waited_for(tmp_path):
    clock = EagerClock()
    host = open_sim_host(tmp_path, text=H100_DARK, clock=clock)
    begin = clock.seconds
    with pytest.raises(Failed, match="does not answer: no library"):
        restore(host, HostSpec(1, gpus={"0000:3b:00.0": GpuSpec("vgpu", mixed_size=True)}, boot=BootSpec(20)))
    assert clock.seconds - begin == 20


@pytest.mark.parametrize("whole", [True, False])
def test_a_gpu_on_which_another_command_works_is_to_be_tried_later_and_names_it(tmp_path, whole):
    host = open_sim_host(tmp_path, "mixed")
    operation = living_operation(host.ports)
    gpu = next(g for g in observe(host.ports, ReadScope(models=False)).gpus if g.address == FLEX)
    function = FLEX if whole else gpu.functions[0].address
    host.ports.claims.add(
        Claim(
            carrier=function,
            backend=Backend.PASSTHROUGH if whole else Backend.VENDOR_VF,
            gpu=FLEX,
            function=function,
            vm=GPU_SETUP_CLAIM if whole else "vm",
            vm_uuid=host.ports.new_uuid(),
            profile=None,
            framebuffer_mib=None,
            process=operation.process,
            command="vgpuctl set-mode FLEX sriov",
            operation=operation.id,
        )
    )
    message = f"process {operation.process.pid} works on .*: vgpuctl set-mode FLEX sriov"
    with unchanged(host), pytest.raises(Busy, match=message) as raised:
        restore(host, HostSpec(1, gpus={FLEX: GpuSpec(mode=GpuMode.SRIOV, vfs=6)}))
    assert raised.value.status == 75
