# SPDX-License-Identifier: Apache-2.0
"""The simulated libvirt: defining, metadata, the life of a domain, networks, and when it does not answer."""

from __future__ import annotations

import pytest

from tests.unit.sim.hosts import MakeHost, domain_xml, libvirt_refused, pci_device, run_vm, set_type, uuid
from vgpuctl.errors import Exists, HostCannot
from vgpuctl.model.port_values import DomainLeftovers, NetworkInfo
from vgpuctl.model.vm import VmState

RECORD = "<vgpuctl:promise xmlns:vgpuctl='urn:vgpuctl:1' state='{}'><spec>a  b\n &amp; é</spec></vgpuctl:promise>"
DISK = "<disk type='file' device='disk'><source file='{}'/><target dev='vda'/></disk>"
NETWORK = "<interface type='network'><source network='{}'/></interface>"


def test_status_and_capabilities_are_the_scenarios(make: MakeHost) -> None:
    host = make('libvirt: {version: "9.0.0", qemu: "7.2.4", uefi: false}\n')
    status = host.hypervisor.status()
    assert (status.available, status.libvirt_version, status.qemu_version) == (True, 9_000_000, 7_002_004)
    capabilities = host.hypervisor.capabilities()
    assert (capabilities.kvm, capabilities.uefi, capabilities.arch) == (True, False, "x86_64")
    assert (capabilities.secure_boot, capabilities.tpm) == (False, True)
    bare = make("libvirt: {secure_boot: false, tpm: false}\n", "bare").hypervisor.capabilities()
    assert (bare.uefi, bare.secure_boot, bare.tpm) == (True, False, False)


def test_every_call_reports_a_stopped_libvirt(make: MakeHost) -> None:
    host = make("libvirt: {running: false}\n")
    assert host.hypervisor.status().available is False
    assert "socket" in str(host.hypervisor.status().reason)
    for call in (host.hypervisor.domains, lambda: host.storage.pool("default"), host.hypervisor.capabilities):
        with pytest.raises(HostCannot) as caught:
            call()
        assert caught.value.facts["check"] == "libvirt"


def test_define_returns_what_libvirt_reads_back(make: MakeHost) -> None:
    host = make("empty")
    record = host.hypervisor.define(domain_xml("vm", 1).replace(uuid(1), uuid(1).upper()))
    assert (record.name, record.uuid, record.state, record.live_xml) == ("vm", uuid(1), VmState.STOPPED, None)
    assert f"<uuid>{uuid(1)}</uuid>" in record.xml
    assert host.hypervisor.find_domain("vm") == host.hypervisor.find_domain(uuid(1)) == record
    assert host.hypervisor.find_domain("other") is None
    assert host.hypervisor.domains() == (record,)


def test_names_and_uuids_are_unique(make: MakeHost) -> None:
    host = make("empty")
    host.hypervisor.define(domain_xml("vm", 1))
    with pytest.raises(Exists) as caught:
        host.hypervisor.define(domain_xml("vm", 2))
    assert caught.value.facts["libvirt_code"] == 9
    libvirt_refused(9, lambda: host.hypervisor.define(domain_xml("other", 1)))
    host.hypervisor.define(domain_xml("vm", 1, extra="<title>again</title>"))
    assert len(host.hypervisor.domains()) == 1


def test_xml_is_checked(make: MakeHost) -> None:
    host = make("empty")
    assert "cannot define VM" in libvirt_refused(35, lambda: host.hypervisor.define("<domain>"))
    device = pci_device("0000:3b:00.4", managed=False)
    libvirt_refused(27, lambda: host.hypervisor.define(domain_xml("vm", 1, device, device)))


def test_the_record_is_one_element_and_survives_restart(make: MakeHost) -> None:
    host = make("empty")
    host.hypervisor.define(domain_xml("vm", 1, extra="<metadata><o:x xmlns:o='urn:other'>keep</o:x></metadata>"))
    host.hypervisor.set_record(uuid(1), RECORD.format("making"))
    host.hypervisor.set_record(uuid(1), RECORD.format("ready"))
    (record,) = make("empty").hypervisor.domains()
    assert record.xml.count("urn:vgpuctl:1") == 1
    assert "state='ready'" in record.xml
    assert "a  b\n &amp; é" in record.xml
    assert ">keep<" in record.xml
    host.hypervisor.set_record(uuid(1), None)
    host.hypervisor.set_record(uuid(1), None)
    (record,) = host.hypervisor.domains()
    assert "urn:vgpuctl:1" not in record.xml
    assert ">keep<" in record.xml
    libvirt_refused(42, lambda: host.hypervisor.set_record(uuid(9), None))
    libvirt_refused(27, lambda: host.hypervisor.set_record(uuid(1), "<other/>"))
    libvirt_refused(35, lambda: host.hypervisor.set_record(uuid(1), "<other"))


def test_a_running_domain_has_the_record_in_both_xmls(make: MakeHost) -> None:
    host = make("empty")
    run_vm(host, "vm", 1)
    host.hypervisor.set_record(uuid(1), RECORD.format("ready"))
    (record,) = host.hypervisor.domains()
    assert "urn:vgpuctl:1" in record.xml
    assert "urn:vgpuctl:1" in str(record.live_xml)


def test_the_life_of_a_domain(make: MakeHost) -> None:
    host = make("empty")
    vm = run_vm(host, "vm", 1)
    (record,) = host.hypervisor.domains()
    assert record.state is VmState.RUNNING
    assert record.live_xml == record.xml.replace("<domain ", "<domain id='1' ")
    libvirt_refused(55, lambda: host.hypervisor.start(vm))
    libvirt_refused(55, lambda: host.hypervisor.undefine(vm))
    host.hypervisor.shutdown(vm)
    assert host.hypervisor.wait_stopped(vm, 5)
    libvirt_refused(55, lambda: host.hypervisor.shutdown(vm))
    host.hypervisor.destroy(vm)
    host.hypervisor.start(vm)
    host.hypervisor.destroy(vm)
    host.hypervisor.undefine(vm)
    assert host.hypervisor.domains() == ()
    assert host.hypervisor.wait_stopped(vm, 5), "gone is off"
    for call in (host.hypervisor.start, host.hypervisor.undefine, host.hypervisor.destroy, host.hypervisor.leftovers):
        libvirt_refused(42, lambda call=call: call(vm))


def test_a_deaf_guest_is_not_waited_for(make: MakeHost) -> None:
    host = make('faults: [{on: shutdown, match: "deaf*", kind: lost}]\n')
    vm = run_vm(host, "deaf-1", 1)
    host.hypervisor.shutdown(vm)
    assert host.hypervisor.wait_stopped(vm, 3600) is False
    host.hypervisor.destroy(vm)
    assert host.hypervisor.wait_stopped(vm, 1)


def test_leftovers(make: MakeHost) -> None:
    host = make("empty")
    tpm = "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>"
    host.hypervisor.define(domain_xml("a", 1, tpm).replace("<os>", "<os firmware='efi'>"))
    host.hypervisor.define(domain_xml("b", 2))
    assert host.hypervisor.leftovers(uuid(1)) == DomainLeftovers("/var/lib/libvirt/qemu/nvram/a_VARS.fd", tpm=True)
    assert host.hypervisor.leftovers(uuid(2)) == DomainLeftovers()
    nvram = "<nvram>/srv/vars.fd</nvram></os>"
    host.hypervisor.define(domain_xml("c", 3).replace("<os>", "<os firmware='efi'>").replace("</os>", nvram))
    assert host.hypervisor.leftovers(uuid(3)).nvram == "/srv/vars.fd"


def test_networks(make: MakeHost) -> None:
    host = make("networks: [{name: on}, {name: off, active: false}]\n")
    assert host.hypervisor.network("on") == NetworkInfo("on", active=True)
    assert host.hypervisor.network("off") == NetworkInfo("off", active=False)
    assert host.hypervisor.network("default") is None
    run_vm(host, "a", 1, NETWORK.format("on"))
    libvirt_refused(55, lambda: run_vm(host, "b", 2, NETWORK.format("off")))
    libvirt_refused(43, lambda: run_vm(host, "c", 3, NETWORK.format("none")))


def test_disks_must_be_there_with_their_whole_chain(make: MakeHost) -> None:
    host = make("images: [{path: /srv/base.qcow2}, {path: /srv/no.qcow2, problem: unreadable}]\n")
    host.storage.create_pool("default", "/images")
    volume = host.storage.create_volume("default", "a.qcow2", 1 << 30, "/srv/base.qcow2", "qcow2")
    run_vm(host, "a", 1, DISK.format(volume.path))
    libvirt_refused(38, lambda: run_vm(host, "b", 2, DISK.format("/images/none.qcow2")))
    assert "Permission denied" in libvirt_refused(38, lambda: run_vm(host, "c", 3, DISK.format("/srv/no.qcow2")))


def test_without_kvm_only_emulated_domains_start(make: MakeHost) -> None:
    host = make("libvirt: {kvm: false}\n")
    libvirt_refused(67, lambda: run_vm(host, "a", 1))
    made = host.hypervisor.define(domain_xml("b", 2).replace("type='kvm'", "type='qemu'"))
    host.hypervisor.start(made.uuid)
    assert "kvm" not in host.sysfs.listdir("/dev")


def test_another_process_sees_a_running_vm(make: MakeHost) -> None:
    host, other = make("a100-40"), make("a100-40")
    set_type(host, 0, 468)
    vm = run_vm(host, "vm", 1, pci_device("0000:3b:00.4", managed=False))
    (record,) = other.hypervisor.domains()
    assert record.state is VmState.RUNNING
    other.hypervisor.destroy(vm)
    assert host.hypervisor.domains()[0].state is VmState.STOPPED


SCENARIO = """images: [{path: /i.qcow2, size_gib: 1, firmware: both}]
gpus: [{model: A100}]
"""
CARD = "<interface type='network'><mac address='52:54:00:00:00:01'/><source network='default'/></interface>"
GUEST_DISK = "<disk type='file' device='disk'><source file='/i.qcow2'/><target dev='vda'/></disk>"


def test_only_a_guest_that_boots_a_system_gets_a_lease(make: MakeHost) -> None:
    host = make(SCENARIO)
    boots = run_vm(host, "boots", 1, CARD, GUEST_DISK)
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
