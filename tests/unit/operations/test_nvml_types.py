# SPDX-License-Identifier: Apache-2.0
"""MIG and mixed sizes: only the steps needed, in the order that works, and no VM loses what its record reserves."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from tests.faults import outcome
from tests.hosts import context, create, open_sim_host, picture, request, start, stop
from tests.meanwhile import on_call, rebooted, unchanged, with_calls
from tests.partitions import FIRST, OFF, SECOND, act, configured_gpu, everything, mig, names, partition_state, small
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.errors import Busy, HostCannot, InUse, InvalidInput, NoCapacity, PartlyApplied, Refused, VerifyFailed
from vgpuctl.gpu_setup.sriov import count_vfs
from vgpuctl.model.gpu import MigSpec
from vgpuctl.model.results.gpus import PartitionResult
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.gpu_mode import restore_gpus
from vgpuctl.operations.gpu_scheduler import SchedulerRequest, set_scheduler
from vgpuctl.operations.restore import restore_host

MAKE = "create GPU instance {} on 0000:3f:00.0 at {} (NVML)"
PENDING = '{on: nvml-set-mig, match: "*", kind: pending}'
WRITE = "write 'mode: vgpu, mig: [{}]' for GPU 0000:3f:00.0 to /etc/vgpuctl/host.yaml"


@pytest.fixture
def host(tmp_path):
    """Return a host with an H100 whose MIG is on, and one whose MIG is off."""
    return open_sim_host(tmp_path, "h100-mig")


def test_mig_goes_on_between_vfs_off_and_vfs_on_and_the_larger_instances_come_first(host):
    done = act(host.ports, SECOND, mig("1g.10gb", "3g.40gb"))
    assert done.steps == (
        "turn the 32 VFs of 0000:3f:00.0 off (sriov-manage)",
        "turn MIG of 0000:3f:00.0 on (NVML)",
        "turn the 32 VFs of 0000:3f:00.0 on (sriov-manage)",
        MAKE.format("3g.40gb", "0:4"),
        MAKE.format("1g.10gb", "4:1"),
        WRITE.format("1g.10gb, 3g.40gb"),
    )
    assert done.data.partition == PartitionResult(True, ("3g.40gb", "1g.10gb"), None)
    assert configured_gpu(host, SECOND).mig == mig("1g.10gb", "3g.40gb")
    create(host.ports, request("H100-3-40C", gpu=SECOND))
    assert not act(host.ports, SECOND, mig("3g.40gb", "1g.10gb")).steps[:-1]
    assert host.ports.claims.all() == tuple(c for c in host.ports.claims.all() if c.carrier != SECOND)


def test_a_dry_run_changes_nothing(host):
    with unchanged(host, everything_of_second):
        assert len(act(host.ports, SECOND, mig("1g.10gb"), dry_run=True).steps) == 5


def test_while_mig_stays_on_the_vfs_stay_and_only_instances_that_go_are_touched(host):
    done = act(host.ports, FIRST, mig("4g.40gb", "1g.10gb", "1g.10gb"))
    assert done.steps[:2] == (
        "destroy GPU instance 3g.40gb on 0000:3b:00.0 at 0:4 (NVML)",
        "create GPU instance 4g.40gb on 0000:3b:00.0 at 0:4 (NVML)",
    )
    assert names(host) == ["4g.40gb", "1g.10gb", "1g.10gb"]


def test_a_vm_runs_on_while_instances_change_that_it_is_not_in(host):
    create(host.ports, request("H100-3-40C", name="vm", gpu=FIRST))
    running = picture(host).running
    done = act(host.ports, FIRST, mig("3g.40gb", "2g.20gb"))
    assert not any("shut down" in step for step in done.steps)
    assert picture(host).running == running
    assert names(host) == ["3g.40gb", "2g.20gb"]


def test_mig_goes_off_and_the_gpu_has_its_time_sliced_vgpus_again(host):
    act(host.ports, FIRST, OFF)
    assert (partition_state(host), configured_gpu(host).mig) == (((False, False), [], False), OFF)
    create(host.ports, request("H100-10C", gpu=FIRST))
    with pytest.raises(InUse, match=r"has H100-10C of .*, and with MIG on it has no time-sliced vGPUs"):
        act(host.ports, FIRST, mig("1g.10gb"))


@pytest.mark.parametrize("running", [True, False])
def test_a_vm_whose_instance_would_be_gone_is_named_with_its_profile(host, running):
    create(host.ports, request("H100-3-40C", name="vm", gpu=FIRST))
    if not running:
        stop(host.ports, "vm")
    for wanted, drain in itertools.product((OFF, mig("1g.10gb")), (False, True)):
        with unchanged(host, everything), pytest.raises(InUse, match=r"has H100-3-40C of vm") as raised:
            act(host.ports, FIRST, wanted, drain=drain)
        assert (raised.value.facts["vms"], raised.value.facts["profiles"]) == (["vm"], ["H100-3-40C"])
    with unchanged(host, everything), pytest.raises(InUse, match="vm"):
        act(host.ports, FIRST, mode="passthrough")


@pytest.mark.parametrize(
    ("wanted", "mixed", "kind", "message"),
    [
        (mig("1g.5gb"), None, InvalidInput, r"no GPU instance profile 1g\.5gb"),
        (mig("4g.40gb", "4g.40gb"), None, NoCapacity, r"can have 1 of 4g\.40gb, not 2"),
        (
            mig("4g.40gb", "3g.40gb", "1g.10gb"),
            None,
            NoCapacity,
            r"1g\.10gb does not fit .* next to 4g\.40gb, 3g\.40gb",
        ),
        (MigSpec(vgpus=(("H100-4C", 1),)), None, InvalidInput, "has no GPU instance for the time-sliced profile"),
        (MigSpec(vgpus=(("H100-1-10C", 8),)), None, NoCapacity, r"can have 7 of 1g\.10gb, not 8"),
        (mig("1g.10gb"), True, InvalidInput, "MIG and mixed sizes at the same time"),
        (None, True, HostCannot, "has MIG on, which excludes mixed sizes"),
    ],
)
def test_impossible_layouts_are_refused_early(host, wanted, mixed, kind, message):
    with unchanged(host, everything), pytest.raises(kind, match=message):
        act(host.ports, FIRST, wanted, mixed)


@pytest.mark.parametrize(("scenario", "wanted", "output"), [
    ("h100-mig", "1g.10gb", "inside"),
    ("rtx-pro-6000", "1g.24gb+gfx", "its driver mixes sizes inside a GPU instance with a setting that vgpuctl"),
])  # fmt: skip
def test_mixed_sizes_with_mig_are_refused_with_what_the_driver_has_for_instances(tmp_path, scenario, wanted, output):
    host = open_sim_host(tmp_path, scenario)
    act(host.ports, FIRST, mig(wanted))
    before = everything(host)
    with pytest.raises(InvalidInput, match="MIG and mixed sizes at the same time") as asked:
        act(host.ports, FIRST, mixed=True)
    host.ports.host_file.replace("version: 1\n", host.ports.host_file.read())
    with pytest.raises(HostCannot, match="has MIG on, which excludes mixed sizes") as there:
        act(host.ports, FIRST, mixed=True)
    assert all(output in str(one.value) for one in (asked, there)) is (scenario == "rtx-pro-6000")
    assert partition_state(host) == before[0]


@pytest.mark.parametrize(("wanted", "mixed"), [(mig("1g.5gb"), None), (None, True)])
def test_gpus_without_it_say_so(tmp_path, wanted, mixed):
    host = open_sim_host(tmp_path, "t4")
    with pytest.raises(HostCannot, match="does not support"):
        act(host.ports, FIRST, wanted, mixed)
    assert not act(host.ports, FIRST, OFF, dry_run=True).steps[:-1]


def test_an_unmanaged_gpu_is_left_alone(host):
    act(host.ports, FIRST, mode="unmanaged")
    with pytest.raises(Refused, match="unmanaged"):
        act(host.ports, FIRST, OFF)


def test_vgpus_say_which_instances_there_are_also_those_with_graphics(tmp_path):
    host = open_sim_host(tmp_path, "rtx-pro-6000")
    types = [t.name.split()[-1] for t in host.sim.nvml.gpu(FIRST).types.values() if t.gi_profile_id is not None]
    profile = next(t for t in types if t.endswith("-2-48Q"))
    act(host.ports, FIRST, MigSpec(vgpus=((profile, 2),)))
    assert names(host) == ["2g.48gb+gfx", "2g.48gb+gfx"]
    assert configured_gpu(host).mig == MigSpec(vgpus=((profile, 2),))
    assert not act(host.ports, FIRST, MigSpec(vgpus=((profile, 2),))).changed


def everything_of_second(host):
    return everything(host, SECOND)


def schedulers(host):
    return {state.policy for state in host.sim.nvml.gpu(FIRST).gi_schedulers.values()}


def asks(host, gpu, policy):
    host.sim.host_file.parent.mkdir(parents=True, exist_ok=True)
    host.sim.host_file.write_text(f'version: 1\ngpus: {{"{gpu}": {{scheduler: {{policy: {policy}}}}}}}\n')


def test_each_instance_gets_the_scheduler_that_host_yaml_asks_for_where_it_has_one(tmp_path):
    host = open_sim_host(tmp_path, "rtx-pro-6000")
    asks(host, FIRST, "fixed_share")
    done = act(host.ports, FIRST, mig("2g.48gb+gfx", "1g.24gb+gfx"))
    assert done.steps[-2] == f"set the scheduler of each GPU instance of {FIRST} to fixed_share (NVML)"
    assert (len(host.sim.nvml.gpu(FIRST).gi_schedulers), schedulers(host)) == (2, {SchedulerPolicy.FIXED_SHARE})
    act(host.ports, FIRST, mig("2g.48gb+gfx", "2g.48gb+gfx"))
    assert schedulers(host) == {SchedulerPolicy.FIXED_SHARE}
    gpus = parse_host_spec(host.ports.host_file.read(), "f").gpus
    host = rebooted(host)
    for _ in range(2):
        result = restore_gpus(host.ports, context(wait_seconds=5), gpus)
        assert [one.error for one in result] == [None]
    assert (result[0].steps, schedulers(host)) == ((), {SchedulerPolicy.FIXED_SHARE})
    asked = SchedulerRequest(FIRST, SchedulerSpec(SchedulerPolicy.EQUAL_SHARE))
    done = set_scheduler(host.ports, context(), asked)
    assert (done.steps[0][:31], schedulers(host)) == ("set the scheduler of each GPU i", {SchedulerPolicy.EQUAL_SHARE})
    assert not set_scheduler(host.ports, context(), asked).changed


def test_before_gb20x_a_scheduler_with_mig_is_refused(host):
    asks(host, SECOND, "equal_share")
    message = "with MIG on, its vGPUs always have a fixed share before Blackwell"
    with unchanged(host, everything_of_second), pytest.raises(HostCannot, match=message) as raised:
        act(host.ports, SECOND, mig("1g.10gb"))
    assert f"vgpuctl apply --set 'gpus[{SECOND}].scheduler=null'" in str(raised.value.hint)


def test_passthrough_takes_mig_from_a_gpu_and_the_mode_vgpu_brings_it_back(host):
    act(host.ports, FIRST, mig("3g.40gb"))
    done = act(host.ports, FIRST, mode="passthrough")
    assert done.steps[:2] == (
        "turn the 32 VFs of 0000:3b:00.0 off (sriov-manage)",
        "turn MIG of 0000:3b:00.0 off (NVML)",
    )
    assert (partition_state(host)[0], configured_gpu(host).mig) == ((False, False), mig("3g.40gb"))
    act(host.ports, FIRST, mode="vgpu")
    assert names(host) == ["3g.40gb"]


def test_a_boot_takes_it_all_away_and_restore_host_brings_it_back_before_vgpus(host):
    act(host.ports, FIRST, OFF)
    act(host.ports, FIRST, mixed=True)
    act(host.ports, SECOND, MigSpec(vgpus=(("H100-1-10C", 2),)))
    host = rebooted(host)
    assert partition_state(host, SECOND)[1] == []
    gpus = parse_host_spec(host.ports.host_file.read(), "f").gpus
    result = restore_gpus(host.ports, context(wait_seconds=5), gpus)
    assert [one.error for one in result] == [None, None]
    assert (partition_state(host)[2], names(host, SECOND)) == (True, ["1g.10gb", "1g.10gb"])
    again = restore_gpus(host.ports, context(wait_seconds=5), gpus)
    assert [one.steps for one in again] == [(), ()]


def test_mig_requires_an_explicit_mode(host):
    gpus = parse_host_spec('version: 1\ngpus: {"0000:3b:00.0": {mig: [1g.10gb]}}\n', "f").gpus
    (result,) = restore_gpus(host.ports, context(wait_seconds=5), gpus)
    assert isinstance(result.error, InvalidInput)
    assert "no mode, which it requires" in str(result.error)


def test_ampere_is_reset_where_that_is_what_mig_waits_for(tmp_path):
    host = small(tmp_path, "A100", faults=PENDING)
    act(host.ports, FIRST, mig("3g.20gb", "1g.5gb"))
    assert names(host) == ["3g.20gb", "1g.5gb"]


def test_a_kernel_on_which_a_reset_hangs_the_host_needs_a_reboot(tmp_path):
    host = small(tmp_path, "A100", kernel="7.0.0-14-generic", faults=PENDING)
    with pytest.raises(PartlyApplied, match="turns on at its next reset") as raised:
        act(host.ports, FIRST, mig("3g.20gb"))
    assert "reboot the host, then run the command again" in str(raised.value.hint)
    assert any("at the host's next boot" in line for line in raised.value.left)
    assert (partition_state(host)[0], host.ports.host_file.read()) == ((False, True), None)
    assert picture(host).types == {}
    host = rebooted(host)
    act(host.ports, FIRST, mig("3g.20gb"))
    assert (partition_state(host)[0], names(host)) == ((True, True), ["3g.20gb"])


def test_who_has_the_driver_open_is_named_and_everything_is_as_before(tmp_path):
    host = small(tmp_path, "H100", more="held_by: dcgm-exporter")
    with unchanged(host, everything), pytest.raises(InUse, match="is in use"):
        act(host.ports, FIRST, mig("1g.10gb"))


def test_what_waits_for_somebody_who_has_the_driver_open_is_taken_back(tmp_path):
    host = small(tmp_path, "A100", more="held_by: dcgm-exporter, vfs: {enabled: 0}")
    message = r"turns on at its next reset: dcgm-exporter \(pid \d+\) has NVIDIA's driver open"
    with unchanged(host, everything), pytest.raises(Busy, match=message) as raised:
        act(host.ports, FIRST, mig("3g.20gb"))
    assert (raised.value.hint, raised.value.left) == ("stop these programs, then run the command again", [])


def test_what_was_set_and_read_back_and_is_wiped_then_is_noticed(host):
    wipe = partial(host.ports.nvml.set_mixed_size, SECOND, enabled=False)
    with pytest.raises(VerifyFailed, match="mixed_size is False, not True"):
        act(on_call(host.ports, "host_file.replace", wipe, after=True), SECOND, mixed=True)


def test_nothing_else_runs_during_a_gpu_setup(host):
    seen = []

    def others():
        seen.extend(map(outcome, (lambda: act(host.ports, SECOND, OFF), lambda: start(host.ports, "vm"))))

    act(host.ports, SECOND, mig("1g.10gb", "1g.10gb"))
    create(host.ports, request("H100-1-10C", name="vm", gpu=SECOND))
    stop(host.ports, "vm")
    act(on_call(host.ports, "nvml.create_gpu_instance", others), SECOND, mig("1g.10gb", "1g.10gb", "1g.10gb"))
    assert list(map(type, seen)) == [Busy, Busy]


def test_instances_stay_when_vfs_go_on_and_nobody_asks_for_others(tmp_path):
    """Turning VFs on removes GPU instances; MIG that host.yaml does not mention stays as it is."""
    host = small(tmp_path, more="mig: [3g.40gb, 1g.10gb], vfs: {total: 32, enabled: 0}")
    before = partition_state(host)
    act(host.ports, FIRST, mode="vgpu")
    assert (partition_state(host), names(host)) == (before, ["3g.40gb", "1g.10gb"])
    assert host.ports.sysfs.read(f"/sys/bus/pci/devices/{FIRST}/sriov_numvfs").strip() == "32"


@pytest.mark.parametrize(("wanted", "mixed"), [(OFF, None), (None, False)])
def test_what_nvml_does_not_tell_is_not_called_off(tmp_path, wanted, mixed):
    host = small(tmp_path, more="mig: [3g.40gb]", faults='{on: nvml, match: "*", message: no library}')
    with pytest.raises(HostCannot, match="NVML, which sets it, does not answer: no library"):
        act(host.ports, FIRST, wanted, mixed)


def test_mixed_sizes_are_set_on_an_empty_gpu_and_again_with_new_vfs(host):
    assert act(host.ports, SECOND, mixed=True).data.partition.mixed_size is True
    assert configured_gpu(host, SECOND).mixed_size is True
    assert not act(host.ports, SECOND, mixed=True).changed
    act(host.ports, SECOND, mode="passthrough")
    done = act(host.ports, SECOND, mode="vgpu")
    assert done.steps[-2] == "turn mixed sizes of 0000:3f:00.0 on (NVML)"
    assert partition_state(host, SECOND)[2] is True
    act(host.ports, SECOND, mixed=False)
    assert (partition_state(host, SECOND)[2], configured_gpu(host, SECOND).mixed_size) == (False, None)


def test_mixed_sizes_are_drained_for_and_every_vm_is_back(host):
    create(host.ports, request("H100-10C", name="on", gpu=SECOND))
    create(host.ports, request("H100-10C", name="off", gpu=SECOND))
    stop(host.ports, "off")
    before = picture(host)
    with pytest.raises(InUse, match=r"2 vGPUs of off, on, and the driver changes mixed sizes") as raised:
        act(host.ports, SECOND, mixed=True)
    assert str(raised.value.hint).startswith("--drain shuts")
    done = act(host.ports, SECOND, mixed=True, drain=True)
    assert (done.steps[0], done.steps[-1]) == ("shut down VM on", "start VM on again")
    assert (partition_state(host, SECOND)[2], picture(host)) == (True, before)


def test_vgpus_without_a_recorded_placement_are_restored_next_to_each_other(host):
    for name in ("one", "two"):
        create(host.ports, request("H100-40C", name=name, gpu=SECOND), start=False)
    act(host.ports, SECOND, mixed=True, drain=True)
    host = rebooted(host)
    spec = parse_host_spec(host.ports.host_file.read(), "host.yaml")
    done = restore_host(host.ports, context(wait_seconds=5.0), spec)
    assert [entry.name for entry in done.data.restored] == [SECOND, "one", "two"]
    snapshot = observe(host.ports, ReadScope(types=True))
    (first, second) = (vgpu.placement_id for vgpu in snapshot.vgpus_on(SECOND))
    assert None not in (first, second)
    assert first != second


def test_vgpus_of_several_sizes_keep_mixed_sizes_on(host):
    act(host.ports, SECOND, mixed=True)
    create(host.ports, request("H100-40C", name="large", gpu=SECOND))
    create(host.ports, request("H100-10C", name="small", gpu=SECOND))
    with pytest.raises(InUse, match="has H100-10C, H100-40C of large, small, which have several sizes"):
        act(host.ports, SECOND, mixed=False, drain=True)


def five_where_mixed_sizes_have_four_places(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    for number in range(5):
        create(host.ports, request("H100-16C", name=f"vm-{number}", gpu=SECOND))
    return host


def test_more_vgpus_than_mixed_size_placements_are_refused_before_any_change(tmp_path):
    host = five_where_mixed_sizes_have_four_places(tmp_path)
    message = r"has H100-16C of vm-0, .* fewer fit with mixed sizes"
    for drain in (True, False):
        with unchanged(host, everything_of_second), pytest.raises(InUse, match=message):
            act(host.ports, SECOND, mixed=True, drain=drain, dry_run=drain)


def test_more_vgpus_than_a_driver_has_places_for_that_reports_them_only_while_on_leave_it_as_it_was(tmp_path):
    host = five_where_mixed_sizes_have_four_places(tmp_path)
    only_while_on = with_calls(host.ports, "nvml", placements=lambda address: {})
    with unchanged(host, everything_of_second), pytest.raises(NoCapacity, match="no room for H100-16C") as raised:
        act(only_while_on, SECOND, mixed=True, drain=True)
    assert raised.value.left == []


def test_set_mig_drops_mixed_sizes_which_it_excludes(host):
    act(host.ports, SECOND, mixed=True)
    with pytest.raises(InvalidInput, match="at the same time"):
        act(host.ports, SECOND, mig("1g.10gb"))
    act(host.ports, SECOND, mig("1g.10gb"), mixed=False)
    assert configured_gpu(host, SECOND).mixed_size is None
    assert partition_state(host, SECOND) == ((True, True), ["19@0:1"], None)
    act(host.ports, SECOND, OFF, mixed=True)
    assert configured_gpu(host, SECOND).mixed_size is True
    assert partition_state(host, SECOND) == ((False, False), [], True)


def test_mixed_sizes_that_go_off_on_a_gpu_without_vfs_turn_them_on_only_where_host_yaml_asks_for_vgpus(tmp_path):
    host = small(tmp_path, more="vfs: {enabled: 0}, mig: [1g.10gb]")
    assert act(host.ports, FIRST, None, mixed=False).steps == ()
    assert (count_vfs(host.ports, FIRST), host.ports.host_file.read()) == (0, None)
    assert partition_state(host.again())[:2] == ((True, True), ["19@0:1"])
    other = small(tmp_path / "vgpu", more="vfs: {enabled: 0}")
    other.ports.host_file.replace(f'version: 1\ngpus: {{"{FIRST}": {{mode: vgpu}}}}\n', None)
    act(other.ports, FIRST, None, mixed=False)
    assert count_vfs(other.ports, FIRST) > 0
