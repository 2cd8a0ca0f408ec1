# SPDX-License-Identifier: Apache-2.0
"""Plain VFs of Intel's xe: their scheduler while VMs run, their memory, both after a boot, and what refuses them."""

from __future__ import annotations

import pytest

from tests.failed_calls import failed_calls
from tests.faults import CHANGING, Trial
from tests.hosts import context, create, open_sim_host, picture, request, run_reconcile, start
from tests.meanwhile import rebooted, unchanged, with_calls
from tests.schedulers import EQUAL, FIXED, act, configured_scheduler, restore
from tests.unit.operations.test_apply import diff, run
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.errors import HostCannot, InUse, InvalidInput, PartlyApplied, VgpuctlError
from vgpuctl.gpu_setup.set_scheduler import SetVfScheduler
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec, SchedulerState
from vgpuctl.operations.gpu_mode import ModeRequest, set_mode
from vgpuctl.operations.queries import show_gpu

OFF, ON = "0000:3b:00.0", "0000:5e:00.0"
EIGHT = SchedulerSpec(FIXED, 8)
ADMIN = f"/sys/bus/pci/devices/{ON}/sriov_admin"
CARD = """version: 1
kernel: "{kernel}"
storage: {{pools: [{{name: default}}]}}
gpus: [{{address: "0000:5e:00.0", model: "{model}", vfs: {{total: 3, enabled: 2}}}}]
{more}
"""


def card(directory, kernel="7.0.4", model="Arc Pro B60", more=""):
    return open_sim_host(directory, text=CARD.format(kernel=kernel, model=model, more=more))


def shown(host, gpu=ON):
    return show_gpu(host.ports, gpu).data


def running(host, gpu=ON):
    state = shown(host, gpu).scheduler.running
    return state.policy, state.time_slice_us, state.preempt_timeout_us


def sizes(host, gpu=ON):
    return {function.framebuffer_mib for function in shown(host, gpu).functions}


def mode(ports, vfs=None, memory=None, *, gpu=ON, name="sriov", **more):
    return set_mode(ports, context(), ModeRequest(gpu, name, vfs, vf_memory_mib=memory, **more))


def entry(host, gpu=ON):
    return parse_host_spec(host.ports.host_file.read(), "host.yaml").gpus[gpu]


def values(host):
    names = ("exec_quantum_ms", "preempt_timeout_us", "sched_priority")
    text = host.ports.host_file.read()
    memory = [host.ports.sysfs.read(f"{ADMIN}/vf{number}/profile/vram_quota") for number in (1, 2, 3)]
    functions = [[host.ports.sysfs.read(f"{ADMIN}/{f}/profile/{n}") for n in names] for f in ("pf", "vf1", "vf2")]
    return functions, memory, sorted(sizes(host), key=str), text, picture(host)


def test_it_is_set_while_a_vm_runs_and_shown_with_each_vms_share(tmp_path):
    host = open_sim_host(tmp_path, "b60")
    create(host.ports, request(name="on", mode="sriov", gpu=(ON,)))
    planned = act(host.ports, EIGHT, gpu=ON, dry_run=True)
    assert running(host) == ("best_effort", None, None)
    done = act(host.ports, EIGHT, gpu=ON)
    assert (done.changed, done.steps) == (True, planned.steps)
    assert running(host) == ("fixed_share", 8000, 16_000)
    assert configured_scheduler(host, ON) == EIGHT
    assert not act(host.ports, EIGHT, gpu=ON).changed
    assert {share.vm: share.guaranteed_percent for share in shown(host).shares} == {"on": 20}
    assert act(host.ports, SchedulerSpec(EQUAL, 8, preempt_timeout_us=20_000), gpu=ON).changed
    assert running(host) == ("equal_share", 8000, 20_000)
    assert shown(host).scheduler_limits.preempt_timeout_us.most == 100_000_000
    assert shown(host).scheduler_limits.frequency_hz is None


@pytest.mark.parametrize(
    ("policy", "written"),
    [
        (SchedulerPolicy.BEST_EFFORT, ("0\n", "0\n", "[low] normal high\n")),
        (EQUAL, ("16\n", "32000\n", "[low] normal high\n")),
        (FIXED, ("16\n", "32000\n", "low [normal] high\n")),
    ],
)
def test_each_policy_is_written_for_the_host_and_all_vfs(tmp_path, policy, written):
    host = card(tmp_path)
    act(host.ports, SchedulerSpec(FIXED, 5), gpu=ON)
    act(host.ports, SchedulerSpec(policy), gpu=ON)
    names = ("exec_quantum_ms", "preempt_timeout_us", "sched_priority")
    assert tuple(host.ports.sysfs.read(f"{ADMIN}/pf/profile/{name}") for name in names) == written
    assert host.ports.sysfs.read(f"{ADMIN}/vf2/profile/{names[0]}") == written[0]


def test_vfs_get_their_memory_before_they_are_on_and_a_boot_restores_all_in_order(tmp_path):
    host = open_sim_host(tmp_path, "b60")
    planned = mode(host.ports, 4, 4096, gpu=OFF)
    assert planned.steps[0] == f"turn 4 VFs of {OFF} on, each with 4GiB"
    act(host.ports, EIGHT, gpu=OFF)
    assert (sizes(host, OFF), entry(host, OFF).vf_memory) == ({4096}, "4GiB")
    assert not diff(host.ports).changed
    host = rebooted(host)
    assert {row.key for row in diff(host.ports).data.gpus[0].differences} == {"mode", "vfs", "vf_memory"}
    assert [step.split(" of ")[0] for step in restore(host).steps] == ["turn 4 VFs", "set the scheduler"]
    assert (sizes(host, OFF), running(host, OFF)[:2]) == ({4096}, ("fixed_share", 8000))
    assert (diff(host.ports).changed, restore(host).changed) == (False, False)


def test_other_memory_needs_new_vfs_so_a_vm_is_drained_and_the_scheduler_is_set_again(tmp_path):
    host = card(tmp_path)
    act(host.ports, EIGHT, gpu=ON)
    create(host.ports, request(name="on", mode="sriov"))
    with unchanged(host), pytest.raises(InUse, match="in use by on"):
        mode(host.ports, 2, 2048)
    done = mode(host.ports, 2, 2048, drain=True)
    assert (done.steps[0], done.steps[-1]) == ("shut down VM on", "start VM on again")
    assert (sizes(host), running(host)[:2]) == ({2048}, ("fixed_share", 8000))
    assert len(picture(host).running) == 1
    assert not mode(host.ports, 2).changed, "host.yaml has the memory"
    mode(host.ports, 3, drain=True)
    assert (len(shown(host).functions), sizes(host)) == (3, {2048})


def test_without_a_size_the_driver_divides_the_memory_and_host_yaml_has_none(tmp_path):
    host = card(tmp_path)
    assert sizes(host) == {11_776}
    mode(host.ports, 3)
    assert (sizes(host), entry(host).vf_memory) == ({7850}, None)


def test_apply_sets_number_memory_and_scheduler_in_one_run(tmp_path):
    host = card(tmp_path)
    sets = [f"gpus[{ON}].{text}" for text in ("mode=sriov", "vfs=3", "vf_memory=2GiB", "scheduler.policy=equal_share")]
    assert run(host.ports, *sets).changed
    assert (sizes(host), running(host)[0]) == ({2048}, "equal_share")
    assert not run(host.ports).changed


@pytest.mark.parametrize(
    ("kernel", "model", "spec", "text"),
    [
        ("6.12.9", "Arc Pro B60", EIGHT, "whose scheduler vgpuctl cannot set"),
        ("7.0.4", "Flex 170", EIGHT, "whose scheduler vgpuctl cannot set"),
        ("7.0.4", "Arc Pro B60", SchedulerSpec(FIXED, 100_001), "1 to 100000 ms"),
        ("7.0.4", "Arc Pro B60", SchedulerSpec(FIXED, None, 60), "no adaptive round robin"),
    ],
)
def test_what_the_driver_has_not_is_refused_before_anything_changes(tmp_path, kernel, model, spec, text):
    host = card(tmp_path, kernel, model)
    with unchanged(host), pytest.raises(HostCannot, match=text):
        act(host.ports, spec, gpu=ON)
    assert host.ports.host_file.read() is None


def test_a_card_whose_vfs_are_off_is_refused_with_the_command(tmp_path):
    host = open_sim_host(tmp_path, "b60")
    with pytest.raises(HostCannot, match=f"first vgpuctl set-mode {OFF} sriov"):
        act(host.ports, EIGHT, gpu=OFF)


@pytest.mark.parametrize(
    ("kernel", "model", "vfs", "memory", "error", "text"),
    [
        ("6.19.1", "Arc Pro B60", 2, 1024, HostCannot, "does not let the memory of VFs be set"),
        ("7.0.4", "Flex 170", 2, 1024, HostCannot, "does not let the memory of VFs be set"),
        ("7.0.4", "Arc Pro B60", 3, 10_240, InvalidInput, "3 VFs with 10GiB are 30GiB, and 0000:5e:00.0 has 24GiB"),
    ],
)
def test_memory_that_the_card_cannot_give_is_refused(tmp_path, kernel, model, vfs, memory, error, text):
    host = card(tmp_path, kernel, model)
    with unchanged(host), pytest.raises(error, match=text):
        mode(host.ports, vfs, memory)


def test_memory_of_vfs_is_for_plain_vfs_alone(tmp_path):
    with pytest.raises(InvalidInput, match="--vf-memory is for mode sriov"):
        mode(card(tmp_path).ports, memory=1024, name="passthrough")


def test_memory_that_the_driver_has_no_room_for_is_undone(tmp_path):
    host = card(tmp_path)
    with unchanged(host, values), pytest.raises(VgpuctlError, match="no room for 8GiB of GPU memory") as raised:
        mode(host.ports, 3, 8192)
    assert raised.value.code == "no-capacity"


@pytest.mark.parametrize(("file", "nth"), [("vf3/profile/vram_quota", 2), ("sriov_numvfs", 4)])
def test_no_memory_is_left_on_vfs_that_could_not_be_turned_on(tmp_path, file, nth):
    host = card(
        tmp_path,
        more=f"faults: [{{on: sysfs-write, match: '*{file}', nth: {nth}, errno: EIO}}]",
    )
    mode(host.ports, 3, 2048)
    mode(host.ports, name="passthrough")
    with unchanged(host, lambda h: h.ports.sysfs.read(f"{ADMIN}/vf1/profile/vram_quota")), pytest.raises(VgpuctlError):
        mode(host.ports, 3, 1024)
    assert host.ports.sysfs.read(f"{ADMIN}/vf1/profile/vram_quota") == "0\n"


@pytest.mark.parametrize(
    ("number", "code", "text"),
    [
        ("EINVAL", "invalid-input", "does not accept sched_priority normal"),
        ("ERANGE", "invalid-input", "does not accept"),
        ("EPERM", "host-cannot", "its driver, kernel or firmware has no such setting"),
        ("EOPNOTSUPP", "host-cannot", "its driver, kernel or firmware has no such setting"),
        ("EIO", "device-failed", "the firmware of 0000:5e:00.0 refused"),
        ("EBUSY", "device-failed", "EBUSY"),
    ],
)
def test_a_refused_write_is_explained_by_its_errno_and_undone(tmp_path, number, code, text):
    host = card(tmp_path, more=f"faults: [{{on: sysfs-write, match: '*sched_priority', errno: {number}, times: 1}}]")
    with unchanged(host, values), pytest.raises(VgpuctlError, match=text) as raised:
        act(host.ports, EIGHT, gpu=ON)
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("file", "change", "text"),
    [
        ("exec_quantum_ms", lambda ports: act(ports, EIGHT, gpu=ON), "reads back as"),
        ("vf2/profile/vram_quota", lambda ports: mode(ports, 2, 2048), "VF 2 of 0000:5e:00.0 was given 2GiB"),
    ],
)
def test_a_write_that_does_nothing_is_noticed(tmp_path, file, change, text):
    host = card(tmp_path, more=f"faults: [{{on: sysfs-write, match: '*{file}', kind: lost, times: 1}}]")
    with unchanged(host, values), pytest.raises(VgpuctlError, match=text) as raised:
        change(host.ports)
    assert raised.value.code == "verify-failed"


def test_memory_that_the_undo_could_not_give_back_is_named(tmp_path):
    host = card(tmp_path, more="faults: [{on: sysfs-write, match: '*vf2/profile/vram_quota', kind: lost}]")
    with pytest.raises(PartlyApplied, match="was given 2GiB of GPU memory") as raised:
        run(host.ports, *(f"gpus[{ON}].{text}" for text in ("mode=sriov", "vfs=2", "vf_memory=2GiB")))
    assert f"turn the 2 VFs of {ON} off and on again, each with 2GiB" in " ".join(raised.value.left)
    assert "VF 2 of 0000:5e:00.0 was given 11776MiB" in " ".join(raised.value.left)
    assert host.ports.host_file.read() is None


@pytest.mark.parametrize(
    ("file", "answer", "text"),
    [
        ("pf/profile/exec_quantum_ms", OSError(117, "Structure needs cleaning"), "parts of the card have different"),
        ("vf2/profile/exec_quantum_ms", "9\n", "vf2 and the host (pf) differ: 9 ms, 0 us, low, not 0 ms, 0 us, low"),
        ("vf1/profile/sched_priority", "low normal\n", "is not what the driver writes"),
        ("vf1/profile/preempt_timeout_us", "-3\n", "is not what the driver writes"),
        ("vf1/profile/exec_quantum_ms", PermissionError(13, "Permission denied"), "cannot be read: Permission denied"),
    ],
)
def test_odd_answers_are_an_unknown_policy_with_the_reason(tmp_path, file, answer, text):
    host = card(tmp_path)

    def read(path):
        if path != f"{ADMIN}/{file}":
            return host.ports.sysfs.read(path)
        if isinstance(answer, OSError):
            raise answer
        return answer

    state = show_gpu(with_calls(host.ports, "sysfs", read=read), ON).data.scheduler.running
    assert state.policy is None
    assert text in state.problem


def test_values_of_no_policy_are_shown_and_replaced(tmp_path):
    host = card(tmp_path)
    host.ports.sysfs.write(f"{ADMIN}/.bulk_profile/sched_priority", "normal\n")
    assert shown(host).scheduler.running.problem == "0 ms, 0 us, normal is none of the policies"
    act(host.ports, EIGHT, gpu=ON)
    assert running(host)[0] == "fixed_share"


def test_a_scheduler_of_no_policy_cannot_be_put_back_and_that_is_said(tmp_path):
    host = card(tmp_path)
    host.ports.sysfs.write(f"{ADMIN}/.bulk_profile/sched_priority", "normal\n")
    previous = show_gpu(host.ports, ON).data.scheduler.running
    assert previous.policy is None
    step = SetVfScheduler(ON, EIGHT, SchedulerState(None))
    step.perform(host.ports)
    with pytest.raises(HostCannot, match="had before is not known"):
        step.undo(host.ports)
    assert running(host)[0] == "fixed_share"


def prepared(directory):
    host = card(directory)
    act(host.ports, SchedulerSpec(EQUAL, 4), gpu=ON)
    return host.again()


def set_eight(ports):
    return act(ports, EIGHT, gpu=ON)


def give_memory(ports):
    return mode(ports, 3, 2048, drain=True)


@pytest.mark.parametrize("change", [set_eight, give_memory])
def test_whatever_call_fails_it_is_undone_or_the_error_says_what_is_left(tmp_path, change):
    trial = Trial(tmp_path, prepared, change)
    calls = trial.calls()
    refused = 0
    for one in failed_calls(trial, calls, values):
        refused += one.error is not None
        if one.is_left:
            assert one.is_told, one.where
            later = one.host.again()
            run_reconcile(later.ports)
            change(later.ports)
    assert refused >= 2
    assert set(calls) & CHANGING


def with_vm(directory):
    host = prepared(directory)
    create(host.ports, request(name="on", mode="sriov"))
    return host.again()


@pytest.mark.parametrize("change", [set_eight, give_memory])
def test_whatever_call_a_process_dies_in_the_same_command_and_apply_make_it_whole(tmp_path, spawn, change):
    trial = Trial(tmp_path, with_vm, change)
    undisturbed, before = trial.host("undisturbed"), picture(trial.made)
    change(undisturbed.ports)
    for _, _, where, later in trial.killed(trial.calls(), spawn):
        run_reconcile(later.ports)
        assert picture(later).claims == before.claims, where
        change(later.ports)
        run(later.ports)
        assert not diff(later.ports).changed, where
        if not picture(later).running:
            start(later.ports, "on")
        assert values(later)[:4] == values(undisturbed)[:4], where
        assert list(picture(later).running) == list(before.running), where


def test_memory_that_a_killed_set_mode_left_is_taken_away_before_the_driver_divides(tmp_path, spawn):
    trial = Trial(tmp_path, prepared, give_memory)
    left = 0
    for _, _, where, later in trial.killed(trial.calls(), spawn):
        run_reconcile(later.ports)
        left += any(size != "0\n" for size in values(later)[1]) and not shown(later).vfs.enabled
        mode(later.ports, name="passthrough")
        mode(later.ports, 2)
        assert sizes(later) == {11_776}, where
    assert left
