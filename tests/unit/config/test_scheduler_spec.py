# SPDX-License-Identifier: Apache-2.0
"""A scheduler in host.yaml: strict, with the line of every problem."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.config.scheduler_spec import POLICIES, dump_scheduler, parse_scheduler_spec
from vgpuctl.errors import InvalidInput
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec

GPU = "0000:3b:00.0"


def host(text):
    return parse_host_spec(f'version: 1\ngpus:\n  "{GPU}":\n    scheduler: {text}\n', "host.yaml").gpus[GPU].scheduler


def test_every_key():
    assert host("{policy: fixed_share, time_slice_ms: 2}") == SchedulerSpec(SchedulerPolicy.FIXED_SHARE, 2)
    whole = host("{policy: equal_share, frequency_hz: 480, averaging_factor: 33}")
    assert whole == SchedulerSpec(SchedulerPolicy.EQUAL_SHARE, None, 480, 33)
    assert isinstance(whole.policy, SchedulerPolicy)
    assert host("null") is None


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("{}", "policy: missing"),
        ("{policy: fair}", "is not best_effort, equal_share or fixed_share"),
        ("{policy: equal_share, time_slice: 2}", "did you mean 'time_slice_ms'"),
        ("{policy: equal_share, time_slice_ms: 0}", "0 is not between 1 and 255"),
        ("{policy: equal_share, time_slice_ms: 2.5}", "is not a whole number"),
        ("{policy: equal_share, time_slice_ms: 2, frequency_hz: 480}", "cannot be combined"),
        ("{policy: equal_share, time_slice_ms: 2, averaging_factor: 3}", "cannot be combined"),
        ("{policy: best_effort, frequency_hz: 480}", "best_effort has neither"),
        ("equal_share", "expected a mapping"),
    ],
)
def test_an_invalid_scheduler_has_its_line(text, output):
    with pytest.raises(InvalidInput, match=r"host\.yaml:4:") as raised:
        host(text)
    assert output in str(raised.value)


numbers = st.none() | st.integers(1, 255)


@given(st.sampled_from(POLICIES), numbers, numbers, numbers)
def test_what_is_read_is_written_again(policy, slice_ms, hertz, factor):
    given_ = {"policy": policy, "time_slice_ms": slice_ms, "frequency_hz": hertz, "averaging_factor": factor}
    try:
        spec = parse_scheduler_spec(given_)
    except ValueError:
        assert policy == "best_effort" or slice_ms is not None
        return
    assert parse_scheduler_spec(dump_scheduler(spec)) == spec
    assert dump_scheduler(spec) == {key: value for key, value in given_.items() if value is not None}
