# SPDX-License-Identifier: Apache-2.0
"""Owner and permissions of the kernel's files."""

from __future__ import annotations

import pytest

from tests.contract.site import PCI, Site

pytestmark = pytest.mark.forms("sriov-vf")


def test_root_owns_the_attributes_and_only_some_are_writable(site: Site) -> None:
    base = f"{PCI}/{site.gpu}"
    for name, mode in (("vendor", 0o444), ("sriov_numvfs", 0o644), ("", 0o755)):
        permissions = site.ports.sysfs.permissions(f"{base}/{name}")
        assert (permissions.mode, permissions.owner, permissions.group) == (mode, 0, 0), name


def test_a_missing_file_has_no_permissions(site: Site) -> None:
    with pytest.raises(FileNotFoundError):
        site.ports.sysfs.permissions(f"{PCI}/{site.gpu}/none")


def test_resource_has_start_end_and_flags_of_each_bar_and_the_rom(site: Site) -> None:
    lines = site.ports.sysfs.read(f"{PCI}/{site.gpu}/resource").splitlines()
    assert len(lines) > 6
    bars = [[int(word, 16) for word in line.split()] for line in lines]
    assert all(len(bar) == 3 for bar in bars)
    assert [bar for bar in bars if bar[0] and bar[1] > bar[0] and bar[2] & 0x200], "one in memory, with an address"


def test_meminfo_has_total_and_available_memory_in_kib(site: Site) -> None:
    lines = dict(line.split(":") for line in site.ports.sysfs.read("/proc/meminfo").splitlines())
    total, available = (lines[name].split() for name in ("MemTotal", "MemAvailable"))
    assert total[1] == available[1] == "kB"
    assert 0 < int(available[0]) <= int(total[0])
