# SPDX-License-Identifier: Apache-2.0
"""Whose the kernel's files are, and who may read and write them."""

from __future__ import annotations

import pytest

from tests.contract.site import PCI, Site

pytestmark = pytest.mark.forms("sriov-vf")


def test_attributes_are_roots_and_only_some_can_be_written(site: Site) -> None:
    base = f"{PCI}/{site.gpu}"
    for name, mode in (("vendor", 0o444), ("sriov_numvfs", 0o644), ("", 0o755)):
        seen = site.world.sysfs.permissions(f"{base}/{name}")
        assert (seen.mode, seen.owner, seen.group) == (mode, 0, 0), name


def test_what_is_not_there_has_no_permissions(site: Site) -> None:
    with pytest.raises(FileNotFoundError):
        site.world.sysfs.permissions(f"{PCI}/{site.gpu}/none")
