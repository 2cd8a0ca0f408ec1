# SPDX-License-Identifier: Apache-2.0
"""A definition is repeated when libvirt could not read its own schema, and only then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import libvirt
import pytest

from vgpuctl.errors import HostCannot, LibvirtFailed
from vgpuctl.host.processes import HostClock
from vgpuctl.host.virt.connection import LibvirtConnection
from vgpuctl.host.virt.domain_changes import (
    DEFINE_ATTEMPTS,
    LibvirtDeviceRemoval,
    LibvirtReboot,
    define_with_schema,
)
from vgpuctl.host.virt.domains import LibvirtHypervisor
from vgpuctl.model.port_values import DetachOutcome, RebootOutcome

SCHEMA = (
    "cannot define VM vm-1: internal error: Unable to parse RelaxNG schema '/usr/share/libvirt/schemas/domain.rng': "
    "Error type 'string' is not exported by type library 'http://www.w3.org/2001/XMLSchema-datatypes'"
)
"""What libvirt 9.0 answered to some of six definitions at once, right after its start."""


def answers(*messages: str | None) -> tuple[Callable[[], str], list[str | None]]:
    """Return a definition that fails with these messages in turn, None is success; and those that are left."""
    left = list(messages)

    def define() -> str:
        message = left.pop(0)
        if message is not None:
            raise LibvirtFailed(message)
        return "defined"

    return define, left


def test_it_is_repeated_until_the_schema_is_read() -> None:
    define, left = answers(*[SCHEMA] * (DEFINE_ATTEMPTS - 1), None)
    assert (define_with_schema(define), left) == ("defined", [])


def test_at_last_the_error_is_reported() -> None:
    define, left = answers(*[SCHEMA] * DEFINE_ATTEMPTS, None)
    with pytest.raises(LibvirtFailed, match="Unable to parse RelaxNG schema"):
        define_with_schema(define)
    assert left == [None]


def test_another_error_is_reported_at_once() -> None:
    define, left = answers("operation failed: domain 'vm-1' already exists", None)
    with pytest.raises(LibvirtFailed, match="already exists"):
        define_with_schema(define)
    assert left == [None]


SHARED = "test:///default"
LONG = 30.0


class CountedClock:
    """A clock that stands still, and counts how often the time is read."""

    asked = 0

    def monotonic(self) -> float:
        self.asked += 1
        assert self.asked < 10, "the wait goes on"
        return 0.0


@pytest.fixture
def uuid() -> Iterator[str]:
    """The domain that all connections of this process to the test driver share; running before and after."""
    connect = libvirt.open(SHARED)
    domain = connect.lookupByName("test")
    yield domain.UUIDString()
    if not domain.isActive():
        domain.create()
    connect.close()


def hypervisor(locked: bool = False) -> LibvirtHypervisor:
    """The real hypervisor port on the test driver, with a running clock."""
    return LibvirtHypervisor(LibvirtConnection(SHARED, lambda: locked), HostClock())


def heard() -> LibvirtDeviceRemoval:
    """A device removal whose event loop does not run."""
    return LibvirtDeviceRemoval("ua-x", HostClock(), lambda: False)


def test_the_event_of_this_alias_ends_the_waiting_and_the_first_word_counts() -> None:
    removal = heard()
    removal.on_device_removed(None, None, "ua-other", None)
    removal.on_removal_failed(None, None, "ua-other", None)
    assert removal.wait(0) is DetachOutcome.UNKNOWN
    removal.on_removal_failed(None, None, "ua-x", None)
    removal.on_device_removed(None, None, "ua-x", None)
    assert removal.wait(LONG) is DetachOutcome.REFUSED


def test_an_event_from_another_thread_is_heard_before_the_deadline() -> None:
    removal = heard()
    threading.Timer(0.05, removal.on_device_removed, (None, None, "ua-x", None)).start()
    assert removal.wait(LONG) is DetachOutcome.REMOVED


def test_a_libvirt_that_went_away_is_not_waited_for() -> None:
    clock = CountedClock()
    assert LibvirtDeviceRemoval("ua-x", clock, lambda: True).wait(LONG) is DetachOutcome.UNKNOWN
    assert clock.asked == 2


def test_a_domain_that_stops_has_no_device_any_more(uuid: str) -> None:
    host = hypervisor()
    with host.watch_device_removal(uuid, "ua-x") as removal:
        host.destroy(uuid)
        assert removal.wait(LONG) is DetachOutcome.REMOVED
    assert [t.daemon for t in threading.enumerate() if t.name == "libvirt-events"] == [True]


def test_no_event_ends_at_the_deadline_and_earlier_events_do_not_count(uuid: str) -> None:
    host = hypervisor()
    host.destroy(uuid)
    host.start(uuid)
    with host.watch_device_removal(uuid, "ua-x") as removal:
        assert removal.wait(0.05) is DetachOutcome.UNKNOWN


def test_it_is_heard_again_and_again(uuid: str) -> None:
    host = hypervisor()
    for _ in range(3):
        with host.watch_device_removal(uuid, "ua-x") as removal:
            host.destroy(uuid)
            assert removal.wait(LONG) is DetachOutcome.REMOVED
        host.start(uuid)


def test_a_reboot_is_an_event_and_going_off_is_another() -> None:
    rebooted, off = (LibvirtReboot(HostClock(), lambda: False) for _ in range(2))
    assert rebooted.wait(0) is RebootOutcome.UNKNOWN
    rebooted.on_lifecycle_event(None, None, 4, 0, None)  # VIR_DOMAIN_EVENT_RESUMED
    rebooted.on_reboot(None, None, None)
    rebooted.on_lifecycle_event(None, None, 5, 0, None)
    off.on_lifecycle_event(None, None, 5, 0, None)
    assert (rebooted.wait(LONG), off.wait(LONG)) == (RebootOutcome.REBOOTED, RebootOutcome.OFF)


def test_a_domain_that_goes_off_instead_of_rebooting_is_heard(uuid: str) -> None:
    host = hypervisor()
    with host.watch_reboot(uuid) as reboot:
        assert reboot.wait(0) is RebootOutcome.UNKNOWN
        host.destroy(uuid)
        assert reboot.wait(LONG) is RebootOutcome.OFF
    for call in (host.reboot, host.reset):
        with pytest.raises(LibvirtFailed) as caught:
            call(uuid)
        assert caught.value.facts["libvirt_code"] in (3, 55)


def test_errors_are_raised_as_usual(uuid: str) -> None:
    nobody = "00000000-0000-4000-8000-00000000000f"
    with pytest.raises(LibvirtFailed) as caught, hypervisor().watch_device_removal(nobody, "ua-x"):
        pass
    assert caught.value.facts["libvirt_code"] == 42
    with pytest.raises(AssertionError), hypervisor(locked=True).watch_device_removal(uuid, "ua-x"):
        pass
    gone = LibvirtHypervisor(LibvirtConnection("qemu+unix:///system?socket=/nonexistent", lambda: False), HostClock())
    with pytest.raises(HostCannot), gone.watch_device_removal(uuid, "ua-x"):
        pass
