# SPDX-License-Identifier: Apache-2.0
"""Settings refused in advance, each with the range and its source."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.model.gpu import Backend, Gpu, GpuMode, MigState, VgpuType
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerLimits, SchedulerPolicy, SchedulerSpec, SchedulerState
from vgpuctl.scheduler.limits import explain_unsupported, running_scheduler, satisfies, spec_from_state
from vgpuctl.scheduler.registry_dword import DriverGeneration
from vgpuctl.value import replace

BEST, EQUAL, FIXED = SchedulerPolicy.BEST_EFFORT, SchedulerPolicy.EQUAL_SHARE, SchedulerPolicy.FIXED_SHARE
OWN = SchedulerLimits(frozenset(SchedulerPolicy), True, (2_000_000, 20_000_000), (100, 500), (2, 40))
GPU = Gpu(
    "0000:17:00.0", "", "A100", "nvidia", Backend.VENDOR_VF, GpuMode.VGPU, mixed_size=False, mig=MigState(False, False)
)
ON = MigState(True, True)
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
        ({}, {}, None, SchedulerSpec(EQUAL, 1), "the driver accepts 2 to 20 ms"),
        ({}, {}, None, SchedulerSpec(EQUAL, 21), "the driver accepts 2 to 20 ms"),
        ({}, {}, None, SchedulerSpec(EQUAL, None, 63), "the driver accepts 100 to 500"),
        ({}, {}, None, SchedulerSpec(EQUAL, None, None, 41), "the driver accepts 2 to 40"),
        ({}, {}, DriverGeneration.ADAPTIVE, SchedulerSpec(EQUAL, 2), "595"),
        ({}, {}, DriverGeneration.STRICT, SchedulerSpec(EQUAL, None, 200), "550"),
    ],
)
def test_unsupported_settings_are_explained(seen, fields, kind, spec, text):
    result = explain_unsupported(gpu(replace(SEEN, **seen), **fields), kind, spec)
    assert result is not None
    assert text in result


def test_documented_ranges_apply_only_without_ranges_from_the_driver():
    assert "the driver was not queried; documented is 1 to 30 ms" in (
        explain_unsupported(gpu(), None, SchedulerSpec(EQUAL, 31)) or ""
    )
    assert "63 to 960" in (explain_unsupported(gpu(GpuScheduler()), None, SchedulerSpec(EQUAL, None, 62)) or "")
    assert explain_unsupported(gpu(), None, SchedulerSpec(EQUAL, 30)) is None


def test_a_policy_or_a_mode_that_the_driver_lacks():
    strict = SchedulerLimits(frozenset([BEST, FIXED]), False, (1_000_000, 30_000_000), (0, 0), (0, 0))
    seen = GpuScheduler(limits=strict)
    assert "no equal_share; it has best_effort, fixed_share" in (
        explain_unsupported(gpu(seen), None, SchedulerSpec(EQUAL)) or ""
    )
    assert "no adaptive round robin" in (explain_unsupported(gpu(seen), None, SchedulerSpec(FIXED, None, 480)) or "")
    assert explain_unsupported(gpu(seen), None, SchedulerSpec(FIXED, 2)) is None


def test_instances_have_schedulers_where_one_takes_several_vgpus():
    blackwell = replace(SEEN, architecture=10)
    several = VgpuType("1", "NVIDIA DC-1-2Q", "DC-1-2Q", 2048, 48, gi_profile_id=47, max_per_gi=12)
    assert explain_unsupported(gpu(blackwell, mig=ON, types=(several,)), None, SchedulerSpec(FIXED)) is None
    assert explain_unsupported(gpu(blackwell, mig=ON, gi_schedulers={1: RUNS}), None, SchedulerSpec(FIXED)) is None


def test_with_mig_each_instances_scheduler_counts():
    other = SchedulerState(FIXED, False, 2_000_000)
    whole = replace(SEEN, state=other)
    assert running_scheduler(gpu(whole)) == other
    assert running_scheduler(gpu(whole, mig=ON)) == other
    assert running_scheduler(gpu(whole, mig=ON, gi_schedulers={1: RUNS, 2: RUNS})) == RUNS
    assert running_scheduler(gpu(whole, mig=ON, gi_schedulers={1: RUNS, 2: other})) == SchedulerState(None)
    assert running_scheduler(gpu()) is None


def test_mixed_sizes_have_equal_shares():
    assert explain_unsupported(gpu(GpuScheduler(), mixed_size=True), None, SchedulerSpec(EQUAL)) is None


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
def test_whether_a_state_satisfies_a_spec(state, spec, yes):
    assert satisfies(state, spec) is yes


def test_a_state_gives_the_spec_that_set_it():
    assert spec_from_state(SchedulerState(None)) is None
    assert spec_from_state(SchedulerState(BEST)) == SchedulerSpec(BEST)
    assert spec_from_state(SchedulerState(FIXED)) == SchedulerSpec(FIXED)


@given(st.sampled_from([EQUAL, FIXED]), st.integers(63, 960), st.integers(1, 60))
def test_an_adaptive_state_satisfies_its_own_spec(policy, hertz, factor):
    state = SchedulerState(policy, True, 1_000_000_000 // hertz, factor)
    assert spec_from_state(state) == SchedulerSpec(policy, None, hertz, factor)
    assert satisfies(state, spec_from_state(state))
