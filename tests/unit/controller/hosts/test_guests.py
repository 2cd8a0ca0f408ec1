# SPDX-License-Identifier: Apache-2.0
"""What is asked of a guest again: what it answered once holds for one boot."""

from __future__ import annotations

import pytest

from tests.hosts import create, open_sim_host, request
from tests.meanwhile import with_calls
from tests.unit.controller.planning.fleets import desktop_of, pool_of, ready_report
from vgpuctl.controller.hosts.guests import ask_guest
from vgpuctl.controller.model import ReadyWhen
from vgpuctl.controller.planning.host_look import HostVm
from vgpuctl.library import GpuHost
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.model.outcome import CallSettings
from vgpuctl.value import replace

READY = replace(ready_report(), running_since=1.0)
MARK = DesktopMark("id-1", "desk", "db-1", READY.generation)


@pytest.mark.parametrize(
    ("former", "mark", "image", "asks"),
    [
        ({}, {}, READY.image, False),
        ({}, {"generation": 9, "user": "ada", "dirty": True}, READY.image, False),
        ({"dirty": True, "user": "ada"}, {"generation": 9}, READY.image, True),
        ({"image": "/old.qcow2"}, {}, "/new.qcow2", True),
        ({"ready": False}, {}, READY.image, True),
        ({"running_since": None}, {}, READY.image, True),
    ],
    ids=["nothing changed", "given to a user", "refreshed after a user", "refreshed from an image", "not yet", "off"],
)
def test_a_refresh_that_no_look_saw_is_another_boot(former, mark, image, asks):
    pool = pool_of(ready_when=ReadyWhen.GUEST)
    vm = HostVm("d-001", "id-1", "running", 3, replace(MARK, **mark), image)
    question = ask_guest(desktop_of(report=replace(READY, **former)), pool, vm)
    assert (question.needs_guest, question.vm.guest_answers, question.vm.port_open) == (asks, not asks, not asks)


class _Link:
    """A link to a host of this process."""

    def __init__(self, host: GpuHost) -> None:
        self._host = host

    def host(self) -> GpuHost:
        return self._host


@pytest.mark.parametrize(
    ("spec", "of_hosts", "knows"),
    [
        ({}, False, True),
        ({"addresses": ("192.168.122.0/24",)}, False, True),
        ({"addresses": ("10.0.0.0/8",)}, False, False),
        ({}, True, False),
    ],
    ids=["seen by its host", "in the pool's ranges", "not in them", "a host's own"],
)
def test_an_address_is_the_hosts_word(tmp_path, spec, of_hosts, knows):
    ports = open_sim_host(tmp_path, "a100-40").ports
    vm = create(ports, request("A100-4C", name="office-001", image="/srv/images/ubuntu-24.04.qcow2")).data
    (lease,) = ports.hypervisor.guest_addresses(vm.uuid, "lease")
    lie, genuine = replace(lease, address="203.0.113.66", mac=lease.mac), ports.hypervisor.guest_addresses
    lying = with_calls(ports, "hypervisor", guest_addresses=lambda u, s: (lie,) if s == "agent" else genuine(u, s))
    seen = HostVm("office-001", vm.uuid, "running", 1, replace(MARK, user="ada"), None)
    question = ask_guest(desktop_of(id=vm.uuid, user="ada"), pool_of(**spec), seen)
    assert question.needs_address
    answered = question.answered(
        _Link(GpuHost(lying, CallSettings())), frozenset({lease.address}) if of_hosts else frozenset()
    )
    assert answered.address == (lease.address if knows else None)
    named = ask_guest(desktop_of(name="office-001", user="ada"), pool_of(dns_name="{name}.vdi.example.org"), seen)
    assert (named.vm.address, named.needs_address) == ("office-001.vdi.example.org", False)
    assert (answered.address_problem is None) is knows


@pytest.mark.parametrize(
    ("known", "spec", "mark", "kept"),
    [
        ("10.20.0.7", {}, {}, True),
        ("10.20.0.7", {"addresses": ("10.20.0.0/16",)}, {}, True),
        ("10.20.0.7", {"addresses": ("10.21.0.0/16",)}, {}, False),
        ("office-001.vdi.example.org", {}, {}, False),
        ("10.20.0.7", {}, {"dirty": False}, False),
    ],
    ids=["nothing changed", "in the ranges", "the ranges changed", "the DNS is used no more", "refreshed unseen"],
)
def test_a_known_address_holds_while_it_is_right_and_is_asked_for_again(known, spec, mark, kept):
    former = replace(READY, address=known, dirty=True, user="ada")
    vm = HostVm("d-001", "id-1", "running", 3, replace(MARK, **{"user": "ada", "dirty": True, **mark}), READY.image)
    question = ask_guest(desktop_of(user="ada", report=former), pool_of(**spec), vm)
    assert (question.vm.address, question.needs_address) == (known if kept else None, not kept)
    assert question.checks_address is kept
