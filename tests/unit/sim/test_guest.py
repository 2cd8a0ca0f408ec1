# SPDX-License-Identifier: Apache-2.0
"""The simulated guest and what its running domain shows."""

from __future__ import annotations

from tests.unit.sim.hosts import MakeHost, domain_xml, libvirt_refused, run_vm, uuid

SCENARIO = """images: [{path: /i.qcow2, size_gib: 1, firmware: both}]
gpus: [{model: A100}]
"""
CARD = "<interface type='network'><mac address='52:54:00:00:00:01'/><source network='default'/></interface>"
DISK = "<disk type='file' device='disk'><source file='/i.qcow2'/><target dev='vda'/></disk>"


def test_only_a_guest_that_boots_a_system_gets_a_lease(make: MakeHost) -> None:
    host = make(SCENARIO)
    boots = run_vm(host, "boots", 1, CARD, DISK)
    idle = run_vm(host, "idle", 2, CARD)
    (leased,) = host.hypervisor.guest_addresses(boots, "lease") or ()
    assert leased.mac == "52:54:00:00:00:01"
    assert host.hypervisor.guest_addresses(boots, "lease") == (leased,)
    assert host.hypervisor.guest_addresses(idle, "lease") == ()
    assert host.hypervisor.guest_addresses(boots, "arp") == ()
    assert host.hypervisor.guest_addresses(boots, "agent") is None


def test_a_domain_that_is_off_has_no_addresses_to_ask_for(make: MakeHost) -> None:
    host = make(SCENARIO)
    made = host.hypervisor.define(domain_xml("off", 3, CARD))
    libvirt_refused(55, lambda: host.hypervisor.guest_addresses(made.uuid, "lease"))
    libvirt_refused(42, lambda: host.hypervisor.guest_addresses(uuid(9), "lease"))


def test_ports_differ_and_the_config_keeps_none(make: MakeHost) -> None:
    host = make(SCENARIO)
    screen = "<graphics type='vnc' port='-1' autoport='yes'/><console type='pty'><target type='serial'/></console>"
    for number in (1, 2):
        run_vm(host, f"vm{number}", number, screen)
    one, two = host.hypervisor.domains()
    assert one.live_xml is not None
    assert two.live_xml is not None
    assert "port='5900'" in one.live_xml
    assert "port='5901'" in two.live_xml
    assert "tty='/dev/pts/1'" in two.live_xml
    assert "port='-1'" in two.xml
    assert "tty=" not in two.xml


def test_a_password_is_hidden(make: MakeHost) -> None:
    host = make(SCENARIO)
    vm = run_vm(host, "vm", 1, "<graphics type='vnc' port='-1' autoport='yes' passwd='s3cret'/>")
    record = host.hypervisor.find_domain(vm)
    assert record is not None
    assert "s3cret" not in record.xml + (record.live_xml or "")
    assert host.hypervisor.password_protected_graphics(vm) == {"vnc"}
