# SPDX-License-Identifier: Apache-2.0
"""The steps of set-mode that turn plain VFs on and off, on the simulator and on a real kernel."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.contract.site import PCI, Site
from vgpuctl.gpu_setup.sriov import SetVfs, count_vfs, list_vfs
from vgpuctl.gpu_setup.sriov_errors import numvfs_error

pytestmark = pytest.mark.forms("sriov-vf")


@pytest.fixture
def card(site: Site) -> Iterator[Site]:
    """A card without VFs; the fixture turns off all VFs afterwards."""
    assert count_vfs(site.ports, site.gpu) == 0
    yield site
    if count_vfs(site.ports, site.gpu):
        site.ports.sysfs.write_uninterruptible(
            f"{PCI}/{site.gpu}/sriov_numvfs", "0\n", gpu=site.gpu, deadline_seconds=30
        )


def test_vfs_are_turned_on_changed_in_number_and_turned_off(card: Site) -> None:
    for number, before in ((3, 0), (2, 3), (0, 2)):
        step = SetVfs(card.gpu, number, before, autoprobe=True)
        step.perform(card.ports)
        step.verify(card.ports)
        assert count_vfs(card.ports, card.gpu) == number
        assert list_vfs(card.ports, card.gpu) == card.vfs


def test_no_host_driver_binds_to_the_vfs(card: Site) -> None:
    SetVfs(card.gpu, 2, 0, autoprobe=True).perform(card.ports)
    for vf in card.vfs:
        assert "driver" not in card.ports.sysfs.listdir(f"{PCI}/{vf}")


def test_undo_restores_the_card(card: Site) -> None:
    step = SetVfs(card.gpu, 2, 0, autoprobe=True)
    step.perform(card.ports)
    step.undo(card.ports)
    assert count_vfs(card.ports, card.gpu) == 0
    assert card.ports.sysfs.read(f"{PCI}/{card.gpu}/sriov_drivers_autoprobe") == "1\n"


def test_a_vf_with_a_given_number_always_has_the_same_address(card: Site) -> None:
    SetVfs(card.gpu, 3, 0, autoprobe=True).perform(card.ports)
    three = card.vfs
    SetVfs(card.gpu, 2, 3, autoprobe=True).perform(card.ports)
    assert card.vfs == three[:2]


def test_too_many_vfs_are_refused_with_erange(card: Site) -> None:
    total = int(card.ports.sysfs.read(f"{PCI}/{card.gpu}/sriov_totalvfs"))
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the errno below says which
        SetVfs(card.gpu, total + 1, 0, autoprobe=True).perform(card.ports)
    assert getattr(raised.value, "facts")["errno"] == errno.ERANGE  # noqa: B009
    assert type(raised.value) is type(numvfs_error(OSError(errno.ERANGE, ""), "", 0, "", None))
