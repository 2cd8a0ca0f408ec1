# SPDX-License-Identifier: Apache-2.0
"""MIG: when its mode changes and how long it stays, instances, and the vGPUs in them."""

from __future__ import annotations

import errno
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.sim.hosts import GPU, MakeHost, pci_device, refused, run_vm, set_type, vf
from vgpuctl.errors import InvalidInput, NvmlFailed
from vgpuctl.model.gpu import MigState
from vgpuctl.sim import SimHost, mig
from vgpuctl.sim.machine import build_machine
from vgpuctl.sim.refusals import NvmlError
from vgpuctl.sim.scenario import compile_scenario
from vgpuctl.sim.state import State

NOT_SUPPORTED, IN_USE, INSUFFICIENT_RESOURCES = 3, 19, 23
OTHER = "0000:3f:00.0"
FREE = "gpus: [{model: %s, vfs: {enabled: 0}}]\n"


def seen(host: SimHost, gpu: str = GPU) -> MigState:
    reported = host.nvml.gpu(gpu)
    assert reported is not None
    assert reported.mig is not None
    return reported.mig


def mode(host: SimHost) -> tuple[bool, bool]:
    return seen(host).enabled, seen(host).pending_enabled


def spans(host: SimHost) -> list[tuple[int, str]]:
    return [(i.profile_id, str(i.placement)) for i in seen(host).instances]


def cycle(host: SimHost) -> None:
    for flag in ("-d", "-e"):
        assert host.vendor.sriov_manage(flag, GPU, deadline_seconds=1).status == 0


def listed(host: SimHost, number: int) -> list[str]:
    lines = host.sysfs.read(f"{vf(number)}/nvidia/creatable_vgpu_types").splitlines()
    return [line.rpartition(" ")[2] for line in lines[1:]]


def code(call, *values, **named) -> object:
    with pytest.raises(NvmlFailed) as raised:
        call(*values, **named)
    return raised.value.facts["nvml_code"]


def test_two_h100s_one_of_them_partitioned(make: MakeHost) -> None:
    host = make("h100-mig")
    assert (mode(host), spans(host)) == ((True, True), [(9, "0:4"), (19, "4:1"), (19, "5:1")])
    assert seen(host, OTHER) == MigState(False, False, seen(host).profiles)
    assert listed(host, 0) == ["H100-1-10C", "H100-3-40C"]
    assert "H100-10C" in host.sysfs.read(f"/sys/bus/pci/devices/{OTHER}/virtfn0/nvidia/creatable_vgpu_types")


@pytest.mark.parametrize(
    ("wanted", "there"),
    [
        ("3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb", [(9, "4:4"), (14, "0:2"), (19, "2:1"), (19, "3:1")]),
        ("1g.10gb, 4g.40gb", [(19, "4:1"), (5, "0:4")]),
        ("1g.10gb, 1g.20gb, 3g.40gb", [(19, "0:1"), (15, "2:2"), (9, "4:4")]),
        ("3g.40gb, 3g.40gb", [(9, "0:4"), (9, "4:4")]),
    ],
)
def test_instances_that_fit_together_are_there_from_the_beginning(make: MakeHost, wanted: str, there: object) -> None:
    assert spans(make(f"gpus: [{{model: H100, mig: [{wanted}]}}]\n")) == there


@pytest.mark.parametrize(
    ("wanted", "refused"),
    [
        ("4g.40gb, 4g.40gb", "4g.40gb"),
        ("3g.40gb, 2g.20gb, 2g.20gb, 1g.10gb", "1g.10gb"),
        ("1g.10gb+me, 1g.10gb+me", "1g.10gb+me"),
        ("7g.80gb, 1g.10gb", "1g.10gb"),
    ],
)
def test_the_first_instance_without_a_placement_is_named(make: MakeHost, wanted: str, refused: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(f"has no room for {refused}")):
        make(f"gpus: [{{model: H100, mig: [{wanted}]}}]\n")


def test_only_some_gpus_have_it(make: MakeHost) -> None:
    host = make("l40s-x4")
    reported = host.nvml.gpu(GPU)
    assert reported is not None
    assert reported.mig is None
    assert code(host.nvml.set_mig, GPU, enabled=True) == NOT_SUPPORTED
    assert code(host.nvml.create_gpu_instance, GPU, 19, 0) == NOT_SUPPORTED
    assert code(host.nvml.set_mig, "0000:99:00.0", enabled=True) == NOT_SUPPORTED


def test_vfs_and_instances_block_a_change(make: MakeHost) -> None:
    host = make("h100-mig")
    assert code(host.nvml.set_mig, GPU, enabled=False) == IN_USE
    host.nvml.set_mig(GPU, enabled=True)
    host.vendor.sriov_manage("-d", GPU, deadline_seconds=1)
    assert spans(host) == []
    host.nvml.create_gpu_instance(GPU, 0, 0)
    assert code(host.nvml.set_mig, GPU, enabled=False) == IN_USE
    host.nvml.destroy_gpu_instance(GPU, seen(host).instances[0].gi_id)
    host.nvml.set_mig(GPU, enabled=False)
    assert mode(host) == (False, False)


@pytest.mark.parametrize(("model", "after"), [("A100", (True, True)), ("H100", (False, False))])
def test_only_ampere_keeps_it_over_a_boot_and_none_keeps_instances(
    make: MakeHost, model: str, after: tuple[bool, bool]
) -> None:
    host = make(f"gpus: [{{model: {model}, mig: []}}]\n")
    host.nvml.create_gpu_instance(GPU, 19, 0)
    cycle(host)
    assert (mode(host), spans(host)) == ((True, True), [])
    host.nvml.create_gpu_instance(GPU, 19, 0)
    host.reboot()
    assert (mode(host), spans(host)) == (after, [])


def test_on_ampere_it_waits_while_somebody_has_the_driver_open(make: MakeHost) -> None:
    host = make("gpus: [{model: A100, vfs: {enabled: 0}, held_by: nv-hostengine}]\n")
    host.nvml.set_mig(GPU, enabled=True)
    assert mode(host) == (False, True)
    assert host.vendor.reset_gpu(GPU, deadline_seconds=1).status == 19
    host.reboot()
    assert mode(host) == (True, True)
    later = make("gpus: [{model: H100, vfs: {enabled: 0}, held_by: nv-hostengine}]\n", "later")
    later.nvml.set_mig(GPU, enabled=True)
    assert mode(later) == (True, True)


@pytest.mark.parametrize(("model", "after"), [("A100", (False, True)), ("H100", (True, True))])
def test_a_change_can_be_made_to_wait_on_ampere(make: MakeHost, model: str, after: tuple[bool, bool]) -> None:
    host = make(FREE % model + "faults: [{on: nvml-set-mig, kind: pending, times: 1}]\n")
    host.nvml.set_mig(GPU, enabled=True)
    assert mode(host) == after


def test_a_pending_mode_comes_with_reset_or_boot_and_can_be_reverted(make: MakeHost) -> None:
    host = make(FREE % "A100" + "faults: [{on: nvml-set-mig, kind: pending}]\n")
    host.nvml.set_mig(GPU, enabled=True)
    assert code(host.nvml.create_gpu_instance, GPU, 19, 0) == NOT_SUPPORTED
    host.nvml.set_mig(GPU, enabled=False)
    assert mode(host) == (False, False)
    host.nvml.set_mig(GPU, enabled=True)
    host.reboot()
    assert mode(host) == (True, True)
    host.nvml.set_mig(GPU, enabled=False)
    assert mode(host) == (True, False)
    host.vendor.reset_gpu(GPU, deadline_seconds=1)
    assert mode(host) == (False, False)


def test_instances_are_made_where_the_profile_and_the_others_let_them(make: MakeHost) -> None:
    host = make("gpus: [{model: A100, mig: [3g.20gb, 1g.5gb+me]}]\n")
    make_one = host.nvml.create_gpu_instance
    assert spans(host) == [(9, "0:4"), (20, "4:1")]
    assert code(make_one, GPU, 20, 5) == INSUFFICIENT_RESOURCES, "one with the media engines"
    numbers = [make_one(GPU, 19, 5), make_one(GPU, 19, 6)]
    host.nvml.destroy_gpu_instance(GPU, numbers[0])
    assert make_one(GPU, 19, 5) == numbers[0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from((19, 20, 15, 14, 9, 5, 0)), st.integers(0, 7)), max_size=12))
def test_instances_never_overlap(asked: list[tuple[int, int]]) -> None:
    state = State(build_machine(compile_scenario("version: 1\ngpus: [{model: A100}]\n", "t.yaml")))
    (gpu,) = state.machine.gpus.values()
    state.apply([["partition", "mig", gpu.address, True, True]])
    for profile_id, start in asked:
        try:
            state.apply(mig.create_instance(state, gpu, profile_id, start)[1])
        except NvmlError:
            continue
    there = [instance.placement for instance in state.partitions.instances_on(gpu.address)]
    assert not any(a.overlaps(b) for a in there for b in there if a is not b)
    assert all(span.start + span.size <= 8 for span in there)
    assert sum(gpu.gi_profiles[i.profile_id].compute_slices for i in state.partitions.instances_on(gpu.address)) <= 7


def test_a_vgpu_in_use_stays_in_its_instance(make: MakeHost) -> None:
    host = make("h100-mig")
    path = f"{vf(0)}/nvidia/gpu_instance_id"
    set_type(host, 0, 821)
    host.sysfs.write(path, "7")
    run_vm(host, "user", 1, pci_device("0000:3b:00.4", managed=False))
    refused(errno.EPERM, lambda: host.sysfs.write(path, "8"))


def test_on_blackwell_several_vgpus_of_one_size_share_an_instance_of_the_gfx_kind(make: MakeHost) -> None:
    host = make("gpus: [{model: RTX PRO 6000, mig: [1g.24gb, 1g.24gb+gfx, 1g.24gb+gfx]}]\nnvidia: {driver: '595.1'}\n")
    for number in range(8):
        set_type(host, number, 1549)
    assert {host.sysfs.read(f"{vf(n)}/nvidia/gpu_instance_id") for n in range(8)} == {"4\n"}
    assert "DC-1-2Q" in listed(host, 8)
    set_type(host, 8, 1546)
    assert host.sysfs.read(f"{vf(8)}/nvidia/gpu_instance_id") == "5\n"
    refused(errno.EIO, lambda: set_type(host, 9, 1549))
    assert listed(host, 9) == ["DC-1-2Q", "DC-1-2A", "DC-1-2B"]
    assert host.nvml.gpu(GPU).types[1546].max_per_gi == 12


def test_somebody_elses_vgpu_can_be_there_from_the_beginning(make: MakeHost) -> None:
    host = make("gpus: [{model: H100, mig: [7g.80gb], vgpus: [{profile: H100-7-80C, vm: theirs}]}]\n")
    assert host.sysfs.read(f"{vf(0)}/nvidia/current_vgpu_type") == "825\n"
    assert code(host.nvml.destroy_gpu_instance, GPU, 0) == IN_USE


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("{model: L40S, mig: []}", "has no MIG"),
        ("{model: H100, mig: [1g.5gb]}", "did you mean '1g.20gb'"),
        ("{model: H100, mig: [7g.80gb, 1g.10gb]}", "no room for 1g.10gb"),
        ("{model: H100, mig: [], vgpus: [{profile: H100-10C}]}", "no room for H100-10C"),
        ("{model: H100, vgpus: [{profile: H100-1-10C}]}", "no room for H100-1-10C"),
    ],
)
def test_a_scenario_must_begin_with_a_valid_state(make: MakeHost, entry: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        make(f"gpus: [{entry}]\n")


@pytest.mark.parametrize("name", ["h100-mig", "rtx-pro-6000"])
def test_each_mig_type_has_a_profile_that_the_gpu_offers_and_fills_it(make: MakeHost, name: str) -> None:
    reported = make(name).nvml.gpu(GPU)
    assert reported is not None
    assert reported.mig is not None
    for kind in reported.types.values():
        if kind.gi_profile_id is not None:
            profile = reported.mig.find_profile(kind.gi_profile_id)
            assert profile is not None, kind.name
            assert kind.max_per_gpu == profile.max_instances * (kind.max_per_gi or 0), kind.name


def test_placements_are_within_the_gpu(make: MakeHost) -> None:
    for profile in seen(make("rtx-pro-6000")).profiles:
        assert all(p.start + p.size <= 4 for p in profile.placements), profile.name
