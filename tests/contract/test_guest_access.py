# SPDX-License-Identifier: Apache-2.0
"""Reboots and the serial console, for domains without an operating system."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.contract.site import Site, new_uuid
from tests.contract.test_libvirt import DOMAIN
from vgpuctl.errors import LibvirtFailed
from vgpuctl.model.port_values import RebootOutcome
from vgpuctl.ports.libvirt import ConsoleStream

pytestmark = pytest.mark.forms("mdev-pf")
CONSOLE = "<serial type='pty'><target type='isa-serial' port='0'/></serial>"
CONSOLE += "<console type='pty'><target type='serial' port='0'/></console>"
EVENT_SECONDS = 30.0


def running(site: Site, devices: str) -> str:
    uuid = new_uuid()
    site.ports.hypervisor.define(DOMAIN.format(name=f"access-{uuid[:8]}", uuid=uuid, devices=devices, cpu=""))
    site.ports.hypervisor.start(uuid)
    return uuid


@pytest.fixture
def uuid(site: Site) -> Iterator[str]:
    """A running domain with a serial console; the fixture removes it afterwards."""
    made = running(site, CONSOLE)
    yield made
    site.ports.hypervisor.destroy(made)
    site.ports.hypervisor.undefine(made)


def code(caught: pytest.ExceptionInfo[LibvirtFailed]) -> object:
    return caught.value.facts["libvirt_code"]


def received(console: ConsoleStream) -> bytes | None:
    """Receive until the console ends, or for some seconds; return the last answer."""
    deadline = time.monotonic() + EVENT_SECONDS
    while (data := console.receive()) is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    return data


def test_a_reset_is_reported_and_the_domain_runs_on(site: Site, uuid: str) -> None:
    before = site.ports.hypervisor.find_domain(uuid)
    with site.ports.hypervisor.watch_reboot(uuid) as reboot:
        site.ports.hypervisor.reset(uuid)
        assert reboot.wait(EVENT_SECONDS) is RebootOutcome.REBOOTED
    after = site.ports.hypervisor.find_domain(uuid)
    assert before is not None
    assert after is not None
    assert (after.state, after.live_xml) == (before.state, before.live_xml)


def test_without_a_reset_nothing_is_reported_and_an_end_is(site: Site, uuid: str) -> None:
    with site.ports.hypervisor.watch_reboot(uuid) as reboot:
        assert reboot.wait(0.1) is RebootOutcome.UNKNOWN
        site.ports.hypervisor.destroy(uuid)
        assert reboot.wait(EVENT_SECONDS) is RebootOutcome.OFF


def test_a_domain_that_is_off_is_error_55_and_an_unknown_one_42(site: Site, uuid: str) -> None:
    hypervisor = site.ports.hypervisor
    hypervisor.destroy(uuid)
    for number, target in ((55, uuid), (42, new_uuid())):
        for call in (hypervisor.reboot, hypervisor.reset):
            with pytest.raises(LibvirtFailed) as caught:
                call(target)
            assert code(caught) == number
        with pytest.raises(LibvirtFailed) as caught, hypervisor.open_console(target, force=False):
            pass
        assert code(caught) == number
    with pytest.raises(LibvirtFailed) as caught, hypervisor.watch_reboot(new_uuid()):
        pass
    assert code(caught) == 42


def test_a_domain_without_a_serial_port_has_no_console(site: Site) -> None:
    made = running(site, "")
    try:
        with pytest.raises(LibvirtFailed) as caught, site.ports.hypervisor.open_console(made, force=False):
            pass
        assert code(caught) == 1
    finally:
        site.ports.hypervisor.destroy(made)
        site.ports.hypervisor.undefine(made)


def test_one_session_at_a_time_has_the_console(site: Site, uuid: str) -> None:
    hypervisor = site.ports.hypervisor
    with hypervisor.open_console(uuid, force=False) as first:
        assert first.send(b"x") == 0
        assert first.receive() is not None
        with pytest.raises(LibvirtFailed) as caught, hypervisor.open_console(uuid, force=False):
            pass
        assert code(caught) == 9
        with hypervisor.open_console(uuid, force=True) as second:
            assert received(first) is None
            assert second.receive() is not None
    with hypervisor.open_console(uuid, force=False) as third:
        assert third.receive() is not None


def test_a_console_ends_with_its_domain(site: Site, uuid: str) -> None:
    with site.ports.hypervisor.open_console(uuid, force=False) as console:
        assert console.receive() is not None
        site.ports.hypervisor.destroy(uuid)
        assert received(console) is None
