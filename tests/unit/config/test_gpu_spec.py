# SPDX-License-Identifier: Apache-2.0
"""MIG in host.yaml: off, instances, or the vGPUs that must fit; each error has its line.

A scheduler in host.yaml: strict, with the line of every problem.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.config.gpu_spec import (
    POLICIES,
    dump_mig,
    dump_scheduler,
    parse_mig_options,
    parse_mig_spec,
    parse_scheduler_spec,
)
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import MigSpec
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec

HOST = 'version: 1\ngpus:\n  "0000:3b:00.0":\n    mode: vgpu\n    mig: {}\n'


@pytest.mark.parametrize("text", ["off", "OFF", "false", '"off"'])
def test_off_and_its_yaml_1_1_forms_turn_mig_off(text):
    (output,) = parse_host_spec(HOST.replace("{}", text), "f").gpus.values()
    assert output.mig == MigSpec()
    assert dump_mig(output.mig) == "off"


@pytest.mark.parametrize(
    ("text", "mig"),
    [
        ("[1g.10gb, 3G.40GB, MIG 1g.10gb+me, 19]", MigSpec(("1g.10gb", "3g.40gb", "1g.10gb+me", "19"))),
        ("[2g.48gb+gfx, 1g.24gb-me, 1g.24gb+me.all]", MigSpec(("2g.48gb+gfx", "1g.24gb-me", "1g.24gb+me.all"))),
        ("{H100-1-10C: 4, H100-3-40C: 1}", MigSpec(vgpus=(("H100-1-10C", 4), ("H100-3-40C", 1)))),
    ],
)
def test_instances_and_vgpus_are_read_and_written_the_same(text, mig):
    (output,) = parse_host_spec(HOST.replace("{}", text), "f").gpus.values()
    assert output.mig == mig
    assert parse_mig_spec(dump_mig(mig)) == mig


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("true", "f:5:10: gpus.0000:3b:00.0.mig: expected off, a list of GPU instances"),
        ("4", "off, a list of GPU instances"),
        ("[]", "the list is empty: specify at least one GPU instance, or off"),
        ("{}", "the mapping is empty"),
        ("[1g.10gb, 1gb]", r"f:5:20: .*'1gb' is not a GPU instance profile, like 1g.10gb"),
        ("[H100-1-10C]", "is not a GPU instance profile"),
        ("{1g.10gb: 7}", r"is a GPU instance profile: write a list, like \[1g.10gb, 1g.10gb\]"),
        ("{H100-1-10C: 0}", "f:5:23: .*0 is not between 1 and 256"),
        (f"[{', '.join(['1g.5gb'] * 17)}]", "these are 17 GPU instances"),
    ],
)
def test_an_invalid_mig_setting_is_refused(text, message):
    with pytest.raises(InvalidInput, match=message):
        parse_host_spec(HOST.replace("{}", text), "f")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("mig: [1g.10gb]\n    mixed_size: true", "mixed sizes and MIG cannot be combined"),
        ("scheduler: {policy: fixed_share}\n    mixed_size: true", "not fixed_share"),
        ("mixed_size: 1", "is not true or false"),
    ],
)
def test_exclusive_mig_settings_are_refused(setting, message):
    with pytest.raises(InvalidInput, match=message):
        parse_host_spec(HOST.replace("mig: {}", setting), "f")
    parse_host_spec(HOST.replace("mig: {}", "mig: off\n    mixed_size: true"), "f")


def test_mig_options_have_counts():
    assert parse_mig_options(("3g.40gb", "1g.10gb:2"), ()) == MigSpec(("3g.40gb", "1g.10gb", "1g.10gb"))
    assert parse_mig_options((), ("H100-1-10C:2", "H100-1-10C")) == MigSpec(vgpus=(("H100-1-10C", 3),))
    assert parse_mig_options((), ()) == MigSpec()
    for instances, vgpus in (
        (("1g.10gb:0",), ()), (("1g.10gb:x",), ()), (("7",) * 17, ()), ((), ("A-1C:999",)), ((), ("1g.5gb:1",)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"."):
            parse_mig_options(instances, vgpus)


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
