# SPDX-License-Identifier: Apache-2.0
"""The guaranteed share: none, one of all possible vGPUs, or one of those that run."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerState
from vgpuctl.scheduler.limits import compute_time_share

EQUAL = SchedulerState(SchedulerPolicy.EQUAL_SHARE, False, 2_000_000)
FIXED = SchedulerState(SchedulerPolicy.FIXED_SHARE, False, 1_000_000)


def test_best_effort_guarantees_nothing():
    result = compute_time_share(
        SchedulerState(SchedulerPolicy.BEST_EFFORT), is_running=True, running_count=1, max_vgpus=4, is_weighted=False
    )
    assert (result.fraction, result.time_slice_ns) == (None, None)


def test_a_fixed_share_is_one_of_all_that_there_can_be_also_while_it_is_off():
    for runs in (True, False):
        result = compute_time_share(FIXED, is_running=runs, running_count=1, max_vgpus=10, is_weighted=False)
        assert (result.fraction, result.time_slice_ns) == (Fraction(1, 10), 1_000_000)
    assert (
        compute_time_share(FIXED, is_running=True, running_count=1, max_vgpus=None, is_weighted=False).fraction is None
    )


def test_an_equal_share_is_one_of_those_that_run():
    assert compute_time_share(
        EQUAL, is_running=True, running_count=3, max_vgpus=10, is_weighted=False
    ).fraction == Fraction(1, 3)
    assert (
        compute_time_share(EQUAL, is_running=False, running_count=3, max_vgpus=10, is_weighted=False).fraction is None
    )


@pytest.mark.parametrize("weighted", [True, None])
def test_an_equal_share_is_not_known_where_vgpus_may_have_weights(weighted):
    among = compute_time_share(EQUAL, is_running=True, running_count=3, max_vgpus=10, is_weighted=weighted)
    assert (among.fraction, among.note.partition(":")[0]) == (None, "not known")
    assert compute_time_share(EQUAL, is_running=True, running_count=1, max_vgpus=10, is_weighted=weighted).fraction == 1
    assert compute_time_share(
        FIXED, is_running=True, running_count=3, max_vgpus=10, is_weighted=weighted
    ).fraction == Fraction(1, 10)


def test_an_unknown_policy_has_an_unknown_share():
    assert compute_time_share(None, is_running=True, running_count=1, max_vgpus=1, is_weighted=False).fraction is None
    assert (
        compute_time_share(
            SchedulerState(None), is_running=True, running_count=1, max_vgpus=1, is_weighted=False
        ).fraction
        is None
    )


@given(st.sampled_from(SchedulerPolicy), st.integers(1, 64), st.integers(1, 64))
def test_the_shares_of_all_that_run_are_never_more_than_the_gpu(policy, running, more):
    part = compute_time_share(
        SchedulerState(policy), is_running=True, running_count=running, max_vgpus=running + more, is_weighted=False
    ).fraction
    assert part is None or part * running <= 1
