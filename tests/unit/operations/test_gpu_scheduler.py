# SPDX-License-Identifier: Apache-2.0
"""Setting a GPU's scheduler: all or nothing, VMs restored as they were, and the same again after a boot."""

from __future__ import annotations

import pytest

from tests.hosts import create, open_sim_host, picture, request, start, stop
from tests.layouts import A16, A100, do
from tests.meanwhile import on_call, rebooted, unchanged
from tests.schedulers import (
    BEST,
    EQUAL,
    FIXED,
    POOL,
    TWO_MS,
    act,
    configured_scheduler,
    everything,
    restore,
    runs,
    small,
    with_vms,
)
from tests.vgpus import make
from vgpuctl.errors import Failed, HostCannot, InUse, InvalidInput, VerifyFailed
from vgpuctl.host.absent import AbsentNvml
from vgpuctl.model.vgpu_scheduler import SchedulerSpec, SchedulerState
from vgpuctl.operations.queries import list_gpus, show_gpu
from vgpuctl.value import replace


def test_it_is_set_shown_and_written_down_and_a_second_run_changes_nothing(host):
    planned = act(host.ports, TWO_MS, dry_run=True)
    assert planned.steps[0] == "set the scheduler of 0000:3b:00.0 to fixed_share, time slice 2 ms (NVML)"
    assert everything(host)[:2] == (BEST, None)
    done = act(host.ports, TWO_MS)
    assert (done.changed, done.steps) == (True, planned.steps)
    assert (runs(host), configured_scheduler(host)) == (SchedulerState(FIXED, False, 2_000_000), TWO_MS)
    pair = list_gpus(host.ports).data[0].scheduler
    assert pair.configured == TWO_MS
    assert (pair.running.policy, pair.running.time_slice_us) == ("fixed_share", 2000)
    assert not act(host.ports, TWO_MS).changed
    assert host.ports.claims.all() == ()
    assert act(host.ports, SchedulerSpec(FIXED)).changed
    assert runs(host) == SchedulerState(FIXED, True, 1_041_666, 33), "without a time slice the driver chooses"


def test_vgpus_block_it_unless_drain_is_given(tmp_path):
    host = with_vms(open_sim_host(tmp_path))
    before = everything(host)
    with pytest.raises(InUse, match="2 vGPU") as raised:
        act(host.ports, TWO_MS)
    assert raised.value.facts["vms"] == ["off", "on"]
    assert "--drain" in str(raised.value.hint)
    planned = act(host.ports, TWO_MS, drain=True, dry_run=True)
    assert (planned.steps[0], planned.steps[-1]) == ("shut down VM on", "start VM on again")
    assert everything(host) == before
    done = act(host.ports, TWO_MS, drain=True)
    assert done.steps == planned.steps
    assert (runs(host), configured_scheduler(host)) == (SchedulerState(FIXED, False, 2_000_000), TWO_MS)
    assert picture(host) == before[2]
    stop(host.ports, "on")
    stopped = picture(host)
    with pytest.raises(InUse):
        act(host.ports, SchedulerSpec(EQUAL))
    assert act(host.ports, SchedulerSpec(EQUAL), drain=True).changed
    assert picture(host) == stopped
    start(host.ports, "off")


@pytest.mark.parametrize(
    ("model", "profile", "kernel"), [("T4", "T4-2Q", "6.8.0"), ("A16", "A16-2Q", "5.14.0"), ("A16", "A16-2Q", "6.8.0")]
)
def test_mdevs_come_back_with_their_uuids_and_parameters(tmp_path, model, profile, kernel):
    text = f'version: 1\nkernel: "{kernel}"\n{POOL}\ngpus: [{{address: "{A100}", model: {model}}}]\n'
    host = open_sim_host(tmp_path, text=text)
    create(host.ports, request(profile, 2, name="on", vgpu_params=(("frame_rate_limiter", "0"),)))
    before = picture(host)
    assert act(host.ports, TWO_MS, drain=True).changed
    assert (picture(host), runs(host)) == (before, SchedulerState(FIXED, False, 2_000_000))


def test_new_vfs_come_also_where_nvml_cannot_set_a_scheduler(tmp_path):
    host = small(tmp_path, driver="470.63")
    with pytest.raises(HostCannot, match="NVML cannot set it"):
        act(host.ports, TWO_MS)
    do(host.ports, A100, "passthrough")
    assert do(host.ports, A100, "vgpu").data.vfs.enabled == 2
    assert configured_scheduler(host) == TWO_MS


def test_an_unmanaged_vgpu_is_never_removed(host):
    host.ports.sysfs.write("/sys/bus/pci/devices/0000:3b:00.6/nvidia/current_vgpu_type", "468\n")
    with unchanged(host, everything), pytest.raises(InUse, match="does not remove"):
        act(host.ports, TWO_MS, drain=True)


def test_a_vgpu_that_comes_between_the_looks_is_seen(host):
    vf = "/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type"
    ports = on_call(host.ports, "claims.lock", lambda: host.ports.sysfs.write(vf, "468\n"), nth=1)
    with pytest.raises(InUse, match="does not remove"):
        act(ports, TWO_MS)
    assert (runs(host), host.ports.claims.all()) == (BEST, ())


@pytest.mark.parametrize(
    ("gpu", "wanted", "text"),
    [
        ("0000:86:00.0", SchedulerSpec(EQUAL), "vgpuctl cannot set"),
        (A100, SchedulerSpec(EQUAL, 31), "the driver accepts 1 to 30 ms"),
        (A100, SchedulerSpec(EQUAL, None, 40), "the driver accepts 63 to 960"),
    ],
)
def test_what_a_gpu_cannot_have_is_refused_before_anything_is_touched(tmp_path, gpu, wanted, text):
    host = open_sim_host(tmp_path, "mixed")
    with unchanged(host), pytest.raises(HostCannot, match=text):
        act(host.ports, wanted, gpu=gpu, drain=True)
    assert configured_scheduler(host, gpu) is None


def test_a_driver_with_adaptive_round_robin_alone_has_no_slice(tmp_path):
    host = small(tmp_path, driver="595.45.04")
    with pytest.raises(HostCannot, match="595"):
        act(host.ports, TWO_MS)
    act(host.ports, SchedulerSpec(FIXED, None, 480))
    assert runs(host).time_slice_ns == 2_083_333


def test_a_lost_scheduler_write_is_detected(tmp_path):
    host = small(tmp_path, more='faults: [{on: nvml-set-scheduler, match: "*", kind: lost}]')
    with pytest.raises(VerifyFailed, match="reads back as best_effort"):
        act(host.ports, TWO_MS)
    assert (configured_scheduler(host), host.ports.claims.all()) == (None, ())


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (2, InvalidInput, "does not accept"),
        (3, HostCannot, "MIG is on"),
        (4, Failed, "root"),
        (16, Failed, "reset"),
        (999, Failed, "injected"),
    ],
)
def test_an_nvml_refusal_is_undone_and_its_reason_reported(tmp_path, code, kind, text):
    fault = f'{{on: nvml-set-scheduler, match: "*", code: {code}, message: injected}}'
    host = with_vms(small(tmp_path, more=f"{POOL}\nfaults: [{fault}]"))
    with unchanged(host, everything), pytest.raises(kind, match=text):
        act(host.ports, TWO_MS, drain=True)


def test_new_vfs_get_the_scheduler_that_host_yaml_asks_for(host):
    act(host.ports, TWO_MS)
    do(host.ports, A100, "passthrough")
    done = do(host.ports, A100, "vgpu")
    assert any("set the scheduler" in step for step in done.steps)
    assert runs(host) == SchedulerState(FIXED, False, 2_000_000)


def test_a_restore_after_a_boot_sets_it_before_the_vgpus_come_back(tmp_path):
    host = with_vms(open_sim_host(tmp_path))
    act(host.ports, TWO_MS, drain=True)
    types = picture(host).types
    host = rebooted(host)
    assert (runs(host), picture(host).types) == (BEST, {})
    done = restore(host)
    assert [entry.kind for entry in done.data.restored] == ["gpu", "vm", "vm"]
    assert (runs(host), picture(host).types) == (SchedulerState(FIXED, False, 2_000_000), types)
    assert not restore(host).changed


def test_a_restore_sets_it_after_the_vfs_of_a_gpu_that_has_vgpus_alone(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    do(host.ports, A16, "vgpu")
    for gpu in (A16, A100):
        act(host.ports, TWO_MS, gpu=gpu)
    do(host.ports, A100, "passthrough")
    host = rebooted(host)
    assert sorted(entry.name for entry in restore(host).data.restored) == [A16, A100]
    assert (runs(host, A16), runs(host, A100)) == (SchedulerState(FIXED, False, 2_000_000), BEST)
    assert not restore(host).changed


def test_a_restore_that_comes_after_libvirts_hook_names_the_command_that_sets_it(tmp_path):
    host = with_vms(open_sim_host(tmp_path))
    act(host.ports, TWO_MS, drain=True)
    host = rebooted(host)
    start(replace(host.ports, nvml=AbsentNvml("libvirt's hook has none")), "on")
    with pytest.raises(Failed, match=f"1 of 3 could not be restored: gpu {A100} has 1 vGPU of on, and") as raised:
        restore(host)
    wanted = "vgpuctl set-scheduler 0000:3b:00.0 --policy fixed_share --time-slice 2 --drain"
    assert str(raised.value.hint).startswith(wanted)


def test_a_vgpu_without_a_vm_is_drained_and_restored(host):
    with_vms(host)
    make(host.ports)
    with unchanged(host):
        with pytest.raises(InUse, match="off, on, vGPU spare"):
            act(host.ports, TWO_MS)
        act(host.ports, TWO_MS, drain=True)
    assert configured_scheduler(host) == TWO_MS
    assert [s.name for s in show_gpu(host.ports, A100).data.shares] == [None, None, "spare"]
