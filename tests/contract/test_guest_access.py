# SPDX-License-Identifier: Apache-2.0
"""Reboots of domains without an operating system."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.site import Site, libvirt_refuses, new_uuid
from tests.contract.test_libvirt import DOMAIN
from vgpuctl.model.port_values import RebootOutcome

pytestmark = pytest.mark.forms("mdev-pf")
EVENT_SECONDS = 30.0


@pytest.fixture
def uuid(site: Site) -> Iterator[str]:
    """A running domain; the fixture removes it afterwards."""
    made = new_uuid()
    site.ports.hypervisor.define(DOMAIN.format(name=f"access-{made[:8]}", uuid=made, devices="", cpu=""))
    site.ports.hypervisor.start(made)
    yield made
    site.ports.hypervisor.destroy(made)
    site.ports.hypervisor.undefine(made)


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
            with libvirt_refuses(number):
                call(target)
    with libvirt_refuses(42), hypervisor.watch_reboot(new_uuid()):
        pass
