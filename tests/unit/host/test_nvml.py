# SPDX-License-Identifier: Apache-2.0
"""NVML through the real pynvml, on a libnvidia-ml made of the few functions that are asked."""

import os

import pytest

from tests.unit.host.nvml_library import ADDRESS, asked
from vgpuctl.host.nvml import HostNvml, NoNvml, bus_id
from vgpuctl.value import as_dict


def test_a_vgpu_driver_tells_its_types(tmp_path):
    status, gpu, calls = asked(tmp_path, "-DPER_VM")
    assert status == {"available": True, "reason": None, "driver_version": "550.144.02"}
    assert (gpu["model"], gpu["framebuffer_mib"]) == ("NVIDIA A100-PCIE-40GB", 40960)
    unknown = dict.fromkeys(("gi_profile_id", "max_per_gi", "placement_ids", "placement_size"))
    four = {"type_id": 468, "name": "GRID A100-4C", "framebuffer_mib": 4096, "max_per_gpu": 10, "max_per_vm": 16}
    ten = {"type_id": 471, "name": "GRID A100-10C", "framebuffer_mib": 10240, "max_per_gpu": 4, "max_per_vm": 1}
    assert gpu["types"] == {468: {**four, **unknown}, 471: {**ten, **unknown}}
    assert (gpu["mig"], gpu["mixed_size"], gpu["gi_schedulers"]) == (None, None, {})
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


def test_the_plain_driver_tells_of_mig_too(tmp_path):
    _status, gpu, _calls = asked(tmp_path, "-DDATACENTRE", "-DMODE=1")
    assert gpu["mig"]["enabled"]
    assert [found["name"] for found in gpu["mig"]["profiles"]] == ["7g.80gb", "3g.40gb", "1g.10gb", "1g.10gb+me"]
    assert [found["gi_id"] for found in gpu["mig"]["instances"]] == [5]
    assert (gpu["types"], gpu["mixed_size"], gpu["scheduler"]) == ({}, None, None)


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
