# SPDX-License-Identifier: Apache-2.0
"""AppArmor and Secure Boot."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import a100, snapshot
from vgpuctl.doctor.check import FileContent, Verdict
from vgpuctl.doctor.kernel_security import (
    APPARMOR_ENABLED,
    APPARMOR_PROFILES,
    EFI_DIRECTORY,
    EFI_VARIABLES,
    SECURE_BOOT_VARIABLE,
)

ON, OFF = "\x06\x00\x00\x00\x01", "\x06\x00\x00\x00\x00"


def test_apparmor_with_libvirts_profile():
    result = run_check(
        "apparmor", files={APPARMOR_ENABLED: "Y\n", APPARMOR_PROFILES: "man_filter (enforce)\nlibvirtd (enforce)\n"}
    )
    assert result.verdict is Verdict.OK
    assert "libvirtd (enforce)" in finding_text(result)


def test_apparmor_without_libvirts_profile_is_a_warning():
    profiles = "man_filter (enforce)\nlibvirtd//qemu_bridge_helper (enforce)\n"
    assert run_check("apparmor", files={APPARMOR_ENABLED: "Y\n", APPARMOR_PROFILES: profiles}).verdict is Verdict.WARN


def test_a_host_without_apparmor_has_nothing_to_check():
    assert run_check("apparmor", files={APPARMOR_ENABLED: "N\n"}).verdict is Verdict.NOT_APPLICABLE
    assert run_check("apparmor").verdict is Verdict.NOT_APPLICABLE


def test_profiles_that_only_root_sees_are_unknown():
    closed = FileContent(problem=f"{APPARMOR_PROFILES}: Permission denied")
    result = run_check("apparmor", files={APPARMOR_ENABLED: "Y\n", APPARMOR_PROFILES: closed})
    assert (result.verdict, result.fix) == (Verdict.UNKNOWN, "run it as root")


@pytest.mark.parametrize(
    ("value", "driver", "verdict"),
    [(ON, "nvidia", Verdict.OK), (OFF, None, Verdict.OK), (ON, None, Verdict.FAIL)],
)
def test_secure_boot_only_matters_when_the_driver_is_missing(value, driver, verdict):
    result = run_check(
        "secure-boot",
        snapshot(a100(driver=driver)),
        files={SECURE_BOOT_VARIABLE: value},
        folders={EFI_DIRECTORY: ("efivars",)},
    )
    assert result.verdict is verdict


def test_a_host_that_was_booted_by_bios_has_no_secure_boot():
    assert run_check("secure-boot", snapshot(a100())).verdict is Verdict.NOT_APPLICABLE
    assert run_check("secure-boot", snapshot(a100()), folders={EFI_DIRECTORY: ()}).verdict is Verdict.UNKNOWN


def test_firmware_without_the_variable_has_no_secure_boot():
    folders = {EFI_DIRECTORY: ("efivars",), EFI_VARIABLES: ("BootOrder-8be4df61-93ca-11d2-aa0d-00e098032b8c",)}
    assert run_check("secure-boot", snapshot(a100()), folders=folders).verdict is Verdict.OK
