# SPDX-License-Identifier: Apache-2.0
"""NVML through the real pynvml, on a libnvidia-ml made of the few functions that are asked."""

import os
import subprocess
import sys

import pytest

from vgpuctl.errors import NvmlFailed
from vgpuctl.host.nvml import HostNvml, NoNvml, bus_id
from vgpuctl.model.scheduler import Policy, SchedulerSpec
from vgpuctl.value import as_dict

ADDRESS = "0000:3b:00.0"
LIBRARY = r"""
#include <stdio.h>
#include <string.h>
#define SUCCESS 0
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
typedef unsigned int u;
static void say(const char *what) { FILE *f = fopen(LOG, "a"); fprintf(f, "%s\n", what); fclose(f); }
const char *nvmlErrorString(int r) { return "an error"; }
int nvmlInitWithFlags(u flags) { say("init"); return INIT; }
int nvmlShutdown(void) { say("shutdown"); return SUCCESS; }
int nvmlSystemGetDriverVersion(char *v, u n) { strcpy(v, DRIVER); return SUCCESS; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **h) {
    say(id); *h = (void *)1; return strcmp(id, "00000000:3B:00.0") ? NOT_FOUND : SUCCESS; }
int nvmlDeviceGetHostVgpuMode(void *h, u *m) { *m = 1; return SUCCESS; }
int nvmlDeviceGetName(void *h, char *n, u l) { strcpy(n, "NVIDIA A100-PCIE-40GB"); return SUCCESS; }
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *m) { m[0] = 40960ULL << 20; return SUCCESS; }
#ifdef DATACENTRE
int nvmlDeviceGetSupportedVgpus(void *h, u *n, u *ids) { return NOT_SUPPORTED; }
#else
int nvmlDeviceGetSupportedVgpus(void *h, u *n, u *ids) {
    if (!ids) { *n = 2; return INSUFFICIENT_SIZE; }
    ids[0] = 468; ids[1] = 471; return SUCCESS; }
#endif
int nvmlVgpuTypeGetName(u t, char *n, u *l) { strcpy(n, t == 468 ? "GRID A100-4C" : "GRID A100-10C"); return SUCCESS; }
int nvmlVgpuTypeGetFramebufferSize(u t, unsigned long long *s) {
    *s = (t == 468 ? 4096ULL : 10240) << 20; return SUCCESS; }
#ifndef OLD
int nvmlVgpuTypeGetMaxInstances(void *h, u t, u *n) { *n = t == 468 ? 10 : 4; return SUCCESS; }
#endif
typedef struct { u policies[3], most, least, arr, most_hz, least_hz, most_factor, least_factor; } limits;
typedef struct { u policy, mode, first, second; } state;
typedef struct { u engine, policy, factor, last; } state2;
static state now = {2, 2, 33, 2083333};
#if defined(V1) || defined(V2)
int nvmlDeviceGetVgpuSchedulerCapabilities(void *h, limits *l) {
    limits known = {{1, 2, 3}, 30000000, 1000000, 1, 960, 63, 60, 1}; *l = known; return SUCCESS; }
int nvmlDeviceGetArchitecture(void *h, u *a) { *a = 7; return SUCCESS; }
int nvmlDeviceGetMigMode(void *h, u *c, u *p) { *c = 1; *p = 0; return SUCCESS; }
int nvmlDeviceGetVgpuHeterogeneousMode(void *h, u *m) { return m[0] == 0x1000008 ? NOT_SUPPORTED : 25; }
#endif
#ifdef V1
int nvmlDeviceGetVgpuSchedulerState(void *h, state *s) { *s = now; STRICT; return SUCCESS; }
int nvmlDeviceSetVgpuSchedulerState(void *h, state *s) {
    char line[99]; sprintf(line, "v1:%u,%u,%u,%u", s->policy, s->mode, s->first, s->second);
    say(line); return ANSWER; }
#endif
#ifdef V2
int nvmlDeviceGetVgpuSchedulerState_v2(void *h, state2 *s) {
    if (s->engine != 1) return 2;
    s->policy = 3; s->factor = 20; s->last = 1041666; return SUCCESS; }
int nvmlDeviceSetVgpuSchedulerState_v2(void *h, state2 *s) {
    char line[99]; sprintf(line, "v2:%u,%u,%u,%u", s->engine, s->policy, s->factor, s->last);
    say(line); return ANSWER; }
#endif
#ifdef PER_VM
int nvmlVgpuTypeGetMaxInstancesPerVm(u t, u *n) { *n = t == 468 ? 16 : 1; return SUCCESS; }
#endif
"""
ASK = """
import sys
from vgpuctl.value import as_dict
from vgpuctl.host.nvml import HostNvml
nvml = HostNvml()
gpu = nvml.gpu(sys.argv[1])
print([as_dict(nvml.status()), gpu and as_dict(gpu)])
"""
SET = """
import sys
from vgpuctl.errors import NvmlFailed
from vgpuctl.host.nvml import HostNvml
from vgpuctl.model.scheduler import GpuScheduler, Policy, SchedulerLimits, SchedulerSpec, SchedulerState
nvml = HostNvml()
gpu = nvml.gpu(sys.argv[1])
print([repr(gpu.scheduler), gpu.scheduler.state and repr(gpu.scheduler.state)])
for spec in eval(sys.argv[2]):
    try:
        nvml.set_scheduler(sys.argv[1], spec)
    except NvmlFailed as error:
        print([error.facts["nvml_code"], str(error)])
"""


def asked(directory, *flags, driver="550.144.02", init=0, address=ADDRESS):
    """Ask HostNvml in a process of its own that finds this library; return (status, gpu, calls)."""
    printed, calls = run(directory, ASK, address, flags=flags, driver=driver, init=init)
    status, gpu = eval(printed)
    return status, gpu, calls


def run(directory, program, *words, flags=(), driver="550.144.02", init=0):
    """Run a program in a process of its own that finds this library; return (what it printed, calls)."""
    log = directory / "log"
    log.write_text("")
    (directory / "nvml.c").write_text(LIBRARY)
    answers = () if any("STRICT" in flag for flag in flags) else ("-DSTRICT=",)
    answers += () if any("ANSWER" in flag for flag in flags) else ("-DANSWER=0",)
    known = (f'-DLOG="{log}"', f'-DDRIVER="{driver}"', f"-DINIT={init}")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", "nvml.c", *flags, *answers, *known],
        cwd=directory,
        check=True,
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(directory)}
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout, log.read_text().split()


def set_to(directory, specs, *flags):
    """Set these schedulers on a library; return (what was read before, the failures, the calls that set)."""
    printed, calls = run(directory, SET, ADDRESS, specs, flags=flags)
    first, *failures = printed.splitlines()
    assert calls.count("init") == calls.count("shutdown")
    return eval(first), [eval(line) for line in failures], [call for call in calls if call.startswith("v")]


def test_a_vgpu_driver_tells_its_types(tmp_path):
    status, gpu, calls = asked(tmp_path, "-DPER_VM")
    assert status == {"available": True, "reason": None, "driver_version": "550.144.02"}
    assert (gpu["model"], gpu["framebuffer_mib"]) == ("NVIDIA A100-PCIE-40GB", 40960)
    assert gpu["types"] == {
        468: {"type_id": 468, "name": "GRID A100-4C", "framebuffer_mib": 4096, "max_per_gpu": 10, "max_per_vm": 16},
        471: {"type_id": 471, "name": "GRID A100-10C", "framebuffer_mib": 10240, "max_per_gpu": 4, "max_per_vm": 1},
    }
    assert calls == ["init", "00000000:3B:00.0", "shutdown", "init", "shutdown"]


def test_how_many_fit_in_a_vm_may_be_missing(tmp_path):
    _status, gpu, _calls = asked(tmp_path)
    assert [found["max_per_vm"] for found in gpu["types"].values()] == [16, 16]


def test_a_function_it_lacks_is_named(tmp_path):
    status, gpu, calls = asked(tmp_path, "-DOLD")
    assert (status["available"], status["reason"]) == (False, "nvmlVgpuTypeGetMaxInstances")
    assert gpu is None
    assert calls.count("init") == calls.count("shutdown")


def test_an_old_driver_is_too_old(tmp_path):
    status, _gpu, _calls = asked(tmp_path, driver="390.157")
    assert status == {"available": False, "reason": "too-old", "driver_version": "390.157"}


@pytest.mark.parametrize(("init", "reason"), [(18, "too-old"), (9, "absent"), (4, "nvmlInit: ")])
def test_why_it_did_not_start(tmp_path, init, reason):
    status, gpu, _calls = asked(tmp_path, init=init)
    assert gpu is None
    assert status["reason"].startswith(reason)
    assert not status["available"]


def test_the_plain_driver_has_a_model_and_no_types(tmp_path):
    _status, gpu, _calls = asked(tmp_path, "-DDATACENTRE")
    assert (gpu["model"], gpu["types"]) == ("NVIDIA A100-PCIE-40GB", {})


def test_a_gpu_it_does_not_know_is_none_and_nvml_is_closed(tmp_path):
    _status, gpu, calls = asked(tmp_path, address="0000:5e:00.0")
    assert gpu is None
    assert calls == ["init", "00000000:5E:00.0", "shutdown", "init", "shutdown"]


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia"), reason="this machine has an NVIDIA driver")
def test_a_host_without_the_library():
    assert HostNvml().status().reason == "absent"
    assert HostNvml().gpu(ADDRESS) is None


def test_a_python_without_pynvml():
    def load():
        raise ModuleNotFoundError("No module named 'pynvml'")

    assert HostNvml(load).status().reason == "absent"
    assert HostNvml(load).gpu(ADDRESS) is None


def test_what_is_no_pci_device_is_not_asked_about():
    assert HostNvml().gpu("mtty") is None


def test_nvml_that_is_not_asked_says_why():
    assert as_dict(NoNvml("--root").status()) == {"available": False, "reason": "--root", "driver_version": None}
    assert NoNvml("--root").gpu(ADDRESS) is None


def test_its_spelling_of_an_address():
    assert bus_id("10000:af:1f.7".replace("10000", "0001")) == "00000001:AF:1F.7"


EACH = """[
    SchedulerSpec(Policy.BEST_EFFORT),
    SchedulerSpec(Policy.EQUAL_SHARE),
    SchedulerSpec(Policy.FIXED_SHARE, 3),
    SchedulerSpec(Policy.EQUAL_SHARE, None, 480, 20),
]"""


def test_version_1_tells_and_sets_the_scheduler(tmp_path):
    (whole, state), failures, calls = set_to(tmp_path, EACH, "-DV1")
    equal = "<Policy.EQUAL_SHARE: 'equal_share'>"
    assert state == (
        f"SchedulerState(policy={equal}, adaptive=True, time_slice_ns=2083333, averaging_factor=33, source='NVML')"
    )
    assert "time_slice_ns=(1000000, 30000000), frequency_hz=(63, 960), averaging_factor=(1, 60)" in whole
    assert "interfaces=('v1',), architecture=7)" in whole
    assert (failures, calls) == ([], ["v1:1,0,0,0", "v1:2,0,0,0", "v1:3,1,3000000,0", "v1:2,2,20,480"])


def test_a_strict_state_has_its_slice_in_the_other_half_of_the_union(tmp_path):
    (_whole, state), _failures, _calls = set_to(tmp_path, "[]", "-DV1", "-DSTRICT=s->mode=1,s->first=4000000")
    assert "adaptive=False, time_slice_ns=4000000, averaging_factor=None" in state


def test_a_mode_that_is_not_told_leaves_the_numbers_unknown(tmp_path):
    (_whole, state), _failures, _calls = set_to(tmp_path, "[]", "-DV1", "-DSTRICT=s->mode=0")
    assert "EQUAL_SHARE" in state
    assert "adaptive=None, time_slice_ns=None, averaging_factor=None" in state


def test_version_2_goes_first_and_version_1_sets_the_strict_slice_that_it_does_not_have(tmp_path):
    (whole, state), failures, calls = set_to(tmp_path, EACH, "-DV1", "-DV2")
    assert "FIXED_SHARE" in state
    assert "adaptive=True, time_slice_ns=1041666, averaging_factor=20" in state
    assert "interfaces=('v2', 'v1')" in whole
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
    assert "limits=None, state=None, interfaces=(), architecture=None)" in whole
    assert {text for _code, text in failures} == {"this driver's NVML cannot set a vGPU scheduler"}


@pytest.mark.parametrize("number", [2, 3, 4, 16])
def test_a_refusal_keeps_nvmls_number(tmp_path, number):
    _seen, failures, _calls = set_to(tmp_path, "[SchedulerSpec(Policy.EQUAL_SHARE)]", "-DV1", f"-DANSWER={number}")
    assert [code for code, _text in failures] == [number]


def test_nobody_to_ask_is_a_refusal_too():
    def load():
        raise ModuleNotFoundError("No module named 'pynvml'")

    for nvml in (NoNvml("--root"), HostNvml(load)):
        with pytest.raises(NvmlFailed) as raised:
            nvml.set_scheduler(ADDRESS, SchedulerSpec(Policy.BEST_EFFORT))
        assert raised.value.facts["nvml_code"] is None
