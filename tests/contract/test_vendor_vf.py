# SPDX-License-Identifier: Apache-2.0
"""Errors of a vendor-specific VF's current_vgpu_type file: the engine relies on these errno values."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.contract.site import Site

pytestmark = pytest.mark.forms("vendor-vf")
FOUR, EIGHT = "468", "470"


@pytest.fixture
def vf(site: Site) -> Iterator[str]:
    """The first VF; the fixture removes the vGPUs of all VFs afterwards."""
    yield site.vfs[0]
    for address in site.vfs:
        if site.ports.sysfs.read(site.type_file(address)).strip() != "0":
            site.ports.sysfs.write(site.type_file(address), "0\n")


def listed(site: Site, vf: str) -> list[str]:
    text = site.ports.sysfs.read(site.type_file(vf, "creatable_vgpu_types"))
    return [line.split(":")[0].strip() for line in text.splitlines() if line.split(":")[0].strip().isdigit()]


def test_a_free_vf_reads_0_and_lists_every_type(site: Site, vf: str) -> None:
    assert site.ports.sysfs.read(site.type_file(vf)) == "0\n"
    assert listed(site, vf) == ["468", "469", "470", "471", "472", "473"]


@pytest.mark.parametrize("text", ["A100-4C\n", "0x1d4\n", "\n", "-1x\n"])
def test_text_that_is_no_decimal_number_is_einval(site: Site, vf: str, text: str) -> None:
    assert site.refused(site.type_file(vf), text) == errno.EINVAL


def test_an_unknown_type_is_eio(site: Site, vf: str) -> None:
    assert site.refused(site.type_file(vf), "9999\n") == errno.EIO


def test_0_on_a_free_vf_is_eperm(site: Site, vf: str) -> None:
    assert site.refused(site.type_file(vf), "0\n") == errno.EPERM


@pytest.mark.parametrize("again", [FOUR, EIGHT])
def test_a_second_type_is_eperm_even_if_it_is_the_same(site: Site, vf: str, again: str) -> None:
    assert site.refused(site.type_file(vf), f"{FOUR}\n") is None
    assert site.ports.sysfs.read(site.type_file(vf)) == f"{FOUR}\n"
    assert site.refused(site.type_file(vf), f"{again}\n") == errno.EPERM


def test_a_vf_that_holds_a_type_lists_none_and_its_siblings_only_the_same_size(site: Site, vf: str) -> None:
    site.ports.sysfs.write(site.type_file(vf), f"{FOUR}\n")
    assert listed(site, vf) == []
    assert listed(site, site.vfs[1]) == [FOUR]


def test_another_size_on_the_card_is_eio(site: Site, vf: str) -> None:
    site.ports.sysfs.write(site.type_file(vf), f"{FOUR}\n")
    assert site.refused(site.type_file(site.vfs[1]), f"{EIGHT}\n") == errno.EIO


def test_a_full_card_is_eio_and_lists_nothing(site: Site, vf: str) -> None:
    for address in site.vfs[:5]:
        site.ports.sysfs.write(site.type_file(address), f"{EIGHT}\n")
    assert site.refused(site.type_file(site.vfs[5]), f"{EIGHT}\n") == errno.EIO
    assert listed(site, site.vfs[5]) == []


def test_clearing_the_last_vgpu_allows_every_size_again(site: Site, vf: str) -> None:
    site.ports.sysfs.write(site.type_file(vf), f"{FOUR}\n")
    site.ports.sysfs.write_uninterruptible(site.type_file(vf), "0\n", gpu=site.gpu, deadline_seconds=20)
    assert listed(site, site.vfs[1]) == ["468", "469", "470", "471", "472", "473"]


def test_parameters_need_a_type_and_a_length_that_the_driver_accepts(site: Site, vf: str) -> None:
    params = site.type_file(vf, "vgpu_params")
    assert site.refused(params, "frame_rate_limiter=0\n") == errno.ENXIO
    site.ports.sysfs.write(site.type_file(vf), f"{FOUR}\n")
    assert site.refused(params, "x" * 2000) == errno.E2BIG
    assert site.refused(params, "frame_rate_limiter=0\n") is None
    assert site.ports.sysfs.read(params).strip() == "frame_rate_limiter=0"


def test_the_vf_stays_bound_to_the_nvidia_driver_and_has_a_vfio_device(site: Site, vf: str) -> None:
    assert site.ports.sysfs.readlink(f"/sys/bus/pci/devices/{vf}/driver").endswith("/nvidia")
    assert "vfio-dev" in site.ports.sysfs.listdir(f"/sys/bus/pci/devices/{vf}")


def test_sriov_numvfs_cannot_change_while_the_nvidia_driver_has_the_card(site: Site) -> None:
    path = f"/sys/bus/pci/devices/{site.gpu}/sriov_numvfs"
    assert site.refused(path, "3\n") == errno.ENOENT
    assert site.refused(path, "99999\n") in (errno.ERANGE, errno.EINVAL)
    assert site.refused(path, "many\n") == errno.EINVAL
    assert site.refused(path, site.ports.sysfs.read(path)) is None
