# SPDX-License-Identifier: Apache-2.0
"""The checks of AMD's GPUs with gim."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from tests.unit.doctor.check_results import FAIL, NOT_APPLICABLE, OK, WARN, Case, assert_verdict, case
from tests.values import a100, changed, snapshot, t4
from vgpuctl.model.gpu import Backend
from vgpuctl.operations.diagnose import diagnose

V710 = a100(vendor_id="1002", device_id="7460", driver="gim", backend=Backend.SRIOV_VF)
MI300X = a100(vendor_id="1002", device_id="74a1", driver=None, backend=None)
SNAPSHOT = snapshot(V710)
CONFIG, LINE = "/etc/gim_config", "/etc/modprobe.d/gim.conf"
IDS = f"{V710.path}/sriov_vf_device"
RELEASE, DRIVERS = "/proc/sys/kernel/osrelease", "/sys/bus/pci/drivers"


def settings(verdict, *words, **files):
    return case("gim-settings", verdict, *words, snapshot=SNAPSHOT, files=files.get("files", {}))


def variant(verdict, *words, vf="74b6", release="6.8.0-45-generic", drivers=("vfio-pci",)):
    files = {IDS: f"{vf}\n", RELEASE: release}
    return case("amd-vfio-pci", verdict, *words, snapshot=SNAPSHOT, files=files, folders={DRIVERS: drivers})


CASES = {
    "the file is as the GPU runs": settings(OK, "vf_num=16", files={CONFIG: "vf_num=16\n"}),
    "no file": settings(WARN, "does not exist", "set-mode 0000:3b:00.0 sriov --vfs N"),
    "gim is not loaded": case(
        "gim-settings", FAIL, "0000:3b:00.0 has no driver", "modprobe gim; then vgpuctl reconcile-host",
        snapshot=snapshot(MI300X), files={CONFIG: "vf_num=1\n"},
    ),
    "no gim was ever here": case("gim-settings", NOT_APPLICABLE, snapshot=snapshot(MI300X)),
    "a comment": settings(FAIL, "'#'", "may empty", "mv /etc/gim_config", files={CONFIG: "# x\nvf_num=16\n"}),
    "the file was changed": settings(
        WARN, "16 VFs on, 4 in", "sriov --vfs 16", files={CONFIG: "vf_num=4\n"}
    ),
    "modprobe's line wins": settings(
        WARN, "gim.conf, line 1", "wins over", files={CONFIG: "vf_num=16\n", LINE: "options gim vf_num=4\n"}
    ),
    "the boot loader's word wins": settings(
        WARN, "gim.vf_num=4", files={CONFIG: "vf_num=16\n", "/proc/cmdline": "ro gim.vf_num=4"}
    ),
    "gim leaves the GPU out": settings(
        OK, "as 0 GPUs", files={CONFIG: "vf_num=4\n", "/sys/module/gim/parameters/enabled_devices": "0000:af:00.0\n"}
    ),
    "amdgpu has a VF": case(
        "gim-vfs", WARN, "0000:3b:00.4", "blacklist amdgpu", snapshot=snapshot(changed(V710, 0, driver="amdgpu"))
    ),
    "amdgpu has none": case("gim-vfs", OK, snapshot=SNAPSHOT),
    "an id that the driver does not know": variant(NOT_APPLICABLE, "74b6, 75b0", vf="7461"),
    "the driver is loaded": variant(OK, "libvirt 10.0", drivers=("amd-vfio-pci", "vfio-pci")),
    "the driver is missing": variant(WARN, "modprobe amd-vfio-pci"),
    "the kernel is too old": variant(WARN, "Linux 6.8", release="6.1.0-13-amd64"),
    **{
        f"{check} without gim": case(check, NOT_APPLICABLE, snapshot=snapshot(t4()))
        for check in ("gim-settings", "gim-vfs", "amd-vfio-pci")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_each_check_says(name: str) -> None:
    one: Case = CASES[name]
    assert_verdict(one)


@pytest.mark.parametrize("scenario", ["mi300x", "mixed"])
def test_a_simulated_host_is_as_its_driver_loaded_it(tmp_path, scenario):
    checks = {c.id: c for c in diagnose(open_sim_host(tmp_path, scenario).ports, ("gim-settings", "gim-vfs")).checks}
    assert {c.verdict for c in checks.values()} == {"ok"}, checks
