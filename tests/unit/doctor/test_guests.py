# SPDX-License-Identifier: Apache-2.0
"""Which guest drivers the host's driver supports, and the report of the others."""

from __future__ import annotations

import pytest

from tests.hosts import create, open_sim_host, request
from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import a100, snapshot, vm, vm_uuid
from vgpuctl.doctor.check import Verdict
from vgpuctl.doctor.guests import rate_guest_driver, vgpu_release
from vgpuctl.model.gpu import Backend
from vgpuctl.model.port_values import NvmlGuest, NvmlStatus
from vgpuctl.operations.diagnose import diagnose

GPU = a100()
SCENARIO = """version: 1
nvidia: {driver: "580.105.06", guest_driver: "%s"}
gpus: [{model: H100}]
"""


def guests(*versions: str | None, host: str = "550.90.05"):
    reported = tuple(NvmlGuest(vm_uuid(number), version) for number, version in enumerate(versions))
    looked = snapshot(GPU, vms=[vm(0)], nvml=NvmlStatus(available=True, driver_version=host))
    return run_check("guest-drivers", looked, guests={GPU.address: reported})


@pytest.mark.parametrize(
    ("version", "release"),
    [("450.51.05", 11), ("449.1", None), ("539.28", 16), ("550.90.05", 17), ("551.61", 17), ("582.16", 19),
     ("595.45.04", 20), ("600.1", None), ("Not Available", None)],
)  # fmt: skip
def test_the_release_is_that_of_the_branch(version, release):
    assert vgpu_release(version) == release


@pytest.mark.parametrize(
    ("host", "guest", "verdict"),
    [
        ("550.90.05", "550.54.14", Verdict.OK),
        ("550.54.10", "553.62", Verdict.OK),
        ("550.90.05", "535.183.01", Verdict.OK),
        ("550.90.05", "529.19", Verdict.WARN),
        ("580.65.05", "539.28", Verdict.OK),
        ("580.65.05", "550.90.07", Verdict.WARN),
        ("580.65.05", "470.63", Verdict.WARN),
        ("535.54.06", "550.54.14", Verdict.FAIL),
        ("550.90.05", "572.60", Verdict.FAIL),
        ("610.1.2", "610.4.5", Verdict.OK),
        ("610.1.2", "580.65.06", Verdict.UNKNOWN),
    ],
)
def test_a_host_serves_its_own_release_the_one_before_and_the_long_term_one_before(host, guest, verdict):
    assert rate_guest_driver(host, guest) is verdict


def test_a_guest_newer_than_the_host_fails_with_its_vm_and_what_to_do():
    result = guests("572.60", "550.54.14", None)
    assert result.verdict is Verdict.FAIL
    assert result.evidence == (
        "host: 550.90.05 (vGPU 17)",
        "vdi-000 on 0000:3b:00.0: 572.60 (vGPU 18), newer than the host's: its vGPU does not start",
        "1 of 3 running vGPUs: no NVIDIA driver runs in the guest yet",
    )
    assert "or update the host" in str(result.fix)


def test_supported_guests_are_ok():
    result = guests("550.54.14", "535.183.01")
    assert (result.verdict, result.fix) == (Verdict.OK, None)
    assert f"{vm_uuid(1)} on 0000:3b:00.0: 535.183.01 (vGPU 16)" in finding_text(result)
    assert guests().evidence == ("host: 550.90.05", "no VM runs with a vGPU")


def test_without_nvml_data_it_is_unknown():
    assert run_check("guest-drivers", snapshot(GPU)).verdict is Verdict.UNKNOWN
    silent = snapshot(GPU, nvml=NvmlStatus(available=True))
    assert run_check("guest-drivers", silent, guests={GPU.address: ()}).verdict is Verdict.UNKNOWN
    amd = a100(vendor_id="1002", driver="gim", backend=Backend.SRIOV_VF)
    assert run_check("guest-drivers", snapshot(amd)).verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("guest", "verdict"), [("573.07", "ok"), ("539.28", "ok"), ("550.90.07", "warn"), ("596.36", "fail")]
)
def test_a_vm_with_such_a_driver_is_named(tmp_path, guest, verdict):
    ports = open_sim_host(tmp_path, text=SCENARIO % guest).ports
    create(ports, request("H100-10C", name="desk"))
    (row,) = diagnose(ports, ("guest-drivers",)).checks
    assert row.verdict == verdict
    assert any(line.startswith("desk on ") and guest in line for line in row.evidence)
