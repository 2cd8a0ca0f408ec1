# SPDX-License-Identifier: Apache-2.0
"""NVML through the real pynvml, on a libnvidia-ml of the few functions that are called."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock

import pytest

from tests.unit.host.nvml_library import ADDRESS, done_by, query_gpu
from vgpuctl.host.absent import AbsentNvml
from vgpuctl.host.nvml import HostNvml, nvml_bus_id
from vgpuctl.host.nvml.library import open_for_change, open_nvml
from vgpuctl.value import as_dict


def test_a_vgpu_driver_has_types(tmp_path):
    status, gpu, calls = query_gpu(tmp_path, "-DPER_VM")
    assert status == {"available": True, "reason": None, "driver_version": "550.144.02"}
    assert (gpu["model"], gpu["framebuffer_mib"]) == ("NVIDIA A100-PCIE-40GB", 40960)
    assert gpu["uuid"] == "GPU-5abdbc1e-1bdc-57e2-8cb5-a189483428d4"
    unknown = dict.fromkeys(("gi_profile_id", "max_per_gi", "placement_ids", "placement_size"))
    four = {"type_id": 468, "name": "GRID A100-4C", "framebuffer_mib": 4096, "max_per_gpu": 10, "max_per_vm": 16}
    ten = {"type_id": 471, "name": "GRID A100-10C", "framebuffer_mib": 10240, "max_per_gpu": 4, "max_per_vm": 1}
    assert gpu["types"] == {468: {**four, **unknown}, 471: {**ten, **unknown}}
    assert (gpu["mig"], gpu["mixed_size"], gpu["gi_schedulers"]) == (None, None, {})
    assert calls == ["init", "00000000:3B:00.0", "shutdown", "init", "shutdown"]


@pytest.mark.parametrize(("flags", "ecc"), [(["-DECC=2"], {"enabled": False, "pending_enabled": True}), ([], None)])
def test_ecc_has_the_mode_pending_a_reset_where_the_gpu_has_it(tmp_path, flags, ecc):
    (result,), _calls = done_by(tmp_path, "nvml.ecc(address)", flags=flags)
    assert result == ecc
    assert AbsentNvml("--root").ecc(ADDRESS) is None


def test_how_many_fit_in_a_vm_may_be_missing(tmp_path):
    _status, gpu, _calls = query_gpu(tmp_path)
    assert [result["max_per_vm"] for result in gpu["types"].values()] == [16, 16]


def test_a_function_it_lacks_is_named(tmp_path):
    status, gpu, calls = query_gpu(tmp_path, "-DOLD")
    assert (status["available"], status["reason"]) == (False, "nvmlVgpuTypeGetMaxInstances")
    assert gpu is None
    assert calls.count("init") == calls.count("shutdown")


def test_an_old_driver_is_too_old(tmp_path):
    status, _gpu, _calls = query_gpu(tmp_path, driver="390.157")
    assert status == {"available": False, "reason": "too-old", "driver_version": "390.157"}


@pytest.mark.parametrize(("init", "reason"), [(18, "too-old"), (9, "absent"), (4, "nvmlInit: ")])
def test_why_it_did_not_start(tmp_path, init, reason):
    status, gpu, _calls = query_gpu(tmp_path, init=init)
    assert gpu is None
    assert status["reason"].startswith(reason)
    assert not status["available"]


def test_the_plain_driver_has_a_model_and_no_types(tmp_path):
    _status, gpu, _calls = query_gpu(tmp_path, "-DDATACENTRE")
    assert (gpu["model"], gpu["types"]) == ("NVIDIA A100-PCIE-40GB", {})


def test_the_plain_driver_tells_of_mig_too(tmp_path):
    _status, gpu, _calls = query_gpu(tmp_path, "-DDATACENTRE", "-DMODE=1")
    assert gpu["mig"]["enabled"]
    assert [result["name"] for result in gpu["mig"]["profiles"]] == ["7g.80gb", "3g.40gb", "1g.10gb", "1g.10gb+me"]
    assert [result["gi_id"] for result in gpu["mig"]["instances"]] == [5]
    assert (gpu["types"], gpu["mixed_size"], gpu["scheduler"]) == ({}, None, None)


def test_a_gpu_it_does_not_know_is_none_and_nvml_is_closed(tmp_path):
    _status, gpu, calls = query_gpu(tmp_path, address="0000:5e:00.0")
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


def test_only_pci_devices_are_queried():
    assert HostNvml().gpu("mtty") is None


def test_absent_nvml_has_a_reason():
    assert as_dict(AbsentNvml("--root").status()) == {"available": False, "reason": "--root", "driver_version": None}
    assert AbsentNvml("--root").gpu(ADDRESS) is None


def test_its_spelling_of_an_address():
    assert nvml_bus_id("10000:af:1f.7".replace("10000", "0001")) == "00000001:AF:1F.7"


class Counted:
    """NVML that counts how often it is open."""

    NVMLError = RuntimeError

    def __init__(self) -> None:
        self.times_open = 0
        self._lock = Lock()

    def nvmlInit(self) -> None:
        with self._lock:
            self.times_open += 1

    def nvmlShutdown(self) -> None:
        with self._lock:
            self.times_open -= 1


def test_a_change_has_nvml_for_itself_and_queries_share_it() -> None:
    nvml = Counted()
    together, shared = Barrier(2), []

    def query(_: int) -> None:
        for _ in range(200):
            with open_nvml(nvml):
                os.sched_yield()

    def query_together(_: int) -> None:
        with open_nvml(nvml):
            together.wait()  # both are inside at once
            shared.append(nvml.times_open)
            together.wait()

    def change(_: int) -> None:
        for _ in range(200):
            with open_for_change(lambda: nvml, {}, "change it"):
                for _ in range(5):
                    os.sched_yield()  # others run here
                    assert nvml.times_open == 1

    with ThreadPoolExecutor(8) as threads:
        jobs = [threads.submit(work, n) for n in range(3) for work in (query, change)]
        for job in jobs:
            job.result()
        list(threads.map(query_together, range(2)))
    assert shared == [2, 2]
    assert nvml.times_open == 0


ASK_GUESTS = "[[g.vm_uuid, g.driver_version] for g in nvml.guests(address)]"
VM = "aaaaaaaa-0000-4000-8000-000000000001"


def test_each_running_vgpu_has_its_vm_and_the_driver_in_there(tmp_path):
    (guests,), _calls = done_by(tmp_path, ASK_GUESTS, flags=("-DGUESTS=3",))
    assert guests[:2] == [[VM, "551.61"], [None, None]], "another hypervisor's number is no UUID, words are no version"
    assert guests[2] == [None, None], "it ends"


def test_a_gpu_without_running_vgpus_has_none_and_a_library_without_the_calls_does_not_tell(tmp_path):
    for flags, reported in (("-DGUESTS=0",), ()), ((), None), (("-DGUESTS=2", "-DNO_GUEST_DRIVER"), None):
        (guests,), _calls = done_by(tmp_path, "nvml.guests(address)", flags=flags)
        assert guests == reported
    assert AbsentNvml("--root").guests("0000:3b:00.0") is None


ASK_NVLINK = "nvml.nvlink_peers(address)"


@pytest.mark.parametrize(
    ("flags", "peers"),
    [
        (('-DNVLINK="00000000:3F:00.0"',), ("0000:3f:00.0",)),
        (('-DNVLINK="00000000:3F:00.0"', "-DOLD_NVLINK"), ("0000:05:00.0", "0000:3f:00.0")),
        ((), None),
        (('-DNVLINK="?"',), None),
    ],
    ids=["once, and no NVSwitch", "every other end where the kind is not told", "without the calls", "strange answer"],
)
def test_the_gpus_at_active_links(tmp_path, flags, peers):
    (reported,), _calls = done_by(tmp_path, ASK_NVLINK, flags=flags)
    assert reported == peers
    assert AbsentNvml("--root").nvlink_peers("0000:3b:00.0") is None
