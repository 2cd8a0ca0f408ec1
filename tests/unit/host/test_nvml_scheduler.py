# SPDX-License-Identifier: Apache-2.0
"""NVML's vGPU scheduler, of a GPU and of a GPU instance, in both versions of its calls."""

import pytest

from tests.unit.host.nvml_library import ADDRESS, DO, done_by, run
from vgpuctl.errors import NvmlFailed
from vgpuctl.host.absent import AbsentNvml
from vgpuctl.host.nvml import HostNvml
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec

SET = """
import sys
from vgpuctl.errors import NvmlFailed
from vgpuctl.host.nvml import HostNvml
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerPolicy, SchedulerLimits, SchedulerSpec, SchedulerState
nvml = HostNvml()
gpu = nvml.gpu(sys.argv[1])
print([repr(gpu.scheduler), gpu.scheduler.state and repr(gpu.scheduler.state)])
for spec in eval(sys.argv[2]):
    try:
        nvml.set_scheduler(sys.argv[1], spec)
    except NvmlFailed as error:
        print([error.facts["nvml_code"], str(error)])
"""


def set_to(directory, specs, *flags):
    """Set these schedulers on a library; return (what was read before, the failures, the calls that set)."""
    printed, calls = run(directory, SET, ADDRESS, specs, flags=flags)
    first, *failures = printed.splitlines()
    assert calls.count("init") == calls.count("shutdown")
    return eval(first), [eval(line) for line in failures], [call for call in calls if call.startswith("v")]


EACH = """[
    SchedulerSpec(SchedulerPolicy.BEST_EFFORT),
    SchedulerSpec(SchedulerPolicy.EQUAL_SHARE),
    SchedulerSpec(SchedulerPolicy.FIXED_SHARE, 3),
    SchedulerSpec(SchedulerPolicy.EQUAL_SHARE, None, 480, 20),
]"""


def test_version_1_tells_and_sets_the_scheduler(tmp_path):
    (whole, state), failures, calls = set_to(tmp_path, EACH, "-DV1")
    equal = "<SchedulerPolicy.EQUAL_SHARE: 'equal_share'>"
    assert state == (
        f"SchedulerState(policy={equal}, adaptive=True, time_slice_ns=2083333, averaging_factor=33, source='NVML', "
        "preempt_timeout_us=None, problem=None)"
    )
    assert "time_slice_ns=(1000000, 30000000), frequency_hz=(63, 960), averaging_factor=(1, 60)" in whole
    assert "setter_versions=('v1',), architecture=7, " in whole
    assert (failures, calls) == ([], ["v1:1,0,0,0", "v1:2,0,0,0", "v1:3,1,3000000,0", "v1:2,2,20,480"])


def test_a_strict_state_has_its_slice_in_the_other_half_of_the_union(tmp_path):
    (_whole, state), _failures, _calls = set_to(tmp_path, "[]", "-DV1", "-DSTRICT=s->mode=1,s->first=4000000")
    assert "adaptive=False, time_slice_ns=4000000, averaging_factor=None" in state


def test_an_unknown_mode_leaves_the_numbers_unknown(tmp_path):
    (_whole, state), _failures, _calls = set_to(tmp_path, "[]", "-DV1", "-DSTRICT=s->mode=0")
    assert "EQUAL_SHARE" in state
    assert "adaptive=None, time_slice_ns=None, averaging_factor=None" in state


def test_version_2_goes_first_and_version_1_sets_the_strict_slice_that_it_does_not_have(tmp_path):
    (whole, state), failures, calls = set_to(tmp_path, EACH, "-DV1", "-DV2")
    assert "FIXED_SHARE" in state
    assert "adaptive=True, time_slice_ns=1041666, averaging_factor=20" in state
    assert "setter_versions=('v2', 'v1')" in whole
    assert (failures, calls) == ([], ["v2:1,1,0,0", "v2:1,2,0,0", "v1:3,1,3000000,0", "v2:1,2,20,480"])


def test_version_2_alone_has_no_strict_slice(tmp_path):
    (_whole, state), failures, calls = set_to(tmp_path, EACH, "-DV2")
    assert "adaptive=True, time_slice_ns=1041666" in state
    assert [code for code, _text in failures] == [None]
    assert "which a fixed time slice needs" in failures[0][1]
    assert len(calls) == 3


def test_a_library_without_any_says_nothing_and_sets_nothing(tmp_path):
    (whole, state), failures, calls = set_to(tmp_path, EACH)
    assert (state, calls) == (None, [])
    assert "limits=None, state=None, setter_versions=(), architecture=None, " in whole
    texts = {text for _code, text in failures}
    assert f"NVML does not set fixed_share on {ADDRESS}: this driver's NVML cannot set a vGPU scheduler" in texts
    assert len(texts) == 3


@pytest.mark.parametrize("number", [2, 3, 4, 16])
def test_a_refusal_keeps_nvmls_number(tmp_path, number):
    _seen, failures, _calls = set_to(
        tmp_path, "[SchedulerSpec(SchedulerPolicy.EQUAL_SHARE)]", "-DV1", f"-DANSWER={number}"
    )
    assert [code for code, _text in failures] == [number]


def test_absent_nvml_is_an_error():
    def load():
        raise ModuleNotFoundError("No module named 'pynvml'")

    for nvml in (AbsentNvml("--root"), HostNvml(load)):
        with pytest.raises(NvmlFailed) as raised:
            nvml.set_scheduler(ADDRESS, SchedulerSpec(SchedulerPolicy.BEST_EFFORT))
        assert raised.value.facts["nvml_code"] is None


PER_INSTANCE = "nvml.set_scheduler(address, SchedulerSpec(SchedulerPolicy.FIXED_SHARE, *{}), {})"


OF_INSTANCE = """(lambda s: (str(s.policy), s.adaptive, s.time_slice_ns, s.averaging_factor))(
    nvml.gpu(address).gi_schedulers[5])"""


def test_gpu_instances_may_have_schedulers_of_their_own(tmp_path):
    words = (OF_INSTANCE, PER_INSTANCE.format((4,), 5), PER_INSTANCE.format((None, 480, 20), 5))
    text, calls = done_by(tmp_path, *words, flags=("-DMODE=1", "-DINSTANCE_V1"))
    assert text == [("equal_share", True, 2083333, 35), None, None]
    assert [call for call in calls if call.startswith("v1")] == [
        "v1-gi5:1000018,1,3,1,4000000,0",
        "v1-gi5:1000018,1,3,2,20,480",
    ]


def test_version_2_goes_first_for_a_gpu_instance_too(tmp_path):
    words = (OF_INSTANCE, PER_INSTANCE.format((None, 480, 20), 5), PER_INSTANCE.format((4,), 5))
    (seen, done, failure), calls = done_by(tmp_path, *words, flags=("-DMODE=1", "-DINSTANCE_V2=0"))
    assert (seen, done) == (("fixed_share", True, 1041666, 20), None)
    assert [call for call in calls if call.startswith("v2")] == ["v2-gi5:1,3,20,480"]
    assert "which a fixed time slice needs" in failure["said"]
    assert f"on GPU instance 5 of {ADDRESS}" in failure["said"]


@pytest.mark.parametrize("flags", [("-DMODE=1",), ("-DMODE=1", "-DINSTANCE_V2=3"), ("-DMODE=0", "-DINSTANCE_V2=0")])
def test_instances_that_have_none_of_their_own_tell_none(tmp_path, flags):
    (gpu,), _calls = done_by(tmp_path, "nvml.gpu(address)", flags=flags)
    assert (gpu["mig"]["enabled"], gpu["gi_schedulers"]) == (flags[0] == "-DMODE=1", {})


def test_after_one_failed_instance_no_other_is_queried(tmp_path):
    words = ("nvml.create_gpu_instance(address, 9, 0)", "nvml.gpu(address).gi_schedulers")
    text, calls = done_by(tmp_path, *words, flags=("-DMODE=1", "-DINSTANCE_V2=3"))
    assert text == [6, {}]
    assert calls.count("gi-state") == 1


def test_an_older_pynvml_without_version_2_sets_version_1(tmp_path):
    older = "import pynvml\ndel pynvml.nvmlDeviceSetVgpuSchedulerState_v2, pynvml.c_nvmlVgpuSchedulerState_v2_t\n"
    words = "nvml.set_scheduler(address, SchedulerSpec(SchedulerPolicy.EQUAL_SHARE, None, 480, 20))"
    text, calls = done_by(tmp_path, words, flags=("-DV1", "-DV2"), program=older + DO)
    assert (text, [call for call in calls if call.startswith("v")]) == ([None], ["v1:2,2,20,480"])


def test_a_gpu_instance_that_is_not_there_has_no_scheduler_to_set(tmp_path):
    (failure,), _calls = done_by(tmp_path, PER_INSTANCE.format((), 7), flags=("-DMODE=1", "-DINSTANCE_V2=0"))
    assert (failure["nvml_code"], failure["call"]) == (6, "nvmlDeviceGetGpuInstanceById")
