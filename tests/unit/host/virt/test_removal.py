# SPDX-License-Identifier: Apache-2.0
"""Waiting for the end of a device by libvirt's events; the shared domain of libvirt's test driver has no devices.

That the real events come is shown in the lab; here, that each is understood, and that libvirt's loop serves them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import libvirt
import pytest

from vgpuctl.errors import HostCannot, LibvirtFailed
from vgpuctl.host.clock import HostClock
from vgpuctl.host.virt.connection import Connection
from vgpuctl.host.virt.domains import LibvirtHypervisor
from vgpuctl.host.virt.removal import Removal
from vgpuctl.model.records import Removed

SHARED = "test:///default"
LONG = 30.0


class CountedClock:
    """A clock that stands still, and counts how often somebody asks for the time."""

    asked = 0

    def monotonic(self) -> float:
        self.asked += 1
        assert self.asked < 10, "the wait goes on"
        return 0.0


@pytest.fixture
def uuid() -> Iterator[str]:
    """The domain that all connections of this process to the test driver share, running; so it is afterwards."""
    connect = libvirt.open(SHARED)
    domain = connect.lookupByName("test")
    yield domain.UUIDString()
    if not domain.isActive():
        domain.create()
    connect.close()


def hypervisor(locked: bool = False) -> LibvirtHypervisor:
    """The real half on the test driver, with a clock that goes."""
    return LibvirtHypervisor(Connection(SHARED, lambda: locked), HostClock())


def heard() -> Removal:
    """One that nobody serves."""
    return Removal("ua-x", HostClock(), lambda: False)


def test_the_event_of_this_alias_ends_the_waiting_and_the_first_word_counts() -> None:
    removal = heard()
    removal.removed(None, None, "ua-other", None)
    removal.kept(None, None, "ua-other", None)
    assert removal.wait(0) is Removed.NOT_TOLD
    removal.kept(None, None, "ua-x", None)
    removal.removed(None, None, "ua-x", None)
    assert removal.wait(LONG) is Removed.REFUSED


def test_an_event_from_another_thread_is_heard_before_the_deadline() -> None:
    removal = heard()
    threading.Timer(0.05, removal.removed, (None, None, "ua-x", None)).start()
    assert removal.wait(LONG) is Removed.GONE


def test_a_libvirt_that_went_away_is_not_waited_for() -> None:
    clock = CountedClock()
    assert Removal("ua-x", clock, lambda: True).wait(LONG) is Removed.NOT_TOLD
    assert clock.asked == 2


def test_a_domain_that_stops_has_no_device_any_more(uuid: str) -> None:
    host = hypervisor()
    with host.removal(uuid, "ua-x") as removal:
        host.destroy(uuid)
        assert removal.wait(LONG) is Removed.GONE
    assert [t.name for t in threading.enumerate() if t.name == "libvirt-events"] == []


def test_nothing_told_ends_at_the_deadline_and_what_came_before_the_block_is_not_heard(uuid: str) -> None:
    host = hypervisor()
    host.destroy(uuid)
    host.start(uuid)
    with host.removal(uuid, "ua-x") as removal:
        assert removal.wait(0.05) is Removed.NOT_TOLD


def test_it_is_heard_again_and_again(uuid: str) -> None:
    host = hypervisor()
    for _ in range(3):
        with host.removal(uuid, "ua-x") as removal:
            host.destroy(uuid)
            assert removal.wait(LONG) is Removed.GONE
        host.start(uuid)


def test_errors_are_told_as_everywhere(uuid: str) -> None:
    nobody = "00000000-0000-4000-8000-00000000000f"
    with pytest.raises(LibvirtFailed) as caught, hypervisor().removal(nobody, "ua-x"):
        pass
    assert caught.value.facts["libvirt_code"] == 42
    with pytest.raises(AssertionError), hypervisor(locked=True).removal(uuid, "ua-x"):
        pass
    gone = LibvirtHypervisor(Connection("qemu+unix:///system?socket=/nonexistent", lambda: False), HostClock())
    with pytest.raises(HostCannot), gone.removal(uuid, "ua-x"):
        pass
