# SPDX-License-Identifier: Apache-2.0
"""console and address: what they report for a VM that runs, is off, boots nothing, or does not exist."""

from __future__ import annotations

import pytest

from tests.hosts import context, create, open_sim_host, request
from tests.meanwhile import with_calls
from vgpuctl.errors import Busy, HostCannot, NotFound, Refused
from vgpuctl.model.port_values import GuestAddress
from vgpuctl.operations.guest import read_addresses, read_console, select_reachable
from vgpuctl.operations.power import start_vm

BASE = "/srv/images/ubuntu-24.04.qcow2"
MAC = "52:54:00:00:00:01"


def card(text, mac=MAC, interface="eth0"):
    return GuestAddress(text, 24, mac, interface)


def test_a_running_vm_has_a_port_on_this_host_and_a_console_line(ports):
    create(ports, request("A100-4C", name="vm"))
    answer = read_console(ports, context(), "vm")
    (screen,), (serial,) = answer.data.graphics, answer.data.serial
    assert (screen.type, screen.listen, screen.password) == ("vnc", "127.0.0.1", False)
    assert screen.port >= 5900
    assert serial.command == ("virsh", "-c", "qemu:///system", "console", "vm")
    assert answer.warnings == ()
    create(ports, request("A100-4C", name="other"))
    assert read_console(ports, context(), "other").data.graphics != answer.data.graphics


def test_a_vm_that_is_off_has_no_port_and_no_address(ports):
    create(ports, request("A100-4C", name="vm", image=BASE), start=False)
    answer = read_console(ports, context(), "vm")
    assert [s.port for s in answer.data.graphics] == [None]
    assert [s.terminal for s in answer.data.serial] == [None]
    assert answer.warnings == ("vm is stopped: ports and terminals are assigned when it starts",)
    with pytest.raises(Refused, match="vm is stopped"):
        read_addresses(ports, context(), "vm")


@pytest.mark.parametrize("observed", [read_console, read_addresses])
def test_a_vm_that_is_not_there_is_answered_with_near_names(ports, observed):
    create(ports, request("A100-4C", name="vdi-001"))
    with pytest.raises(NotFound, match="there is no VM vdi-01") as raised:
        observed(ports, context(), "vdi-01")
    assert raised.value.facts["near"] == ["vdi-001"]


@pytest.mark.parametrize("act", [read_console, read_addresses, start_vm])
def test_without_libvirt_the_host_cannot_and_no_vm_is_called_missing(tmp_path, act):
    text = "version: 1\nlibvirt: {running: false}\ngpus: [{model: A100}]\n"
    where = " at qemu:///system" if act is start_vm else ""
    with pytest.raises(HostCannot, match=f"libvirt does not answer{where}: Failed to connect socket") as raised:
        act(open_sim_host(tmp_path, text=text).ports, context(), "vm")
    assert raised.value.facts["check"] == "libvirt"


def test_a_guest_that_booted_a_system_has_a_lease(ports):
    create(ports, request("A100-4C", name="vm", image=BASE))
    data = read_addresses(ports, context(), "vm").data
    (known,) = data.addresses
    assert (data.source, known.family, known.prefix) == ("lease", "ipv4", 24)
    assert known.address.startswith("192.168.122.")


def test_a_guest_that_boots_nothing_has_no_address_yet(ports):
    create(ports, request("A100-4C", name="vm"))
    with pytest.raises(Busy, match="the guest agent does not answer, DHCP knows none, ARP knows none") as caught:
        read_addresses(ports, context(), "vm")
    assert caught.value.status == 75
    assert caught.value.facts["silent"] == ["agent"]


@pytest.mark.parametrize(
    ("answers", "source", "asked"),
    [
        ({"agent": (card("10.0.0.5"),), "lease": (card("10.0.0.6"),)}, "agent", ["agent"]),
        ({"agent": (card("127.0.0.1"), card("fe80::1")), "lease": (card("10.0.0.6"),)}, "lease", ["agent", "lease"]),
        ({"agent": None, "lease": (), "arp": (card("10.0.0.7"),)}, "arp", ["agent", "lease", "arp"]),
    ],
)
def test_the_first_source_that_knows_a_useful_address_answers(ports, answers, source, asked):
    create(ports, request("A100-4C", name="vm"))
    seen = []

    def guest_addresses(uuid, source):
        seen.append(source)
        return answers.get(source)

    ports = with_calls(ports, "hypervisor", guest_addresses=guest_addresses)
    assert read_addresses(ports, context(), "vm").data.source == source
    assert seen == asked


DOCKER = card("172.17.0.1", "02:42:00:00:00:01", "docker0")
PASSED_THROUGH = card("10.9.0.1", "aa:bb:cc:00:00:01", "ens9")
FOUR, SIX = card("10.0.0.5"), card("2001:db8::5")


@pytest.mark.parametrize(
    ("reported", "useful"),
    [
        pytest.param((DOCKER, SIX, FOUR), (FOUR, SIX), id="ipv4 first, without a bridge inside the guest"),
        pytest.param((PASSED_THROUGH,), (PASSED_THROUGH,), id="a card that nobody gave the guest is better than none"),
        pytest.param((card("not an address"), card(""), FOUR), (FOUR,), id="what is no address is left out"),
    ],
)
def test_the_useful_addresses_of_a_guest(reported, useful):
    assert select_reachable(reported, frozenset({MAC})) == useful
