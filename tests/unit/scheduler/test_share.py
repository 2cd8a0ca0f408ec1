# SPDX-License-Identifier: Apache-2.0
"""What is guaranteed: nothing, a part of what there can be, or a part of what runs."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.model.scheduler import Policy, SchedulerState
from vgpuctl.scheduler.share import share

EQUAL = SchedulerState(Policy.EQUAL_SHARE, False, 2_000_000)
FIXED = SchedulerState(Policy.FIXED_SHARE, False, 1_000_000)


def test_best_effort_guarantees_nothing():
    found = share(SchedulerState(Policy.BEST_EFFORT), runs=True, running=1, most=4, weighted=False)
    assert (found.part, found.time_slice_ns) == (None, None)


def test_a_fixed_share_is_one_of_all_that_there_can_be_also_while_it_is_off():
    for runs in (True, False):
        found = share(FIXED, runs=runs, running=1, most=10, weighted=False)
        assert (found.part, found.time_slice_ns) == (Fraction(1, 10), 1_000_000)
    assert share(FIXED, runs=True, running=1, most=None, weighted=False).part is None


def test_an_equal_share_is_one_of_those_that_run():
    assert share(EQUAL, runs=True, running=3, most=10, weighted=False).part == Fraction(1, 3)
    assert share(EQUAL, runs=False, running=3, most=10, weighted=False).part is None


@pytest.mark.parametrize("weighted", [True, None])
def test_an_equal_share_is_not_known_where_vgpus_may_have_weights(weighted):
    among = share(EQUAL, runs=True, running=3, most=10, weighted=weighted)
    assert (among.part, among.note.partition(":")[0]) == (None, "not known")
    assert share(EQUAL, runs=True, running=1, most=10, weighted=weighted).part == 1
    assert share(FIXED, runs=True, running=3, most=10, weighted=weighted).part == Fraction(1, 10)


def test_a_policy_that_is_not_known_guarantees_nothing_that_is_known():
    assert share(None, runs=True, running=1, most=1, weighted=False).part is None
    assert share(SchedulerState(None), runs=True, running=1, most=1, weighted=False).part is None


@given(st.sampled_from(Policy), st.integers(1, 64), st.integers(1, 64))
def test_the_shares_of_all_that_run_are_never_more_than_the_gpu(policy, running, more):
    part = share(SchedulerState(policy), runs=True, running=running, most=running + more, weighted=False).part
    assert part is None or part * running <= 1
