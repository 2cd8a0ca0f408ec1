# SPDX-License-Identifier: Apache-2.0
"""What one host alone shows of moves: paused and saved domains, their definition for a target, and refusals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.site import Site, libvirt_refuses, new_uuid
from tests.contract.test_libvirt import DOMAIN
from vgpuctl.model.migration import MigrationProgress, MigrationRequest
from vgpuctl.model.vm import VmState

pytestmark = pytest.mark.forms("vendor-vf")
SCREEN = "<graphics type='vnc' port='-1' autoport='yes' passwd='secret'/>"


@pytest.fixture
def running(site: Site) -> Iterator[str]:
    """A running domain without host devices, whose screen has a password; the fixture removes it afterwards."""
    made = new_uuid()
    site.ports.hypervisor.define(DOMAIN.format(name=f"moves-{made[:8]}", uuid=made, devices=SCREEN, cpu=""))
    site.ports.hypervisor.start(made)
    yield made
    site.ports.hypervisor.destroy(made)
    site.ports.hypervisor.undefine(made)


def ignore(progress: MigrationProgress) -> None:
    """Let it go on."""


def request(uri: str, xml: str) -> MigrationRequest:
    return MigrationRequest(target_uri=uri, live_xml=xml, config_xml=xml, tls=False)


def test_a_paused_domain_is_resumed_and_one_that_runs_stays_so(site: Site, running: str) -> None:
    site.ports.hypervisor.resume(running)
    assert site.domain(running).state is VmState.RUNNING
    site.pause(running)
    assert site.domain(running).state is VmState.PAUSED
    site.ports.hypervisor.resume(running)
    assert site.domain(running).state is VmState.RUNNING


def test_nothing_blocks_a_domain_without_host_devices_and_nothing_moves(site: Site, running: str) -> None:
    assert site.ports.hypervisor.migration_blockers(running) == ()
    assert not site.ports.hypervisor.is_migrating(running)


def test_the_definition_for_a_target_has_the_secrets_and_no_id(site: Site, running: str) -> None:
    xml = site.ports.hypervisor.migration_xml(running)
    assert running in xml
    assert "passwd='secret'" in xml
    assert "tty=" not in xml


def test_another_libvirt_says_what_it_has_stored(site: Site, running: str) -> None:
    xml = site.ports.hypervisor.definition_on(site.uri, running)
    assert xml is not None
    assert running in xml
    assert "secret" not in xml
    assert "tty=" not in xml, "it is not the running one"
    assert site.ports.hypervisor.definition_on(site.uri, new_uuid()) is None
    with libvirt_refuses(38):
        site.ports.hypervisor.definition_on(site.nowhere, running)


def test_memory_is_saved_and_the_next_start_goes_on_from_it(site: Site, running: str) -> None:
    site.ports.hypervisor.save(running, ignore)
    saved = site.domain(running)
    assert (saved.state, saved.stop_reason) == (VmState.STOPPED, "saved")
    assert site.ports.hypervisor.leftovers(running).managed_save
    site.ports.hypervisor.start(running)
    assert site.domain(running).state is VmState.RUNNING
    assert not site.ports.hypervisor.leftovers(running).managed_save


def test_a_target_that_is_not_there_leaves_the_domain_running(site: Site, running: str) -> None:
    made = request(site.nowhere, site.ports.hypervisor.migration_xml(running))
    with libvirt_refuses(38):
        site.ports.hypervisor.migrate(running, made, ignore)
    assert site.domain(running).state is VmState.RUNNING
    assert not site.ports.hypervisor.is_migrating(running)


def test_a_domain_that_is_off_moves_nowhere(site: Site, running: str) -> None:
    hypervisor = site.ports.hypervisor
    xml = hypervisor.migration_xml(running)
    hypervisor.destroy(running)
    assert not hypervisor.is_migrating(running)
    for call in (hypervisor.migration_xml, hypervisor.migration_blockers, hypervisor.resume):
        with libvirt_refuses(55):
            call(running)
    with libvirt_refuses(55):
        hypervisor.save(running, ignore)
    with libvirt_refuses(55):
        hypervisor.migrate(running, request(site.nowhere, xml), ignore)


def test_a_domain_that_is_gone(site: Site) -> None:
    hypervisor = site.ports.hypervisor
    for call in (hypervisor.migration_xml, hypervisor.migration_blockers, hypervisor.resume, hypervisor.is_migrating):
        with libvirt_refuses(42):
            call(new_uuid())
