# SPDX-License-Identifier: Apache-2.0
"""Turning plain VFs on and off as set-mode does: the same steps on the simulator and on a real kernel."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.contract.site import PCI, Site
from vgpuctl.layout.sriov import SetVfs, number_of, refusal, vfs_of

pytestmark = pytest.mark.forms("sriov-vf")


@pytest.fixture
def card(site: Site) -> Iterator[Site]:
    """A card without VFs, which has none afterwards either."""
    assert number_of(site.world, site.gpu) == 0
    yield site
    if number_of(site.world, site.gpu):
        site.world.sysfs.write_parked(f"{PCI}/{site.gpu}/sriov_numvfs", "0\n", gpu=site.gpu, deadline_seconds=30)


def test_vfs_go_on_change_their_number_and_go_off_again(card: Site) -> None:
    for number, before in ((3, 0), (2, 3), (0, 2)):
        step = SetVfs(card.gpu, number, before, autoprobe=True)
        step.perform(card.world)
        step.verify(card.world)
        assert number_of(card.world, card.gpu) == number
        assert vfs_of(card.world, card.gpu) == card.vfs


def test_no_host_driver_takes_them(card: Site) -> None:
    SetVfs(card.gpu, 2, 0, autoprobe=True).perform(card.world)
    for vf in card.vfs:
        assert "driver" not in card.world.sysfs.listdir(f"{PCI}/{vf}")


def test_undo_leaves_the_card_as_it_was(card: Site) -> None:
    step = SetVfs(card.gpu, 2, 0, autoprobe=True)
    step.perform(card.world)
    step.undo(card.world)
    assert number_of(card.world, card.gpu) == 0
    assert card.world.sysfs.read(f"{PCI}/{card.gpu}/sriov_drivers_autoprobe") == "1\n"


def test_the_vf_of_a_number_has_the_same_address_each_time(card: Site) -> None:
    SetVfs(card.gpu, 3, 0, autoprobe=True).perform(card.world)
    three = card.vfs
    SetVfs(card.gpu, 2, 3, autoprobe=True).perform(card.world)
    assert card.vfs == three[:2]


def test_too_many_are_refused_as_such(card: Site) -> None:
    total = int(card.world.sysfs.read(f"{PCI}/{card.gpu}/sriov_totalvfs"))
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the errno below says which
        SetVfs(card.gpu, total + 1, 0, autoprobe=True).perform(card.world)
    assert getattr(raised.value, "facts")["errno"] == errno.ERANGE  # noqa: B009
    assert type(raised.value) is type(refusal(OSError(errno.ERANGE, ""), "", 0, "", None))
