# SPDX-License-Identifier: Apache-2.0
"""Results of creating and removing mdevs, and their effect on available_instances of other types and functions."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.contract.site import MDEV, PCI, Site, new_uuid

pytestmark = pytest.mark.forms("mdev-pf", "mdev-vf")
FOUR, EIGHT, TWENTY, FORTY = "nvidia-468", "nvidia-470", "nvidia-472", "nvidia-473"


@pytest.fixture
def function(site: Site) -> Iterator[str]:
    """A PCI function that supports mdevs; the fixture removes every mdev afterwards."""
    yield functions(site)[0]
    for device in devices(site):
        site.remove(device)


def functions(site: Site) -> tuple[str, ...]:
    return (site.gpu,) if site.form == "mdev-pf" else site.vfs


def devices(site: Site) -> tuple[str, ...]:
    try:
        return site.ports.sysfs.listdir(MDEV)
    except FileNotFoundError:
        return ()


def create(site: Site, function: str, type_id: str, device: str) -> int | None:
    return site.refused(site.mdev_file(function, type_id, "create"), f"{device}\n")


def available(site: Site, function: str, type_id: str) -> int:
    return int(site.ports.sysfs.read(site.mdev_file(function, type_id, "available_instances")))


def test_types_have_names_descriptions_and_an_api(site: Site, function: str) -> None:
    assert set(site.ports.sysfs.listdir(f"{PCI}/{function}/mdev_supported_types")) >= {FOUR, EIGHT, FORTY}
    assert site.ports.sysfs.read(site.mdev_file(function, FOUR, "name")) == "GRID A100-4C\n"
    assert "framebuffer=4096M" in site.ports.sysfs.read(site.mdev_file(function, FOUR, "description"))
    assert site.ports.sysfs.read(site.mdev_file(function, FOUR, "device_api")) == "vfio-pci\n"


def test_a_new_device_links_to_its_parent_and_type(site: Site, function: str) -> None:
    device = new_uuid()
    assert create(site, function, FOUR, device) is None
    assert site.ports.sysfs.readlink(f"{MDEV}/{device}").split("/")[-2] == function
    assert site.ports.sysfs.readlink(f"{MDEV}/{device}/mdev_type").rpartition("/")[2] == FOUR
    site.remove(device)
    assert device not in devices(site)


@pytest.mark.parametrize("text", ["", "not-a-uuid", "00000000-0000-0000-0000-00000000000"])
def test_an_invalid_uuid_is_einval(site: Site, function: str, text: str) -> None:
    assert create(site, function, FOUR, text) == errno.EINVAL


def test_a_second_mdev_with_the_same_uuid_is_eexist(site: Site, function: str) -> None:
    device = new_uuid()
    assert create(site, function, FOUR, device) is None
    assert create(site, functions(site)[-1], FOUR, device) == errno.EEXIST


def test_another_size_is_eio_and_its_available_instances_is_0(site: Site, function: str) -> None:
    assert create(site, function, FOUR, new_uuid()) is None
    other = functions(site)[-1]
    assert available(site, other, EIGHT) == 0
    assert create(site, other, EIGHT, new_uuid()) == errno.EIO


def test_a_full_card_is_eio(site: Site, function: str) -> None:
    parents = (functions(site) * 3)[:3]
    for index in range(2):
        assert create(site, parents[index], TWENTY, new_uuid()) is None
    assert available(site, parents[2], TWENTY) == 0
    assert create(site, parents[2], TWENTY, new_uuid()) == errno.EIO


@pytest.mark.forms("mdev-vf")
def test_a_vf_holds_one_mdev(site: Site, function: str) -> None:
    assert available(site, function, FOUR) == 1
    assert create(site, function, FOUR, new_uuid()) is None
    assert [available(site, function, t) for t in (FOUR, EIGHT, FORTY)] == [0, 0, 0]
    assert available(site, site.vfs[1], FOUR) == 1
    assert create(site, function, FOUR, new_uuid()) == errno.EIO


@pytest.mark.forms("mdev-pf")
def test_available_instances_of_a_card_count_down(site: Site, function: str) -> None:
    assert [available(site, function, t) for t in (FOUR, EIGHT, FORTY)] == [10, 5, 1]
    assert create(site, function, FOUR, new_uuid()) is None
    assert [available(site, function, t) for t in (FOUR, EIGHT, FORTY)] == [9, 0, 0]


def test_removing_a_missing_mdev_is_enoent(site: Site) -> None:
    with pytest.raises(FileNotFoundError):
        site.remove(new_uuid())


@pytest.mark.forms("mdev-pf")
@pytest.mark.parametrize("other", [None, "vfio-pci"])
def test_a_parent_without_its_own_driver_offers_no_types(site: Site, other: str | None) -> None:
    bus, write = "/sys/bus/pci/drivers", site.ports.sysfs.write
    driver = site.ports.sysfs.readlink(f"{PCI}/{site.gpu}/driver").rpartition("/")[2]
    write(f"{PCI}/{site.gpu}/driver_override", f"{other or driver}\n")
    write(f"{bus}/{driver}/unbind", f"{site.gpu}\n")
    if other is not None:
        write("/sys/bus/pci/drivers_probe", f"{site.gpu}\n")
    entries = site.ports.sysfs.listdir(f"{PCI}/{site.gpu}")
    if other is not None:
        write(f"{bus}/{other}/unbind", f"{site.gpu}\n")
    write(f"{PCI}/{site.gpu}/driver_override", "\n")
    write(f"{bus}/{driver}/bind", f"{site.gpu}\n")
    assert "mdev_supported_types" not in entries
    assert ("driver" in entries) is (other is not None)
    assert "mdev_supported_types" in site.ports.sysfs.listdir(f"{PCI}/{site.gpu}")
