# SPDX-License-Identifier: Apache-2.0
"""The simulated guest: reboots are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.sim.hosts import domain_xml, uuid
from vgpuctl.errors import LibvirtFailed
from vgpuctl.model.port_values import RebootOutcome
from vgpuctl.sim import SimHost, open_host

SCENARIO = "version: 1\ngpus: []\nfaults:\n  - {on: reboot, match: deaf, kind: lost}\n"
SERIAL = "<console type='pty'><target type='serial' port='0'/></console>"


def opened(directory: Path, name: str = "vm", devices: str = SERIAL) -> SimHost:
    (directory / "host.yaml").write_text(SCENARIO)
    host = open_host(str(directory / "host.yaml"), state_dir=directory / "state")
    if host.hypervisor.find_domain(uuid(1)) is None:
        host.hypervisor.define(domain_xml(name, 1, devices))
        host.hypervisor.start(uuid(1))
    return host


def code(caught: pytest.ExceptionInfo[LibvirtFailed]) -> object:
    return caught.value.facts["libvirt_code"]


@pytest.mark.parametrize("call", ["reboot", "reset"])
def test_a_reboot_is_seen_by_who_watches_also_after_a_compaction(tmp_path: Path, call: str) -> None:
    host = opened(tmp_path)
    for _ in range(2):
        with host.hypervisor.watch_reboot(uuid(1)) as reboot:
            assert reboot.wait(0) is RebootOutcome.UNKNOWN
            getattr(opened(tmp_path).hypervisor, call)(uuid(1))
            assert reboot.wait(0) is RebootOutcome.REBOOTED
    assert host._core.read_state().running[uuid(1)].resets == 2
    replayed = type(host._core.state)(host._core.machine)
    replayed.apply(host._core.state.records())
    assert replayed.running[uuid(1)].resets == 2


def test_a_guest_may_ignore_it_or_go_off(tmp_path: Path) -> None:
    host = opened(tmp_path, "deaf")
    with host.hypervisor.watch_reboot(uuid(1)) as reboot:
        host.hypervisor.reboot(uuid(1))
        assert reboot.wait(0) is RebootOutcome.UNKNOWN
        host.hypervisor.destroy(uuid(1))
        assert reboot.wait(0) is RebootOutcome.OFF
    for call in (host.hypervisor.reboot, host.hypervisor.reset):
        with pytest.raises(LibvirtFailed) as caught:
            call(uuid(1))
        assert code(caught) == 55
