# SPDX-License-Identifier: Apache-2.0
"""Errors of `sriov_numvfs` when the PF's driver has a callback, in the order of the checks in the kernel's iov.c."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.contract.site import PCI, Site

pytestmark = pytest.mark.forms("sriov-vf")


@pytest.fixture
def numvfs(site: Site) -> Iterator[str]:
    """The path of `sriov_numvfs`. No host driver binds to the VFs; the fixture turns them off afterwards."""
    base = f"{PCI}/{site.gpu}"
    site.ports.sysfs.write(f"{base}/sriov_drivers_autoprobe", "0\n")
    yield f"{base}/sriov_numvfs"
    site.ports.sysfs.write_uninterruptible(f"{base}/sriov_numvfs", "0\n", gpu=site.gpu, deadline_seconds=30)


def total(site: Site) -> int:
    return int(site.ports.sysfs.read(f"{PCI}/{site.gpu}/sriov_totalvfs"))


def test_each_vf_links_to_its_pf_and_has_its_own_iommu_group(site: Site, numvfs: str) -> None:
    assert site.refused(numvfs, "3\n") is None
    assert site.ports.sysfs.read(numvfs) == "3\n"
    assert len(site.vfs) == 3
    groups = set()
    for vf in site.vfs:
        assert site.ports.sysfs.readlink(f"{PCI}/{vf}/physfn").rpartition("/")[2] == site.gpu
        groups.add(site.ports.sysfs.readlink(f"{PCI}/{vf}/iommu_group").rpartition("/")[2])
    assert len(groups) == 3


def test_without_autoprobe_no_driver_binds_to_a_vf(site: Site, numvfs: str) -> None:
    site.ports.sysfs.write(numvfs, "2\n")
    for vf in site.vfs:
        assert "driver" not in site.ports.sysfs.listdir(f"{PCI}/{vf}")


def test_more_than_totalvfs_is_erange(site: Site, numvfs: str) -> None:
    assert site.refused(numvfs, f"{total(site) + 1}\n") == errno.ERANGE


@pytest.mark.parametrize("text", ["many\n", "-1\n", "99999999\n"])
def test_text_that_is_no_16_bit_number_is_refused(site: Site, numvfs: str, text: str) -> None:
    assert site.refused(numvfs, text) in (errno.EINVAL, errno.ERANGE)


def test_another_number_while_vfs_are_on_is_ebusy_and_the_same_number_is_accepted(site: Site, numvfs: str) -> None:
    site.ports.sysfs.write(numvfs, "2\n")
    assert site.refused(numvfs, "3\n") == errno.EBUSY
    assert site.refused(numvfs, "2\n") is None
    assert site.ports.sysfs.read(numvfs) == "2\n"


def test_0_removes_the_vfs(site: Site, numvfs: str) -> None:
    site.ports.sysfs.write(numvfs, "2\n")
    site.ports.sysfs.write_uninterruptible(numvfs, "0\n", gpu=site.gpu, deadline_seconds=30)
    assert site.vfs == ()
    assert site.ports.sysfs.read(numvfs) == "0\n"
