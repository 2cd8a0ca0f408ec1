# SPDX-License-Identifier: Apache-2.0
"""MIG and mixed sizes: only the steps needed, in the order that works, and no VM loses what its record reserves."""

from __future__ import annotations

import pytest

from tests.hosts import context, create, open_sim_host, picture, request, start, stop
from tests.partitions import FIRST, OFF, SECOND, act, configured_gpu, everything, mig, names, partition_state, small
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.errors import Busy, HostCannot, InUse, InvalidInput, NoCapacity, PartlyApplied, Refused, VerifyFailed
from vgpuctl.model.gpu import MigSpec
from vgpuctl.model.results.gpus import PartitionResult
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.operations.gpu_mode import restore_gpus
from vgpuctl.operations.gpu_scheduler import SchedulerRequest, set_scheduler
from vgpuctl.value import replace

MAKE = "create GPU instance {} on 0000:3f:00.0 at {} (NVML)"
WRITE = "write 'mode: vgpu, mig: [{}]' for GPU 0000:3f:00.0 to /etc/vgpuctl/host.yaml"


def test_mig_goes_on_between_vfs_off_and_vfs_on_and_the_larger_instances_come_first(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
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


def test_a_dry_run_changes_nothing(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    before = everything(host, SECOND)
    assert len(act(host.ports, SECOND, mig("1g.10gb"), dry_run=True).steps) == 5
    assert everything(host, SECOND) == before


def test_while_mig_stays_on_the_vfs_stay_and_only_instances_that_go_are_touched(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    done = act(host.ports, FIRST, mig("4g.40gb", "1g.10gb", "1g.10gb"))
    assert done.steps[:2] == (
        "destroy GPU instance 3g.40gb on 0000:3b:00.0 at 0:4 (NVML)",
        "create GPU instance 4g.40gb on 0000:3b:00.0 at 0:4 (NVML)",
    )
    assert names(host) == ["4g.40gb", "1g.10gb", "1g.10gb"]


def test_a_vm_runs_on_while_instances_change_that_it_is_not_in(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    create(host.ports, request("H100-3-40C", name="vm", gpu=FIRST))
    running = picture(host).running
    done = act(host.ports, FIRST, mig("3g.40gb", "2g.20gb"))
    assert not any("shut down" in step for step in done.steps)
    assert picture(host).running == running
    assert names(host) == ["3g.40gb", "2g.20gb"]


def test_mig_goes_off_and_the_gpu_has_its_time_sliced_vgpus_again(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    act(host.ports, FIRST, OFF)
    assert (partition_state(host), configured_gpu(host).mig) == (((False, False), [], False), OFF)
    create(host.ports, request("H100-10C", gpu=FIRST))
    with pytest.raises(InUse, match=r"has H100-10C of .*, and with MIG on it has no time-sliced vGPUs"):
        act(host.ports, FIRST, mig("1g.10gb"))


@pytest.mark.parametrize("running", [True, False])
def test_a_vm_whose_instance_would_be_gone_is_named_with_its_profile(tmp_path, running):
    host = open_sim_host(tmp_path, "h100-mig")
    create(host.ports, request("H100-3-40C", name="vm", gpu=FIRST))
    if not running:
        stop(host.ports, "vm")
    before = everything(host)
    for wanted in (OFF, mig("1g.10gb")):
        for drain in (False, True):
            with pytest.raises(InUse, match=r"has H100-3-40C of vm") as raised:
                act(host.ports, FIRST, wanted, drain=drain)
            assert (raised.value.facts["vms"], raised.value.facts["profiles"]) == (["vm"], ["H100-3-40C"])
    with pytest.raises(InUse, match="vm"):
        act(host.ports, FIRST, mode="passthrough")
    assert everything(host) == before


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
def test_impossible_layouts_are_refused_early(tmp_path, wanted, mixed, kind, message):
    host = open_sim_host(tmp_path, "h100-mig")
    before = everything(host)
    with pytest.raises(kind, match=message):
        act(host.ports, FIRST, wanted, mixed)
    assert everything(host) == before


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


def test_an_unmanaged_gpu_is_left_alone(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
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
    host.sim.reboot()
    host = host.again()
    for _ in range(2):
        result = restore_gpus(host.ports, context(wait_seconds=5), gpus)
        assert [one.error for one in result] == [None]
    assert (result[0].steps, schedulers(host)) == ((), {SchedulerPolicy.FIXED_SHARE})
    asked = SchedulerRequest(FIRST, SchedulerSpec(SchedulerPolicy.EQUAL_SHARE))
    done = set_scheduler(host.ports, context(), asked)
    assert (done.steps[0][:31], schedulers(host)) == ("set the scheduler of each GPU i", {SchedulerPolicy.EQUAL_SHARE})
    assert not set_scheduler(host.ports, context(), asked).changed


def test_before_gb20x_a_scheduler_with_mig_is_refused(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    asks(host, SECOND, "equal_share")
    before = everything(host, SECOND)
    with pytest.raises(HostCannot, match="with MIG on, its vGPUs always have a fixed share before Blackwell") as raised:
        act(host.ports, SECOND, mig("1g.10gb"))
    assert f"vgpuctl apply --set 'gpus[{SECOND}].scheduler=null'" in str(raised.value.hint)
    assert everything(host, SECOND) == before


def test_passthrough_takes_mig_from_a_gpu_and_the_mode_vgpu_brings_it_back(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    act(host.ports, FIRST, mig("3g.40gb"))
    done = act(host.ports, FIRST, mode="passthrough")
    assert done.steps[:2] == (
        "turn the 32 VFs of 0000:3b:00.0 off (sriov-manage)",
        "turn MIG of 0000:3b:00.0 off (NVML)",
    )
    assert (partition_state(host)[0], configured_gpu(host).mig) == ((False, False), mig("3g.40gb"))
    act(host.ports, FIRST, mode="vgpu")
    assert names(host) == ["3g.40gb"]


def test_a_boot_takes_it_all_away_and_restore_host_brings_it_back_before_vgpus(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    act(host.ports, FIRST, OFF)
    act(host.ports, FIRST, mixed=True)
    act(host.ports, SECOND, MigSpec(vgpus=(("H100-1-10C", 2),)))
    host.sim.reboot()
    host = host.again()
    assert partition_state(host, SECOND)[1] == []
    gpus = parse_host_spec(host.ports.host_file.read(), "f").gpus
    result = restore_gpus(host.ports, context(wait_seconds=5), gpus)
    assert [one.error for one in result] == [None, None]
    assert (partition_state(host)[2], names(host, SECOND)) == (True, ["1g.10gb", "1g.10gb"])
    again = restore_gpus(host.ports, context(wait_seconds=5), gpus)
    assert [one.steps for one in again] == [(), ()]


def test_mig_requires_an_explicit_mode(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    gpus = parse_host_spec('version: 1\ngpus: {"0000:3b:00.0": {mig: [1g.10gb]}}\n', "f").gpus
    (result,) = restore_gpus(host.ports, context(wait_seconds=5), gpus)
    assert isinstance(result.error, InvalidInput)
    assert "no mode, which it requires" in str(result.error)


PENDING = '{on: nvml-set-mig, match: "*", kind: pending}'


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
    host.sim.reboot()
    host = host.again()
    act(host.ports, FIRST, mig("3g.20gb"))
    assert (partition_state(host)[0], names(host)) == ((True, True), ["3g.20gb"])


def test_who_has_the_driver_open_is_named_and_everything_is_as_before(tmp_path):
    host = small(tmp_path, "H100", more="held_by: dcgm-exporter")
    before = everything(host)
    with pytest.raises(InUse, match="is in use"):
        act(host.ports, FIRST, mig("1g.10gb"))
    assert everything(host) == before


def test_what_waits_for_somebody_who_has_the_driver_open_is_taken_back(tmp_path):
    host = small(tmp_path, "A100", more="held_by: dcgm-exporter, vfs: {enabled: 0}")
    before = everything(host)
    with pytest.raises(
        Busy, match=r"turns on at its next reset: dcgm-exporter \(pid \d+\) has NVIDIA's driver open"
    ) as raised:
        act(host.ports, FIRST, mig("3g.20gb"))
    assert raised.value.hint == "stop these programs, then run the command again"
    assert (everything(host), raised.value.left) == (before, [])


def test_what_was_set_and_read_back_and_is_wiped_then_is_noticed(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    nvml = host.ports.nvml

    class Wiping:
        """A host file after whose writing another program turns mixed sizes off."""

        def __getattr__(self, name):
            return getattr(host.ports.host_file, name)

        def replace(self, text, expected, *, is_undo=False):
            host.ports.host_file.replace(text, expected)
            nvml.set_mixed_size(SECOND, enabled=False)

    with pytest.raises(VerifyFailed, match="mixed_size is False, not True"):
        act(replace(host.ports, host_file=Wiping()), SECOND, mixed=True)


def test_nothing_else_runs_during_a_gpu_setup(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    seen = []

    class Meanwhile:
        def __getattr__(self, name):
            return getattr(host.ports.nvml, name)

        def create_gpu_instance(self, *args):
            for attempt in (lambda: act(host.ports, SECOND, OFF), lambda: start(host.ports, "vm")):
                try:
                    attempt()
                except Exception as error:  # noqa: BLE001 - the result is checked below
                    seen.append(type(error))
            return host.ports.nvml.create_gpu_instance(*args)

    act(host.ports, SECOND, mig("1g.10gb", "1g.10gb"))
    create(host.ports, request("H100-1-10C", name="vm", gpu=SECOND))
    stop(host.ports, "vm")
    act(replace(host.ports, nvml=Meanwhile()), SECOND, mig("1g.10gb", "1g.10gb", "1g.10gb"))
    assert seen == [Busy, Busy]


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
