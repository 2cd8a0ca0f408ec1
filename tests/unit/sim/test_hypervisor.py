# SPDX-License-Identifier: Apache-2.0
"""The simulated libvirt: XML as libvirt reads it, domains, networks, guests, and what a start takes of the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import create, open_sim_host, picture, request
from tests.unit.sim.hosts import MakeHost, domain_xml, libvirt_refused, mdev_device, pci_device, run_vm, set_type, uuid
from vgpuctl.errors import Exists, HostCannot
from vgpuctl.model.port_values import DomainLeftovers, NetworkInfo, RebootOutcome
from vgpuctl.model.vm import VmState
from vgpuctl.sim import SimHost, open_host
from vgpuctl.sim import domain_xml as reading
from vgpuctl.sim.domain_xml import SimHostdev
from vgpuctl.sim.refusals import VirError, VirErrorNumber
from vgpuctl.sim.state import State

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


def test_the_record_survives_restart_and_leaves_other_metadata_alone(make: MakeHost) -> None:
    host = make("empty")
    host.hypervisor.define(domain_xml("vm", 1, extra="<metadata><o:x xmlns:o='urn:other'>keep</o:x></metadata>"))
    host.hypervisor.set_record(uuid(1), RECORD.format("ready"))
    (record,) = make("empty").hypervisor.domains()
    assert "a  b\n &amp; é" in record.xml
    for _ in range(2):
        host.hypervisor.set_record(uuid(1), None)
    (record,) = host.hypervisor.domains()
    assert ">keep<" in record.xml
    libvirt_refused(42, lambda: host.hypervisor.set_record(uuid(9), None))
    libvirt_refused(27, lambda: host.hypervisor.set_record(uuid(1), "<other/>"))
    libvirt_refused(35, lambda: host.hypervisor.set_record(uuid(1), "<other"))


def test_a_domain_that_runs_is_not_undefined_and_one_that_is_gone_is_unknown(make: MakeHost) -> None:
    host = make("empty")
    vm = run_vm(host, "vm", 1)
    libvirt_refused(55, lambda: host.hypervisor.undefine(vm))
    host.hypervisor.shutdown(vm)
    host.hypervisor.undefine(vm)
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
    host = make("networks: [{name: on, forward: route}, {name: off, active: false}]\n")
    assert host.hypervisor.network("on") == NetworkInfo("on", active=True, forward="route")
    assert [one.name for one in host.hypervisor.networks()] == ["off", "on"]
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


DEAF = "version: 1\ngpus: []\nfaults:\n  - {on: reboot, match: deaf, kind: lost}\n"
SERIAL = "<console type='pty'><target type='serial' port='0'/></console>"


def opened(directory: Path, name: str = "vm", devices: str = SERIAL) -> SimHost:
    (directory / "host.yaml").write_text(DEAF)
    host = open_host(str(directory / "host.yaml"), state_dir=directory / "state")
    if host.hypervisor.find_domain(uuid(1)) is None:
        host.hypervisor.define(domain_xml(name, 1, devices))
        host.hypervisor.start(uuid(1))
    return host


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


GUEST_HOST = """libvirt: {{version: "{}", qemu: "10.0.2"}}
bridges: [{{name: br0, vlan_filtering: true}}, {{name: ovs0, linux: false}}]
cpus: 8
hugepages: [{{node: 0, size: 2MiB, count: 600}}, {{node: 1, size: 2MiB, count: 600}}]
gpus: [{{model: T4, numa_node: 1}}]
"""
PAGES = "<memoryBacking><hugepages><page size='2' unit='MiB'/></hugepages></memoryBacking>"
NODE_1 = "<numatune><memory mode='strict' nodeset='1'/></numatune>"
NODES = "/sys/devices/system/node"


def host_with(make: MakeHost, version: str = "11.3.0", name: str = "sim") -> SimHost:
    return make(GUEST_HOST.format(version), name)


def free(host: SimHost) -> list[int]:
    paths = (f"{NODES}/node{n}/hugepages/hugepages-2048kB/free_hugepages" for n in (0, 1))
    return [int(host.sysfs.read(path)) for path in paths]


def define(host: SimHost, number: int, *devices: str, extra: str = "") -> str:
    return host.hypervisor.define(domain_xml(f"vm-{number}", number, *devices, extra=extra)).uuid


def test_sysfs_shows_the_cpus_of_each_node_and_the_bridges(make: MakeHost) -> None:
    host = host_with(make)
    assert host.sysfs.read("/sys/devices/system/cpu/online") == "0-7\n"
    assert [host.sysfs.read(f"{NODES}/node{n}/cpulist") for n in (0, 1)] == ["0-3\n", "4-7\n"]
    assert host.sysfs.listdir("/sys/class/net") == ("br0", "lo", "ovs0")
    assert host.sysfs.read("/sys/class/net/br0/bridge/vlan_filtering") == "1\n"
    assert host.sysfs.listdir("/sys/class/net/ovs0") == ()


def test_running_vms_take_huge_pages_and_give_them_back(make: MakeHost) -> None:
    host = host_with(make)
    anywhere, bound, third = (define(host, n, extra=PAGES + NODE_1 * (n == 2)) for n in (1, 2, 3))
    assert free(host) == [600, 600]
    host.hypervisor.start(bound)
    assert free(host) == [600, 88]
    host.hypervisor.start(anywhere)
    assert free(host) == [88, 88]
    assert "Cannot allocate memory" in libvirt_refused(1, lambda: host.hypervisor.start(third))
    host.hypervisor.destroy(bound)
    host.hypervisor.start(third)
    host.hypervisor.destroy(anywhere)
    assert sum(free(host)) == 1200 - 512


def test_a_bridge_or_a_cpu_that_is_missing_fails_the_start(make: MakeHost) -> None:
    host = host_with(make)
    card = "<interface type='bridge'><source bridge='{}'/></interface>"
    host.hypervisor.start(define(host, 1, card.format("br0")))
    missing = define(host, 2, card.format("br1"))
    libvirt_refused(38, lambda: host.hypervisor.start(missing))
    pinned = define(host, 3, extra="<cputune><vcpupin vcpu='0' cpuset='8-9'/></cputune>")
    libvirt_refused(38, lambda: host.hypervisor.start(pinned))


@pytest.mark.parametrize(("version", "starts"), [("10.10.0", False), ("11.0.0", True)])
def test_a_vlan_on_a_linux_bridge_needs_libvirt_11(make: MakeHost, version: str, starts: bool) -> None:
    host = host_with(make, version)
    card = "<interface type='bridge'><source bridge='br0'/><vlan><tag id='30'/></vlan></interface>"
    uuid = define(host, 1, card)
    if starts:
        host.hypervisor.start(uuid)
    else:
        libvirt_refused(67, lambda: host.hypervisor.start(uuid))


def test_a_managed_function_gets_its_driver_back_when_it_is_unplugged(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    wanted = request(name="vm", mode="sriov", gpu="0000:86:00.0")
    before = picture(host).drivers
    uuid = str(create(host.ports, wanted).data.uuid)
    assert picture(host).drivers != before
    host.ports.hypervisor.detach_device(uuid, "ua-vgpuctl-0", live=True, config=True)
    assert (picture(host).drivers, picture(host).running[uuid]) == (before, ())
    state = host.sim._core.read_state()
    again = State(state.machine)
    again.apply(state.records())
    assert again.running == state.running


def normalised(xml: str):
    element = reading.parse(xml)
    names = reading.normalise(element)
    return element, names


def test_normalising() -> None:
    network = "<interface type='network'><source network='default'/></interface>"
    alias = "<alias name='hostdev0'/></hostdev>"
    xml = domain_xml("vm", 171, mdev_device(uuid(171).upper()).replace("</hostdev>", alias), network)
    element, names = normalised(xml.replace(uuid(171), uuid(171).upper()))
    assert names == (uuid(171), "vm")
    assert (element.findtext("memory"), element.find("memory").get("unit")) == ("1048576", "KiB")
    assert element.find("os/type").get("machine") == "pc-q35-8.2"
    assert element.find("devices/hostdev").get("managed") == "no"
    assert element.find("devices/hostdev/alias") is None, "only ua- names are the user's"
    assert element.find("devices/interface/mac").get("address").startswith("52:54:00:")
    again, _ = normalised(reading.unparse(element))
    assert reading.unparse(again) == reading.unparse(element), "what libvirt wrote it reads the same"


def test_a_users_alias_and_a_given_mac_stay() -> None:
    device = mdev_device(uuid(1)).replace("</hostdev>", "<alias name='ua-gpu'/></hostdev>")
    network = "<interface type='network'><mac address='52:54:00:00:00:01'/><source network='n'/></interface>"
    element, _ = normalised(domain_xml("vm", 1, device, network))
    assert element.find("devices/hostdev/alias").get("name") == "ua-gpu"
    assert element.find("devices/interface/mac").get("address") == "52:54:00:00:00:01"


def test_devices_in_any_spelling() -> None:
    odd = pci_device("0000:3b:00.4", managed=True).replace("0x3b", "59").replace("domain='0x0000' ", "")
    element, _ = normalised(domain_xml("vm", 1, odd, mdev_device(uuid(2))))
    assert reading.parse_hostdevs(element) == (
        SimHostdev("pci", "0000:3b:00.4", managed=True),
        SimHostdev("mdev", uuid(2), managed=False),
    )
    assert element.find("devices/hostdev/source/address").get("bus") == "0x3b"


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ("<domain><uuid/></domain>", VirErrorNumber.XML_ERROR),
        ("<domain><name>a</name></domain>", VirErrorNumber.XML_ERROR),
        (domain_xml("vm", 1).replace(uuid(1), "no-uuid"), VirErrorNumber.XML_ERROR),
        ("<network><name>a</name></network>", VirErrorNumber.XML_ERROR),
    ],
)
def test_what_libvirt_refuses(wrong: str, code: VirErrorNumber) -> None:
    with pytest.raises(VirError) as caught:
        normalised(wrong)
    assert caught.value.code == code


def test_a_uuid_is_drawn_when_there_is_none() -> None:
    xml = domain_xml("vm", 1).replace(f"<uuid>{uuid(1)}</uuid>", "")
    assert len(normalised(xml)[1][0]) == 36


def test_the_schema_finds_what_an_old_libvirt_would_drop() -> None:
    reading.validate(reading.parse(domain_xml("vm", 1, mdev_device(uuid(1)))))
    wrong = mdev_device(uuid(1)).replace("model='vfio-pci'", "model='vfio-pci' color='red'")
    with pytest.raises(VirError) as caught:
        reading.validate(reading.parse(domain_xml("vm", 1, wrong)))
    assert caught.value.code == VirErrorNumber.XML_INVALID_SCHEMA


def test_quotes_are_libvirts_and_lose_nothing() -> None:
    element = reading.parse("""<domain a="it's" b='say "x" &lt;'><name>it's "so" &lt;b a="c"&gt;</name></domain>""")
    text = reading.unparse(element)
    assert text.startswith("<domain a='it&apos;s' b='say &quot;x&quot; &lt;'>")
    again = reading.parse(text)
    assert dict(again.attrib) == dict(element.attrib)
    assert again.findtext("name") == """it's "so" <b a="c">"""
