# SPDX-License-Identifier: Apache-2.0
"""A libnvidia-ml of the few functions that are called, and programs that call it through the real pynvml."""

import os
import re
import subprocess
import sys

from tests.unit.host.nvml_parts import GUESTS, INSTANCE_SCHEDULERS, MIG, MOVES, NVLINK, PLACEMENTS

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
int nvmlDeviceGetUUID(void *h, char *n, u l) { strcpy(n, "GPU-5abdbc1e-1bdc-57e2-8cb5-a189483428d4"); return SUCCESS; }
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *m) { m[0] = MEMORY << 20; return SUCCESS; }
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
#ifdef ECC
int nvmlDeviceGetEccMode(void *h, u *c, u *p) { *c = ECC & 1; *p = ECC >> 1; return SUCCESS; }
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

DO = """
import sys
from vgpuctl.errors import NvmlFailed
from vgpuctl.host.nvml import HostNvml
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.value import as_dict
nvml, address = HostNvml(), sys.argv[1]
for words in sys.argv[2:]:
    try:
        done = eval(words)
    except NvmlFailed as error:
        done = {"said": str(error), "hint": error.hint, **error.facts}
    print([as_dict(done) if hasattr(done, "_fields") else done])
"""


def done_by(directory, *words, flags=(), program=DO):
    """Evaluate these expressions with `nvml` and `address` in order; return (results, calls)."""
    printed, calls = run(directory, program, ADDRESS, *words, flags=flags)
    assert calls.count("init") == calls.count("shutdown")
    return [evaluate(line)[0] for line in printed.splitlines()], calls


def evaluate(printed):
    """Return the value that a program printed, with the text of each member of an enumeration."""
    return eval(re.sub(r"<\w+\.\w+: ('[^']*')>", r"\1", printed))


def query_gpu(directory, *flags, driver="550.144.02", init=0, address=ADDRESS):
    """Query HostNvml in a separate process that loads this library; return (status, gpu, calls)."""
    printed, calls = run(directory, ASK, address, flags=flags, driver=driver, init=init)
    status, gpu = evaluate(printed)
    return status, gpu, calls


def run(directory, program, *words, flags=(), driver="550.144.02", init=0):
    """Run a program in a separate process that loads this library; return (its output, calls)."""
    log = directory / "log"
    log.write_text("")
    (directory / "nvml.c").write_text(LIBRARY + MIG + PLACEMENTS + INSTANCE_SCHEDULERS + GUESTS + NVLINK + MOVES)
    answers = () if any("STRICT" in flag for flag in flags) else ("-DSTRICT=",)
    answers += () if any("ANSWER" in flag for flag in flags) else ("-DANSWER=0",)
    answers += () if any("MEMORY" in flag for flag in flags) else ("-DMEMORY=40960ULL",)
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
