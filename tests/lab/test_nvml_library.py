"""Tests the lab's libnvidia-ml with the real pynvml. The tests write the module's files themselves and need no host."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.command import run
from tests.lab.nvidia_host import HERE

pytestmark = pytest.mark.quick

VM = "11111111-2222-4333-8444-555555555555"
VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}\n"
CARD = """model NVIDIA A100-PCIE-40GB
memory_mib 40960
sriov 1
architecture 7
limits 1000000 30000000 63 960 1 60 1
scheduler 3 1 0 4000000
mig 1 0 1
gi_profile 19 0 1 4864 7 1 1g.5gb 0 1 2 3 4 5 6
gi_profile 9 2 3 19968 2 4 3g.20gb 0 4
type 468 4096 10 1 4294967295 0 GRID A100-4C
type 473 40960 1 0 4294967295 0 GRID A100-40C
type 476 20480 2 0 9 1 GRID A100-3-20C
mixed 1 1
places 468 4 0 6+ 10 16+
places 473 40 0
vgpu 7 468 00000000-0000-4000-8000-000000000001 {} 10 4294967295
vgpu 8 468 00000000-0000-4000-8000-000000000002 0 0 4294967295
"""
MIG = ("mig 1 0 1", "mig 1 1 1\ngi 1 9 4\nci 1 0 2\nci 1 2 1\ngi 7 19 0\ngi_scheduler 7 2 2 33 1041666")
"""The replacement that turns CARD into a card with MIG and two GPU instances."""
# Prints each answer, or the number of the NVML error; `gpu` is the card's handle.
ASK = """
import os, sys
import pynvml as n
def tell(ask):
    try:
        print(repr(ask()))
    except n.NVMLError as error:
        print(repr(error.value))
def limits(c):
    slices, hertz = (c.minTimeslice, c.maxTimeslice), (c.minFrequencyForARR, c.maxFrequencyForARR)
    factors = c.minAvgFactorForARR, c.maxAvgFactorForARR
    return list(c.supportedSchedulers), slices, c.isArrModeSupported, hertz, factors
def v2(engine):
    state = n.nvmlDeviceGetVgpuSchedulerState_v2(gpu, n.c_nvmlVgpuSchedulerStateInfo_v2_t(engineId=engine))
    return state.schedulerPolicy, state.avgFactor, state.timeslice
def places(ask, **words):
    found = ask(gpu, 468, **words)
    return found.placementSize, found.placementIds[:found.count]
def profile(index, version=2):
    p = n.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index, version)
    return p.id, p.sliceCount, p.instanceCount, p.memorySizeMB, *([p.name] if version == 2 else [])
def starts(profile_id):
    count = n.c_uint()
    n.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, None, n.byref(count))
    found = (n.c_nvmlGpuInstancePlacement_t * count.value)()
    n.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, found, n.byref(count))
    return [(p.start, p.size) for p in found]
def instances(ask, owner, profile_id):
    count, found = n.c_uint(), (n.c_nvmlGpuInstance_t * 8)()
    ask(owner, profile_id, found, n.byref(count))
    return found[:count.value]
def gi(number):
    info = n.nvmlGpuInstanceGetInfo(n.nvmlDeviceGetGpuInstanceById(gpu, number))
    return info.id, info.profileId, info.placement.start, info.placement.size
def ci(handle):
    info = n.nvmlComputeInstanceGetInfo(handle)
    return info.id, info.profileId, info.placement.start, info.placement.size
def ci_profile(number, index):
    i = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(n.nvmlDeviceGetGpuInstanceById(gpu, number), index, 0)
    return i.id, i.sliceCount, i.instanceCount, i.name
def gi_v1(number):
    asked = n.c_nvmlVgpuSchedulerStateInfo_v1_t(version=n.nvmlVgpuSchedulerStateInfo_v1, engineId=1)
    found = n.nvmlGpuInstanceGetVgpuSchedulerState(n.nvmlDeviceGetGpuInstanceById(gpu, number), asked)
    factor_and_slice = found.schedulerParams.vgpuSchedDataWithARR
    return found.schedulerPolicy, found.arrMode, factor_and_slice.avgFactor, factor_and_slice.timeslice
def gi_v2(number):
    asked = n.c_nvmlVgpuSchedulerStateInfo_v2_t(engineId=1)
    found = n.nvmlGpuInstanceGetVgpuSchedulerState_v2(n.nvmlDeviceGetGpuInstanceById(gpu, number), asked)
    return found.schedulerPolicy, 2, found.avgFactor, found.timeslice
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByPciBusId("00000000:01:00.0")
for question in sys.argv[1:]:
    tell(lambda: eval(question))
"""
Ask = Callable[..., list[Any]]


@pytest.fixture
def qemu() -> Iterator[int]:
    """A process whose command line names a VM, as QEMU's does."""
    words = ["-c", "input()", "-uuid", VM]
    with subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def ask(tmp_path: Path, qemu: int) -> Ask:
    """Return a function that builds the library for these files and asks it questions."""
    card = tmp_path / "gpus/0000:01:00.0"
    card.mkdir(parents=True)

    def answers(
        *questions: str,
        build: str = "new",
        version: str = "590.48.01",
        program: str = ASK,
        change: tuple[str, str] = ("", ""),
    ) -> list[Any]:
        (card / "vgpulab").write_text(CARD.format(qemu).replace(*change))
        (tmp_path / "version").write_text(VERSION.format(version))
        settings = [f"OUT={tmp_path}", f"PROC={tmp_path}", "NODE=/dev/null", f"BUILD={build}"]
        run(["make", "-B", "-s", "-C", HERE / "nvml", *settings], deadline_seconds=60)
        environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "LAB_FILES": str(tmp_path)}
        argv = [sys.executable, "-c", program, *questions]
        text = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout
        return [ast.literal_eval(line) for line in text.splitlines()]

    return answers


def test_a_card_and_its_types(ask: Ask) -> None:
    assert ask(
        "n.nvmlSystemGetDriverVersion(), n.nvmlDeviceGetCount(), n.nvmlDeviceGetName(gpu)",
        "[x >> 20 for x in (lambda m: (m.total, m.used, m.free))(n.nvmlDeviceGetMemoryInfo(gpu))]",
        "n.nvmlDeviceGetHostVgpuMode(gpu), n.nvmlDeviceGetVirtualizationMode(gpu), n.nvmlDeviceGetArchitecture(gpu)",
        "n.nvmlDeviceGetSupportedVgpus(gpu), n.nvmlDeviceGetCreatableVgpus(gpu)",
        "n.nvmlVgpuTypeGetName(473), n.nvmlVgpuTypeGetFramebufferSize(473) >> 20",
        "n.nvmlVgpuTypeGetMaxInstances(gpu, 468), n.nvmlVgpuTypeGetMaxInstancesPerVm(468)",
    ) == [
        ("590.48.01", 1, "NVIDIA A100-PCIE-40GB"),
        [40960, 8192, 32768],
        (1, 3, 7),
        ([468, 473, 476], [468]),
        ("GRID A100-40C", 40960),
        (10, 16),
    ]


def test_a_vgpu_is_active_while_a_vm_has_it(ask: Ask) -> None:
    assert ask(
        "n.nvmlDeviceGetActiveVgpus(gpu)",
        "n.nvmlVgpuInstanceGetType(7), n.nvmlVgpuInstanceGetUUID(7), n.nvmlVgpuInstanceGetVmID(7)",
        "n.nvmlVgpuInstanceGetType(8)",
    ) == [[7], (468, "00000000-0000-4000-8000-000000000001", (VM.encode(), 1)), 6]


def test_the_scheduler_structs_have_the_layout_that_pynvml_expects(ask: Ask) -> None:
    assert ask(
        "limits(n.nvmlDeviceGetVgpuSchedulerCapabilities(gpu))",
        "(lambda s: (s.schedulerPolicy, s.arrMode, s.schedulerParams.vgpuSchedData.timeslice))"
        "(n.nvmlDeviceGetVgpuSchedulerState(gpu))",
        "[v2(engine) for engine in (1, 2)]",
        "v2(4)",
        "(lambda s: (s.engineId, s.schedulerPolicy, s.arrMode, s.entriesCount))(n.nvmlDeviceGetVgpuSchedulerLog(gpu))",
        "(lambda s: (s.engineId, s.timeslice, s.entriesCount))"
        "(n.nvmlDeviceGetVgpuSchedulerLog_v2(gpu, n.c_nvmlVgpuSchedulerLogInfo_v2_t(engineId=1)))",
    ) == [
        ([1, 2, 3], (1_000_000, 30_000_000), 1, (63, 960), (1, 60)),
        (3, 1, 4_000_000),
        [(3, 0, 4_000_000), (1, 0, 0)],
        2,
        (1, 3, 1, 0),
        (1, 4_000_000, 0),
    ]


def test_a_mixed_size_vgpu_has_a_placement_and_possible_placements(ask: Ask) -> None:
    assert ask(
        "n.nvmlDeviceGetVgpuHeterogeneousMode(gpu), n.nvmlVgpuInstanceGetPlacementId(7)",
        "places(n.nvmlDeviceGetVgpuTypeSupportedPlacements, version=2, mode=n.NVML_VGPU_PGPU_HETEROGENEOUS_MODE)",
        "places(n.nvmlDeviceGetVgpuTypeCreatablePlacements, version=2)",
        "places(n.nvmlDeviceGetVgpuTypeSupportedPlacements, version=2, mode=n.NVML_VGPU_PGPU_HOMOGENEOUS_MODE)",
        "n.nvmlDeviceGetVgpuTypeSupportedPlacements(gpu, 476, version=2)",
        "[n.nvmlDeviceGetVgpuCapabilities(gpu, c) for c in (2, 9, 10)]",
    ) == [(1, 10), (4, [0, 6, 10, 16]), (4, [6, 16]), 3, 3, [1, 0, 0]]
    same_size = ask("places(n.nvmlDeviceGetVgpuTypeCreatablePlacements, version=2)", change=("mixed 1 1", "mixed 1 0"))
    assert same_size == [3]
    with_mig = ask("n.nvmlDeviceGetVgpuHeterogeneousMode(gpu)", change=MIG)
    assert with_mig == [3]


def test_disabled_mig_reports_profiles_and_mode_but_no_instances(ask: Ask) -> None:
    assert ask(
        "n.nvmlDeviceGetMigMode(gpu), n.nvmlDeviceGetMaxMigDeviceCount(gpu)",
        "profile(2), profile(0, version=1)",
        "profile(4)",
        "profile(0x12)",
        "starts(9)",
        "n.nvmlVgpuTypeGetGpuInstanceProfileId(468), n.nvmlVgpuTypeGetGpuInstanceProfileId(476)",
        "n.nvmlVgpuTypeGetMaxInstancesPerGpuInstance(476)",
        "n.nvmlVgpuTypeGetMaxInstancesPerGpuInstance(468)",
        "n.nvmlDeviceGetGpuInstanceById(gpu, 1)",
    ) == [
        ([0, 1], 7),
        ((9, 3, 2, 19968, "MIG 3g.20gb"), (19, 1, 7, 4864)),
        3,
        2,
        [(0, 4), (4, 4)],
        (0xFFFFFFFF, 9),
        1,
        3,
        3,
    ]


def test_mig_instances_have_placements(ask: Ask) -> None:
    whole = "n.nvmlDeviceGetGpuInstanceById(gpu, 1)"
    assert ask(
        "gi(1), gi(7)",
        "gi(2)",
        "[n.nvmlGpuInstanceGetInfo(i).id for i in instances(n.nvmlDeviceGetGpuInstances, gpu, 19)]",
        "[ci_profile(1, index) for index in (1, 2)]",
        "ci_profile(1, 3)",
        f"[ci(i) for p in (0, 1) for i in instances(n.nvmlGpuInstanceGetComputeInstances, {whole}, p)]",
        f"ci(n.nvmlGpuInstanceGetComputeInstanceById({whole}, 1))",
        change=MIG,
    ) == [
        ((1, 9, 4, 4), (7, 19, 0, 1)),
        6,
        [7],
        [(1, 2, 1, "MIG 2c.3g.20gb"), (2, 3, 1, "MIG 3g.20gb")],
        3,
        [(2, 0, 2, 1), (0, 1, 0, 2)],
        6,
    ]


def test_an_instance_has_its_own_scheduler_or_reports_none(ask: Ask) -> None:
    assert ask("gi_v1(7)", "gi_v2(7)", "gi_v1(1)", "gi_v2(1)", change=MIG) == [(2, 2, 33, 1041666)] * 2 + [3, 3]


def test_errors_have_nvmls_numbers(ask: Ask) -> None:
    assert ask(
        "n.nvmlVgpuTypeGetName(1)",
        "n.nvmlDeviceGetHandleByPciBusId('00000000:02:00.0')",
        "n.nvmlDeviceGetHandleByPciBusId('nonsense')",
        "n.nvmlVgpuInstanceGetType(0)",
        "n.nvmlDeviceGetFanSpeed(gpu)",
        "(os.unlink(os.environ['LAB_FILES'] + '/gpus/0000:01:00.0/vgpulab'), n.nvmlDeviceGetName(gpu))",
        "(n.nvmlShutdown(), n.nvmlDeviceGetName(gpu))",
    ) == [2, 6, 2, 2, 13, 15, 1]


def test_the_old_build_lacks_version_2_and_works_with_its_own_driver_alone(ask: Ask) -> None:
    v1 = "n.nvmlDeviceGetVgpuSchedulerState(gpu).schedulerPolicy"
    newer = "n.nvmlVgpuTypeGetMaxInstancesPerGpuInstance(476)"
    places = "n.nvmlDeviceGetVgpuTypeSupportedPlacements(gpu, 468, version={})"
    old = ask("v2(1)", v1, newer, places.format(2), f"{places.format(1)}.placementIds[:4]", "profile(2)",
              build="old", version="550.144.02")  # fmt: skip
    assert old == [13, 3, 13, 25, [0, 6, 10, 16], 3]
    start = "import pynvml as n\ntry:\n    n.nvmlInit()\nexcept n.NVMLError as error:\n    print(error.value)"
    assert ask(build="old", program=start) == [18]
    assert ask(version="550.144.02", program=start) == [18]
