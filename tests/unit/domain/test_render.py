# SPDX-License-Identifier: Apache-2.0
"""Rendering: golden files, libvirt's own schema, injection, and errors of broken templates.

VGPUCTL_REGENERATE=1 writes the golden files again. Those in `libvirt-9.0/` are what a real libvirt 9.0.0 (QEMU 7.2)
gave back for them after virDomainDefineXMLFlags with VALIDATE; the lab asks a newer one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lxml import etree

from tests.unit.domain.designs import GOLDEN, all_devices, designs, vendor_vf, windows11
from vgpuctl.domain.compare import find_differences
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.domain.render import (
    compile_once,
    compile_template,
    disk_name,
    format_pci_address,
    read_builtin_template,
    render_domain,
)
from vgpuctl.domain.settings import SETTINGS
from vgpuctl.errors import InvalidInput
from vgpuctl.model.numbers import format_ranges
from vgpuctl.model.request import DesignDisk, DesignHostdev, DomainDesign
from vgpuctl.model.vm import Nic, VmState
from vgpuctl.value import field_names, replace

FILES = Path(__file__).parents[2] / "golden" / "domain"
SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")
TEMPLATE = read_builtin_template("vm") or ""


@pytest.fixture(scope="module")
def schema() -> etree.RelaxNG:
    """The schema of libvirt; package libvirt0 (or libvirt-libs) brings it, and without it the test fails."""
    return etree.RelaxNG(etree.parse(SCHEMA))


def made(design: DomainDesign) -> str:
    return render_domain(design, compile_template(TEMPLATE))


def free_ports(xml: str) -> int:
    """Count the root ports without a device in a domain that libvirt returned."""
    root = etree.fromstring(xml)
    ports = {c.get("index") for c in root.iterfind("devices/controller[@model='pcie-root-port']")}
    addresses = root.iterfind("devices/*/address[@type='pci']")
    return len(ports - {str(int(address.get("bus", "0"), 16)) for address in addresses})


@pytest.mark.parametrize("name", [*GOLDEN, "all-devices", "windows11"])
def test_the_golden_files(schema: etree.RelaxNG, name: str) -> None:
    path, xml = FILES / f"{name}.xml", made({**GOLDEN, "all-devices": all_devices, "windows11": windows11}[name]())
    assert schema.validate(etree.fromstring(xml)), str(schema.error_log)
    if os.environ.get("VGPUCTL_REGENERATE") == "1":
        path.write_text(xml + "\n", encoding="utf-8")
    assert xml + "\n" == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", GOLDEN)
def test_a_real_libvirt_loses_nothing(name: str) -> None:
    design, xml = GOLDEN[name](), (FILES / "libvirt-9.0" / f"{name}.xml").read_text(encoding="utf-8")
    assert find_differences(design, xml) == ()
    assert free_ports(xml) == design.hotplug_slots


@given(designs())
def test_what_is_rendered_is_valid_and_reads_back(schema: etree.RelaxNG, design: DomainDesign) -> None:
    xml = made(design)
    assert schema.validate(etree.fromstring(xml)), str(schema.error_log)
    assert find_differences(design, xml) == ()
    vm = parse_domain(xml, VmState.STOPPED, design.record.machine_id)
    assert (vm.name, vm.uuid, vm.memory_mib, vm.vcpus) == (design.name, design.uuid, design.memory_mib, design.vcpus)
    assert vm.record == design.record
    assert vm.copied_record is None
    assert tuple(n.shown_like(wanted) for n, wanted in zip(vm.nics, design.nics, strict=True)) == design.nics
    assert format_ranges(vm.pinned_cpus) == design.pinned_cpus
    assert format_ranges(vm.memory_nodes) == design.memory_nodes
    assert dict(vm.settings) == dict.fromkeys(SETTINGS, "none") | dict(design.settings)
    assert [(d.kind, d.carrier, d.managed, d.alias, d.display) for d in vm.hostdevs] == [
        (d.kind, d.carrier, d.managed, d.alias, d.display) for d in design.hostdevs
    ]
    ordered = [d for kind in ("disk", "cdrom") for d in design.disks if d.device == kind]
    assert [(d.device, d.source, d.format) for d in vm.disks] == [(d.device, d.path, d.format) for d in ordered]
    targets = [d.target for d in vm.disks]
    assert len(set(targets)) == len(targets)


@given(designs(), st.integers(0, 16))
def test_there_is_a_port_for_every_device_and_the_spare_ones(design: DomainDesign, slots: int) -> None:
    root = etree.fromstring(made(replace(design, hotplug_slots=slots)))
    devices = root.find("devices")
    virtio_disks = devices.findall("disk/target[@bus='virtio']")
    others = [*devices.findall("interface"), *devices.findall("controller[@type='usb']"), *devices.findall("rng")]
    serial = 1  # libvirt adds the virtio-serial controller of the guest agent's channel
    needing = len(virtio_disks) + len(devices.findall("hostdev")) + len(others) + serial
    assert len(devices.findall("controller[@model='pcie-root-port']")) == needing + slots


def test_a_network_boot_and_a_cdrom_boot_keep_their_order() -> None:
    root = etree.fromstring(made(replace(vendor_vf(), boot=("cdrom", "disk", "network"))))
    assert [boot.get("dev") for boot in root.iterfind("os/boot")] == ["cdrom", "hd", "network"]


def test_without_a_display_pins_and_huge_pages_the_domain_has_none_of_their_elements() -> None:
    text = made(vendor_vf())
    assert not [
        word for word in ("numatune", "cputune", "memoryBacking", "display=", "'none'/>\n    </video>") if word in text
    ]


def with_text(text: str) -> DomainDesign:
    """Return a design with a text wherever a name or a path of the host's may be."""
    plain = vendor_vf()
    return replace(
        plain,
        name=text,
        nics=(Nic(network=text, model="virtio"),),
        emulator="/" + text,
        disks=(DesignDisk("disk", "/" + text, "qcow2"),),
        hostdevs=(DesignHostdev("mdev", "0d9a1a3e-52c4-5c8e-9b6f-0f3c5d7e9a11", False, text),),
        record=replace(plain.record, request_json=text),
    )


@pytest.mark.parametrize(
    "hostile",
    [
        "'/><disk type='file'/><x y='",
        "</source>",
        "&lt;",
        '"><!--',
        "]]>",
        "{{ vm.uuid }}",
        "{% raw %}",
        "<![CDATA[",
        "&amp;#10;",
    ],
)
def test_no_value_becomes_markup(hostile: str) -> None:
    design, harmless = with_text(hostile), with_text("a")
    xml = made(design)
    tags = [element.tag for element in etree.fromstring(xml).iter()]
    assert tags == [element.tag for element in etree.fromstring(made(harmless)).iter()]
    assert find_differences(design, xml) == ()


@pytest.mark.parametrize("bad", ["a\x00", "a\x1b", "\ud800", "\uffff"])
def test_a_character_that_xml_cannot_hold_is_refused(bad: str) -> None:
    with pytest.raises(InvalidInput, match=r"error in the domain template vm\.xml\.j2"):
        made(replace(vendor_vf(), nics=(Nic(network=bad, model="virtio"),)))


@pytest.mark.parametrize("address", ["0000:3b:00", "x' y='", "", "0000:3B:00.0"])
def test_only_a_pci_address_becomes_attributes(address: str) -> None:
    with pytest.raises(ValueError, match="is not a PCI address"):
        format_pci_address(address)
    with pytest.raises(InvalidInput, match=r"error in the domain template vm\.xml\.j2:[0-9]+: .* is not a PCI address"):
        made(replace(vendor_vf(), hostdevs=(DesignHostdev("pci", address, False, "ua-a"),)))


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("<domain>\n\n{{ vm.nme }}</domain>", "mine.xml.j2:3: ", "nme"),
        ("<domain>\n{{ nothing }}</domain>", "mine.xml.j2:2: ", "'nothing' is undefined"),
        ("<domain>\n{% for %}</domain>", "mine.xml.j2:2: ", "Expected"),
        ("<domain>\n{{ 1/0 }}</domain>", "mine.xml.j2:2: ", "division by zero"),
        ("<domain>\n{% include 'other' %}</domain>", "mine.xml.j2:2: ", "no loader"),
        ("<domain>\n{{ vm.__class__.__mro__ }}</domain>", "mine.xml.j2:2: ", "unsafe"),
        ("<domain>\n{{ vm.record.__init__.__globals__ }}</domain>", "mine.xml.j2:2: ", "unsafe"),
        ("<domain>", "mine.xml.j2: ", "not XML"),
        ("", "mine.xml.j2: ", "not XML"),
        ("<network/>", "mine.xml.j2: ", "a <network>, not a <domain>"),
        ("<domain>{{ 'a' | pci }}</domain>", "mine.xml.j2:1: ", "'a' is not a PCI address"),
    ],
)
def test_a_broken_template_is_named_with_its_line(text: str, where: str, what: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        render_domain(vendor_vf(), compile_template(text, "mine.xml.j2"))
    assert caught.value.message.startswith(f"error in the domain template {where}")
    assert what in caught.value.message


def test_disk_names_go_on_after_z() -> None:
    assert [disk_name("vd", n) for n in (0, 1, 25, 26, 51, 52, 701, 702)] == [
        "vda", "vdb", "vdz", "vdaa", "vdaz", "vdba", "vdzz", "vdaaa",
    ]  # fmt: skip


def test_the_template_documents_every_variable() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "templates.md").read_text(encoding="utf-8")
    header = TEMPLATE[: TEMPLATE.index("#}")]
    for field in field_names(DomainDesign):
        if field != "record":
            assert f"vm.{field}" in header
            assert f"`vm.{field}`" in text
    assert "/etc/vgpuctl/templates" in header


class Scratch:
    """Cached bytes by name, like the host's cache."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        return self.kept.get(name)

    def write(self, name: str, data: bytes) -> None:
        self.kept[name] = data


def test_a_compiled_template_is_taken_from_the_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = Scratch()
    first = render_domain(vendor_vf(), compile_template(TEMPLATE, "vm.xml.j2", scratch))
    monkeypatch.setattr(ImmutableSandboxedEnvironment, "compile", None)
    assert (
        render_domain(vendor_vf(), compile_template(TEMPLATE, "vm.xml.j2", scratch)) == first == made_without(scratch)
    )


def made_without(scratch: Scratch) -> str:
    (kept,) = scratch.kept
    assert kept.startswith("vm.xml.j2-jinja2-")
    return (FILES / "vendor-vf.xml").read_text(encoding="utf-8").rstrip("\n")


@pytest.mark.parametrize("spoil", [lambda d: b"", lambda d: d[:30], lambda d: d[:-20], lambda d: b"junk" + d])
def test_a_damaged_cache_is_replaced(spoil: Callable[[bytes], bytes]) -> None:
    scratch = Scratch()
    compile_template(TEMPLATE, "vm.xml.j2", scratch)
    ((name, good),) = scratch.kept.items()
    scratch.kept[name] = spoil(good)
    assert render_domain(vendor_vf(), compile_template(TEMPLATE, "vm.xml.j2", scratch)) == made(vendor_vf())
    assert scratch.kept[name] == good


def test_a_process_compiles_a_template_once_and_keeps_the_last_ones() -> None:
    first = compile_once(TEMPLATE, "vm.xml.j2", None)
    assert compile_once(TEMPLATE, "vm.xml.j2", None) is first
    assert compile_once("<domain/>", "vm.xml.j2", None) is not first
    for number in range(20):
        compile_once(f"<domain>{number}</domain>", "vm.xml.j2", None)
    assert compile_once(TEMPLATE, "vm.xml.j2", None) is not first


def test_another_text_of_that_name_is_compiled_again() -> None:
    scratch = Scratch()
    compile_template(TEMPLATE, "vm.xml.j2", scratch)
    other = compile_template("<domain>other</domain>", "vm.xml.j2", scratch)
    assert render_domain(vendor_vf(), other) == "<domain>other</domain>"


def test_secure_boot_tpm_local_time_and_no_virtio_driver_to_boot() -> None:
    root = etree.fromstring(made(windows11()))
    assert root.find("os[@firmware='efi']/firmware/feature[@name='secure-boot'][@enabled='yes']") is not None
    assert root.find("os/firmware/feature[@name='enrolled-keys'][@enabled='yes']") is not None
    assert root.find("devices/tpm[@model='tpm-crb']/backend[@type='emulator'][@version='2.0']") is not None
    assert root.find("clock[@offset='localtime']/timer[@name='hypervclock']") is not None
    assert root.find("features/hyperv/stimer[@state='on']") is not None
    assert {power.get("enabled") for power in root.iterfind("pm/*")} == {"no"}
    assert {disk.get("bus") for disk in root.iterfind("devices/disk/target")} == {"sata"}
    assert [disk.get("dev") for disk in root.iterfind("devices/disk/target")] == ["sda", "sdb"]
    assert [card.get("type") for card in root.iterfind("devices/interface/model")] == ["e1000e"]


@given(designs())
def test_all_cpus_are_cores_of_one_socket_for_windows_uses_no_more_than_two(design: DomainDesign) -> None:
    topology = etree.fromstring(made(replace(design, os="windows11", firmware="uefi"))).find("cpu/topology")
    assert dict(topology.attrib) == {"sockets": "1", "cores": str(design.vcpus), "threads": "1"}


def test_without_kvm_there_is_nothing_of_hyper_v() -> None:
    xml = made(replace(windows11(), kvm=False))
    assert "hyperv" not in xml


@given(designs())
def test_any_design_of_windows_is_valid_and_reads_back(schema: etree.RelaxNG, design: DomainDesign) -> None:
    design = replace(design, os="windows11", firmware="uefi")
    xml = made(design)
    assert schema.validate(etree.fromstring(xml)), str(schema.error_log)
    assert find_differences(design, xml) == ()


@pytest.mark.parametrize(
    ("text", "instead", "sentence"),
    [
        ("enabled='yes' name='secure-boot'", "enabled='no' name='secure-boot'", "secure boot is not on"),
        ("type='emulator'", "type='passthrough'", "the TPM is missing"),
    ],
)
def test_a_loss_is_named(text: str, instead: str, sentence: str) -> None:
    design = windows11()
    assert find_differences(design, made(design).replace(text, instead)) == (sentence,)


def test_a_secure_loader_that_libvirt_chose_is_secure_boot() -> None:
    design = windows11()
    chosen = made(design).replace("<firmware>", "<loader secure='yes' type='pflash'>/f.fd</loader><firmware>")
    assert find_differences(design, chosen.replace("enabled='yes' name='secure-boot'", "enabled='no' name='x'")) == ()
