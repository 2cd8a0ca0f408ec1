# SPDX-License-Identifier: Apache-2.0
"""Refusals that are known before trying, each naming the range and where it is from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.model.gpu import Backend, Gpu, Mode, VgpuType
from vgpuctl.model.partition import Mig
from vgpuctl.model.scheduler import GpuScheduler, Policy, SchedulerLimits, SchedulerSpec, SchedulerState
from vgpuctl.scheduler.limits import as_spec, runs_on, satisfies, why_not
from vgpuctl.scheduler.registry import Generation
from vgpuctl.value import replace

BEST, EQUAL, FIXED = Policy.BEST_EFFORT, Policy.EQUAL_SHARE, Policy.FIXED_SHARE
OWN = SchedulerLimits(frozenset(Policy), True, (2_000_000, 20_000_000), (100, 500), (2, 40))
GPU = Gpu("0000:17:00.0", "", "A100", "nvidia", Backend.VENDOR_VF, Mode.VGPU, mixed_size=False, mig=Mig(False, False))
ON = Mig(True, True)
RUNS = SchedulerState(EQUAL, True, 2_083_333, 33)
SEEN = GpuScheduler(limits=OWN, architecture=7)


def gpu(seen: GpuScheduler | None = None, **fields: object) -> Gpu:
    return replace(GPU, scheduler=seen, **fields)


@pytest.mark.parametrize(
    ("seen", "fields", "kind", "spec", "text"),
    [
        ({"architecture": 3}, {}, None, SchedulerSpec(BEST), "older than Pascal"),
        ({}, {"mig": ON}, None, SchedulerSpec(EQUAL), "always have a fixed share"),
        (
            {"architecture": 10},
            {"mig": ON},
            None,
            SchedulerSpec(EQUAL),
            "instances have no schedulers of their own",
        ),
        ({}, {"mixed_size": True}, None, SchedulerSpec(FIXED), "mixed sizes"),
        ({}, {}, None, SchedulerSpec(EQUAL, 1), "the driver takes 2 to 20 ms"),
        ({}, {}, None, SchedulerSpec(EQUAL, 21), "the driver takes 2 to 20 ms"),
        ({}, {}, None, SchedulerSpec(EQUAL, None, 63), "the driver takes 100 to 500"),
        ({}, {}, None, SchedulerSpec(EQUAL, None, None, 41), "the driver takes 2 to 40"),
        ({}, {}, Generation.ADAPTIVE, SchedulerSpec(EQUAL, 2), "595"),
        ({}, {}, Generation.STRICT, SchedulerSpec(EQUAL, None, 200), "550"),
    ],
)
def test_what_a_gpu_cannot_have_is_known_before(seen, fields, kind, spec, text):
    found = why_not(gpu(replace(SEEN, **seen), **fields), kind, spec)
    assert found is not None
    assert text in found


def test_the_documented_ranges_are_named_as_such_and_only_count_when_the_driver_was_not_asked():
    assert "the driver was not asked; documented is 1 to 30 ms" in (
        why_not(gpu(), None, SchedulerSpec(EQUAL, 31)) or ""
    )
    assert "63 to 960" in (why_not(gpu(GpuScheduler()), None, SchedulerSpec(EQUAL, None, 62)) or "")
    assert why_not(gpu(), None, SchedulerSpec(EQUAL, 30)) is None


def test_a_policy_or_a_mode_that_the_driver_lacks():
    strict = SchedulerLimits(frozenset([BEST, FIXED]), False, (1_000_000, 30_000_000), (0, 0), (0, 0))
    seen = GpuScheduler(limits=strict)
    assert "no equal_share; it has best_effort, fixed_share" in (why_not(gpu(seen), None, SchedulerSpec(EQUAL)) or "")
    assert "no adaptive round robin" in (why_not(gpu(seen), None, SchedulerSpec(FIXED, None, 480)) or "")
    assert why_not(gpu(seen), None, SchedulerSpec(FIXED, 2)) is None


def test_instances_have_schedulers_where_one_takes_several_vgpus():
    blackwell = replace(SEEN, architecture=10)
    several = VgpuType("1", "NVIDIA DC-1-2Q", "DC-1-2Q", 2048, 48, gi_profile_id=47, max_per_gi=12)
    assert why_not(gpu(blackwell, mig=ON, types=(several,)), None, SchedulerSpec(FIXED)) is None
    assert why_not(gpu(blackwell, mig=ON, gi_schedulers={1: RUNS}), None, SchedulerSpec(FIXED)) is None


def test_what_runs_with_mig_is_what_runs_in_each_instance():
    other = SchedulerState(FIXED, False, 2_000_000)
    whole = replace(SEEN, state=other)
    assert runs_on(gpu(whole)) == other
    assert runs_on(gpu(whole, mig=ON)) == other
    assert runs_on(gpu(whole, mig=ON, gi_schedulers={1: RUNS, 2: RUNS})) == RUNS
    assert runs_on(gpu(whole, mig=ON, gi_schedulers={1: RUNS, 2: other})) == SchedulerState(None)
    assert runs_on(gpu()) is None


def test_mixed_sizes_have_equal_shares():
    assert why_not(gpu(GpuScheduler(), mixed_size=True), None, SchedulerSpec(EQUAL)) is None


@pytest.mark.parametrize(
    ("state", "spec", "yes"),
    [
        (None, SchedulerSpec(BEST), False),
        (SchedulerState(BEST), SchedulerSpec(BEST), True),
        (SchedulerState(EQUAL), SchedulerSpec(FIXED), False),
        (SchedulerState(EQUAL, True, 2_000_000, 33), SchedulerSpec(EQUAL), True),
        (SchedulerState(EQUAL, True, 2_000_000, 33), SchedulerSpec(EQUAL, 2), False),
        (SchedulerState(EQUAL, False, 2_000_000), SchedulerSpec(EQUAL, 2), True),
        (SchedulerState(EQUAL, False, 2_000_000), SchedulerSpec(EQUAL, 3), False),
        (SchedulerState(EQUAL, True, 2_083_333, 33), SchedulerSpec(EQUAL, None, 480), True),
        (SchedulerState(EQUAL, True, 2_083_333, 33), SchedulerSpec(EQUAL, None, 500), False),
        (SchedulerState(EQUAL, True, 2_083_333, 33), SchedulerSpec(EQUAL, None, None, 20), False),
        (SchedulerState(EQUAL), SchedulerSpec(EQUAL, None, 480, 20), True),
        (SchedulerState(None), SchedulerSpec(EQUAL), False),
    ],
)
def test_whether_what_runs_is_what_is_asked_for(state, spec, yes):
    assert satisfies(state, spec) is yes


def test_what_ran_before_can_be_asked_for_again():
    assert as_spec(SchedulerState(None)) is None
    assert as_spec(SchedulerState(BEST)) == SchedulerSpec(BEST)
    assert as_spec(SchedulerState(FIXED)) == SchedulerSpec(FIXED)


@given(st.sampled_from([EQUAL, FIXED]), st.integers(63, 960), st.integers(1, 60))
def test_an_adaptive_state_satisfies_what_it_is_asked_for_again_by(policy, hertz, factor):
    state = SchedulerState(policy, True, 1_000_000_000 // hertz, factor)
    assert as_spec(state) == SchedulerSpec(policy, None, hertz, factor)
    assert satisfies(state, as_spec(state))
