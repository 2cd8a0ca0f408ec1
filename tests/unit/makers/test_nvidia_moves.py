# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's rules for the migration of vGPUs between KVM hosts: drivers and distributions."""

from __future__ import annotations

import pytest

from vgpuctl.makers.nvidia_moves import find_doubts, find_problems, find_system
from vgpuctl.model.results.migration import MigrationHostResult


def host(distribution: str | None, driver: str | None = "580.159.01", name: str = "a") -> MigrationHostResult:
    return MigrationHostResult(name, name * 32, "x86_64", distribution=distribution, driver=driver)


@pytest.mark.parametrize(
    ("source", "target", "drivers", "problems"),
    [
        ("ubuntu 24.04", "ubuntu 24.04", ("580.159.01", "580.159.01"), 0),
        ("ubuntu 24.04", "ubuntu 24.04", ("580.159.01", "580.126.08"), 1),
        ("rhel 9.4", "rhel 9.4", ("580.159.01", "580.126.08"), 1),
        ("rhel 9.6", "rhel 9.6", ("580.159.01", "580.126.08"), 0),
        ("rhel 9.7", "rhel 10.1", ("580.159.01", "580.126.08"), 0),
        ("rhel 9.4", "rhel 9.6", ("580.159.01", "580.126.08"), 1),
        ("rhel 9.4", "rhel 10.0", ("580.159.01", "580.159.01"), 1),
        ("rhel 10.0", "rhel 9.4", ("580.159.01", "580.126.08"), 2),
        ("debian 13", "debian 13", ("580.159.01", "580.126.08"), 1),
        (None, None, ("580.159.01", "580.126.08"), 1),
        ("debian 13", "debian 13", (None, "580.126.08"), 0),
    ],
)
def test_drivers_may_differ_only_where_nvidia_says_so(
    source: str | None, target: str | None, drivers: tuple[str | None, str | None], problems: int
) -> None:
    result = find_problems(host(source, drivers[0]), host(target, drivers[1], "b"))
    assert len(result) == problems


@pytest.mark.parametrize(
    ("distribution", "version"),
    [
        ("ubuntu 24.04", (24, 4)),
        ("ubuntu 22.04", None),
        ("ubuntu 26.04", None),
        ("rhel 9.4", (9, 4)),
        ("rhel 9.5", None),
        ("rhel 9.8", (9, 6)),
        ("rhel 10.2", (10, 0)),
        ("debian 13", None),
        ("arch", None),
        (None, None),
    ],
)
def test_a_distribution_that_nvidia_does_not_name_is_unknown(
    distribution: str | None, version: tuple[int, int] | None
) -> None:
    system = find_system(distribution)
    assert (None if system is None else system.version) == version


def test_doubts_name_the_host_and_the_list() -> None:
    (doubt,) = find_doubts(host("ubuntu 24.04"), host("debian 13", name="b"))
    assert doubt.startswith("NVIDIA lists live migration only for RHEL 9.4, RHEL 9.6, RHEL 10.0, Ubuntu 24.04 (2026-")
    assert doubt.endswith("; the distribution of b is debian 13")
    assert len(find_doubts(host(None, None), host("ubuntu 24.04", None, "b"))) == 2
    (doubt,) = find_doubts(host("debian 13"), host("debian 13", name="b"))
    assert doubt.endswith("the distribution of a and b is debian 13")
    assert not find_doubts(host("ubuntu 24.04"), host("rhel 9.6", name="b"))
