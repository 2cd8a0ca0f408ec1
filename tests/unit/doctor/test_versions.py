# SPDX-License-Identifier: Apache-2.0
"""Kernel, libvirt and QEMU versions."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import a100, snapshot, t4
from vgpuctl.doctor.check import Verdict
from vgpuctl.model.port_values import HypervisorStatus

RELEASE = "/proc/sys/kernel/osrelease"


def libvirt(version: int | None = 10_000_000, qemu: int | None = 8_002_002, **more) -> HypervisorStatus:
    values = {"available": True, "uri": "qemu:///system", "libvirt_version": version, "qemu_version": qemu}
    return HypervisorStatus(**{**values, **more})


@pytest.mark.parametrize(
    ("gpu", "release", "verdict"),
    [
        (a100(), "6.8.0-45-generic\n", Verdict.OK),
        (a100(), "5.15.0-100-generic\n", Verdict.FAIL),
        (t4(), "5.15.0-100-generic\n", Verdict.OK),
    ],
)
def test_the_kernel_is_checked_by_the_gpus_needs(gpu, release, verdict):
    result = run_check("kernel", snapshot(gpu), files={RELEASE: release})
    assert result.verdict is verdict
    assert release.strip() in finding_text(result)


def test_an_unreported_kernel_is_unknown():
    assert run_check("kernel", snapshot(a100())).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("gpu", "version", "verdict"),
    [
        (a100(), 10_000_000, Verdict.OK),
        (a100(), 9_000_000, Verdict.FAIL),
        (t4(), 9_000_000, Verdict.OK),
        (t4(), 7_000_000, Verdict.WARN),
        (t4(), None, Verdict.UNKNOWN),
    ],
)
def test_libvirt_is_checked_by_the_gpus_needs(gpu, version, verdict):
    assert run_check("libvirt", snapshot(gpu, hypervisor=libvirt(version))).verdict is verdict


def test_a_libvirt_that_does_not_answer_fails_with_its_own_reason():
    off = libvirt(None, available=False, reason="Connection refused")
    result = run_check("libvirt", snapshot(hypervisor=off))
    assert result.verdict is Verdict.FAIL
    assert result.evidence == ("libvirt does not answer at qemu:///system: Connection refused",)


def test_an_unqueried_libvirt_is_unknown():
    off = libvirt(None, available=False, uri="", reason="libvirt is not used: --root")
    assert run_check("libvirt", snapshot(hypervisor=off)).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("uri", ["qemu:///session", "test:///default"])
def test_a_libvirt_without_the_hosts_vms_fails(uri):
    assert run_check("libvirt", snapshot(hypervisor=libvirt(uri=uri))).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("version", "qemu", "verdict"),
    [
        (12_004_000, 7_002_000, Verdict.OK),
        (12_004_000, 7_001_000, Verdict.FAIL),
        (12_003_000, 6_002_000, Verdict.OK),
        (10_000_000, None, Verdict.UNKNOWN),
    ],
)
def test_qemu_is_checked_as_libvirt_starts_it(version, qemu, verdict):
    assert run_check("qemu", snapshot(hypervisor=libvirt(version, qemu))).verdict is verdict
