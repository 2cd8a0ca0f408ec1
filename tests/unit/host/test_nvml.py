# SPDX-License-Identifier: Apache-2.0
"""NVML through the real pynvml, on a libnvidia-ml made of the few functions that are asked."""

import os
import subprocess
import sys

import pytest

from vgpuctl.host.nvml import HostNvml, NoNvml, bus_id
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


def asked(directory, *flags, driver="550.144.02", init=0, address=ADDRESS):
    """Ask HostNvml in a process of its own that finds this library; return (status, gpu, calls)."""
    log = directory / "log"
    log.write_text("")
    (directory / "nvml.c").write_text(LIBRARY)
    known = (f'-DLOG="{log}"', f'-DDRIVER="{driver}"', f"-DINIT={init}")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", "nvml.c", *flags, *known],
        cwd=directory,
        check=True,
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(directory)}
    done = subprocess.run(
        [sys.executable, "-c", ASK, address], env=environment, capture_output=True, text=True, check=True
    )
    status, gpu = eval(done.stdout)
    return status, gpu, log.read_text().split()


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
