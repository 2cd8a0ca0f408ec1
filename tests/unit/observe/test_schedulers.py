# SPDX-License-Identifier: Apache-2.0
"""i915's older files: the VFs' scheduler and memory are read, and nothing there is written."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from tests.layouts import FLEX
from tests.meanwhile import with_calls
from tests.schedulers import FIXED, act
from vgpuctl.errors import HostCannot
from vgpuctl.model.vgpu_scheduler import SchedulerSpec
from vgpuctl.operations.queries import show_gpu

CARD = f"/sys/bus/pci/devices/{FLEX}"
VFS = 8


def iov(directory="iov", gts=("gt",), idle="0", vf=("4", "16000"), **changed):
    """Return the files of a Flex card with 8 VFs, by path."""
    root = f"{CARD}/drm/card1/{directory}"
    files = {}
    for gt in gts:
        files[f"{root}/pf/{gt}/policies/sched_if_idle"] = f"{idle}\n"
        files[f"{root}/pf/{gt}/exec_quantum_ms"] = "20\n"
        for number in range(1, VFS + 1):
            folder = f"{root}/vf{number}/{gt}"
            files[f"{folder}/exec_quantum_ms"] = f"{vf[0]}\n"
            files[f"{folder}/preempt_timeout_us"] = f"{vf[1]}\n"
            files[f"{folder}/lmem_quota"] = f"{1 << 30}\n"
    return {**files, **{f"{root}/{path}": text for path, text in changed.items()}}


def flex(tmp_path, files):
    host = open_sim_host(tmp_path, "mixed")
    folders: dict[str, set[str]] = {}
    for path in files:
        parts = path.split("/")
        for depth in range(len(CARD.split("/")), len(parts)):
            folders.setdefault("/".join(parts[:depth]), set()).add(parts[depth])

    def listdir(path):
        own = folders.get(path, set())
        return tuple(sorted({*own, *(host.ports.sysfs.listdir(path) if path == CARD or not own else ())}))

    def read(path):
        return files[path] if path in files else host.ports.sysfs.read(path)

    return with_calls(host.ports, "sysfs", listdir=listdir, read=read)


@pytest.mark.parametrize("directory", ["iov", "prelim_iov"])
@pytest.mark.parametrize(
    ("idle", "vf", "policy", "slice_us"),
    [
        ("0", ("4", "16000"), "equal_share", 4000),
        ("1", ("4", "16000"), "fixed_share", 4000),
        ("0", ("0", "0"), "best_effort", None),
    ],
)
def test_the_policy_and_each_vfs_memory_are_shown(tmp_path, directory, idle, vf, policy, slice_us):
    data = show_gpu(flex(tmp_path, iov(directory, ("gt0", "gt1"), idle, vf)), FLEX).data
    running = data.scheduler.running
    assert (running.policy, running.time_slice_us, running.source) == (policy, slice_us, "iov")
    assert {function.framebuffer_mib for function in data.functions} == {2048}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"vf3/gt/exec_quantum_ms": "9\n"}, "vf3 and vf1 differ: 9 ms, 16000 us, low, not 4 ms, 16000 us, low"),
        ({"pf/gt/policies/sched_if_idle": "maybe\n"}, "is not what the driver writes"),
    ],
)
def test_odd_answers_are_an_unknown_policy_with_the_reason(tmp_path, changed, text):
    running = show_gpu(flex(tmp_path, iov(**changed)), FLEX).data.scheduler.running
    assert running.policy is None
    assert text in running.problem


def test_vgpuctl_writes_nothing_there(tmp_path):
    with pytest.raises(HostCannot, match="turns automatic provisioning off"):
        act(flex(tmp_path, iov()), SchedulerSpec(FIXED), gpu=FLEX)


def test_a_card_without_these_directories_has_no_scheduler(tmp_path):
    files = {f"{CARD}/drm/card1/dev": "226:1\n"}
    assert show_gpu(flex(tmp_path, files), FLEX).data.scheduler is None
