# SPDX-License-Identifier: Apache-2.0
"""The names of NVIDIA's drivers for guests, and what their files begin with."""

from __future__ import annotations

import pytest

from tests.drivers import exe_name
from vgpuctl.config.guest_drivers import check_content, guest_driver, parse_driver_name
from vgpuctl.model.guest_driver import DriverName


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA-Linux-x86_64-580.159.03-grid.run", DriverName("580.159.03", "run", "x86_64", True)),
        ("NVIDIA-Linux-x86_64-580.159.03.run", DriverName("580.159.03", "run", "x86_64", False)),
        ("NVIDIA-Linux-aarch64-595.71.05-grid.run", DriverName("595.71.05", "run", "aarch64", True)),
        ("nvidia-linux-grid-580_580.159.03_amd64.deb", DriverName("580.159.03", "deb", "x86_64", True)),
        ("nvidia-linux-grid-595_595.71.05-1_arm64.deb", DriverName("595.71.05", "deb", "aarch64", True)),
        ("nvidia-linux-grid-580-580.159.03-1.x86_64.rpm", DriverName("580.159.03", "rpm", "x86_64", True)),
        ("NVIDIA-Linux-x86_64-535.54-grid.run", DriverName("535.54", "run", "x86_64", True)),
        (exe_name("582.53"), DriverName("582.53", "exe", "x86_64", True)),
        (
            "582.53-data-center-tesla-desktop-win10-win11-64bit-dch-international.exe",
            DriverName("582.53", "exe", "x86_64", False),
        ),
        (
            "582.53-quadro-rtx-desktop-notebook-win10-win11-64bit-international-dch-whql.exe",
            DriverName("582.53", "exe", "x86_64", False),
        ),
    ],
)
def test_a_name_says_version_kind_and_machine(name: str, expected: DriverName) -> None:
    assert parse_driver_name(f"/srv/drivers/{name}") == expected
    assert guest_driver(f"/srv/drivers/{name}") == f"/srv/drivers/{name}"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("NVIDIA-Linux-x86_64-580.95.05-grid-aws.run", r"is a build for a cloud \(aws\)"),
        ("NVIDIA-Linux-x86_64-580.95.05-grid-azure.run", r"is a build for a cloud \(azure\)"),
        ("NVIDIA-Linux-x86_64-580.95.05-grid_gcp.run", r"is a build for a cloud \(gcp\)"),
        ("582.16_grid_win10_win11_server2022_dch_64bit_international_aws_swl.exe", r"a build for a cloud \(aws\)"),
        ("NVIDIA-Linux-x86_64-580.159.01-vgpu-kvm.run", "is the driver of a host"),
        ("582.53_grid_win10_win11_server2022_dch_32bit_international.exe", "is no name of NVIDIA's drivers"),
        ("582.53_grid_server2019_dch_64bit_international.exe", "is no name of NVIDIA's drivers"),
        ("setup.exe", "or, for Windows, VERSION_grid_win10_win11_server2022_server2025_dch_64bit_international.exe"),
        ("NVIDIA-Linux-x86_64-580.159.03-grid-custom.run", "is no name of NVIDIA's drivers"),
        ("NVIDIA-Linux-ppc64le-535.54.03.run", "is no name of NVIDIA's drivers"),
        ("NVIDIA-GRID-Linux-KVM-580.159.01-580.159.03-582.53.zip", "is an archive: unpack it"),
        ("driver.run", "is no name of NVIDIA's drivers"),
        ("NVIDIA-Linux-x86_64-grid.run", "is no name of NVIDIA's drivers"),
        ("nvidia-driver-580_580.159.03_amd64.deb", "is no name of NVIDIA's drivers"),
        ("NVIDIA-Linux-x86_64-580.159.03-grid.run\n", "."),
    ],
)
def test_another_name_is_refused_and_why(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        guest_driver(f"/srv/drivers/{name}")


def test_it_is_a_path_or_none() -> None:
    assert guest_driver("none") == "none"
    with pytest.raises(ValueError, match="absolute path"):
        guest_driver("NVIDIA-Linux-x86_64-580.159.03-grid.run")


@pytest.mark.parametrize(
    ("kind", "head", "problem"),
    [
        ("run", b"#! /bin/sh\n", None),
        ("run", b'#! /bin/sh\nversion_string="580.159.03"\n', None),
        ("run", b"#! /bin/sh\npkg_version=580.159.03\n", None),
        ("run", b"#! /bin/sh\nversion_string=570.1\n", "its name says version 580.159.03, and it has 570.1"),
        ("run", b"<html>", "it does not begin as a .run file does"),
        ("deb", b"!<arch>\ndebian-binary   1", None),
        ("deb", b"#!/bin/sh\n", "it does not begin as a .deb file does"),
        ("rpm", b"\xed\xab\xee\xdb\x03\x00", None),
        ("rpm", b"", "it does not begin as a .rpm file does"),
    ],
)
def test_the_content_is_what_the_name_says(kind: str, head: bytes, problem: str | None) -> None:
    name = DriverName("580.159.03", kind, "x86_64", True)
    if problem is None:
        check_content(name, head)
        return
    with pytest.raises(ValueError, match=problem):
        check_content(name, head)
