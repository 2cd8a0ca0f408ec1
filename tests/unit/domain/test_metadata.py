# SPDX-License-Identifier: Apache-2.0
"""The record in a domain's metadata reads back as written; what libvirt drops or changes of a domain is reported."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from lxml import etree

from tests.unit.domain.designs import GOLDEN, MDEV, UUID, mdev, passthrough, records, vendor_vf
from vgpuctl.domain.compare import find_differences
from vgpuctl.domain.record import UnfinishedExchange, parse_record, record_from_xml, record_to_xml
from vgpuctl.errors import InvalidInput
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.model.migration import MigrationMark, MigrationRole
from vgpuctl.model.vm import AssignedVgpu, RecordState, VmRecord
from vgpuctl.value import field_names, replace

GOOD = record_to_xml(vendor_vf().record)


@given(records)
def test_it_reads_back(record: VmRecord) -> None:
    text = record_to_xml(record)
    assert record_from_xml(text) == parse_record(ElementTree.fromstring(text)) == record


@given(records)
def test_it_reads_back_inside_a_document_and_from_libvirts_form_without_namespace(record: VmRecord) -> None:
    text = record_to_xml(record)
    outer = etree.fromstring(f"<domain><metadata>\n    {text}\n  </metadata></domain>")
    again = etree.tostring(outer[0][0], encoding="unicode", with_tail=False)
    assert record_from_xml(again) == record
    assert record_from_xml(text.replace(' xmlns="urn:vgpuctl:1"', "", 1)) == record


def test_the_element_has_no_prefix() -> None:
    root = etree.fromstring(GOOD)
    assert root.tag == "{urn:vgpuctl:1}vm"
    assert root.nsmap == {None: "urn:vgpuctl:1"}
    assert root.get("state") == "making"


def test_a_record_marks_an_adopted_vm_and_the_default_is_created_by_vgpuctl() -> None:
    assert "made-vm" not in GOOD
    assert record_from_xml(GOOD).created_vm
    adopted = replace(vendor_vf().record, created_vm=False)
    assert record_from_xml(record_to_xml(adopted)) == adopted
    assert set(field_names(VmRecord)) == {
        "state", "vm_uuid", "machine_id", "vgpus", "disks", "request_json", "reserve", "created_vm", "account",
        "generation", "should_run", "desktop", "migration",
    }, "a new field must be written and read too"  # fmt: skip


def test_an_adopted_vgpu_is_marked_and_no_other() -> None:
    assert "adopted" not in GOOD
    (vgpu,) = vendor_vf().record.vgpus
    record = replace(vendor_vf().record, vgpus=(replace(vgpu, adopted=True), vgpu))
    assert record_to_xml(record).count(' adopted="yes"') == 1
    assert record_from_xml(record_to_xml(record)) == record
    assert record.adopted_vgpus() == record.vgpus[:1]


def test_a_vgpu_that_waits_for_a_place_is_marked_and_no_other() -> None:
    assert "waits" not in GOOD
    (vgpu,) = vendor_vf().record.vgpus
    waiting = replace(vendor_vf().record, vgpus=(replace(vgpu, waits_for_place=True), vgpu))
    assert record_to_xml(waiting).count(' waits-for-place="yes"') == 1
    assert record_from_xml(record_to_xml(waiting)) == waiting


def test_an_exchange_of_version_0_1_is_refused() -> None:
    text = GOOD.replace("<spec", '<exchange carrier="a" with-vm="b" with-carrier="c"/><spec')
    with pytest.raises(UnfinishedExchange):
        record_from_xml(text)


def test_none_and_empty_differ() -> None:
    (vgpu,) = vendor_vf().record.vgpus
    for profile in (None, ""):
        changed = replace(vendor_vf().record, vgpus=(replace(vgpu, profile=profile),))
        assert record_from_xml(record_to_xml(changed)).vgpus[0].profile == profile


def test_fields_of_later_versions_are_ignored() -> None:
    later = GOOD.replace(' state="making"', ' state="making" color="red"').replace(
        "</vm>", "<shape x='1'>y</shape><x:z xmlns:x='urn:x'/></vm>"
    )
    assert record_from_xml(later) == vendor_vf().record


@pytest.mark.parametrize("bad", ["\x00", "\x01", "\n", "\r", "\t", "\x1f", "\ud800", "\ufffe", "\uffff"])
def test_control_characters_are_refused(bad: str) -> None:
    plain = vendor_vf().record
    with pytest.raises(InvalidInput, match="cannot hold"):
        record_to_xml(replace(plain, request_json=f"a{bad}"))
    with pytest.raises(InvalidInput, match="profile") as caught:
        record_to_xml(replace(plain, vgpus=(replace(plain.vgpus[0], profile=bad),)))
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not XML"),
        ("nonsense", "not XML"),
        ("<vm", "not XML"),
        ("<other/>", "element is other"),
        ("<vm xmlns='urn:vgpuctl:2'/>", "element is"),
        ("<vm xmlns='urn:vgpuctl:1'/>", "no state"),
        (GOOD.replace("making", "made"), "made"),
        (GOOD.replace(' vm-uuid="', ' vmuuid="'), "no vm-uuid"),
        (GOOD.replace('index="0"', 'index="one"'), "index 'one' is not a number"),
        (GOOD.replace('index="0"', 'index="-1"'), "index '-1' is not a number"),
        (GOOD.replace('framebuffer-mib="4096"', 'framebuffer-mib=""'), "framebuffer-mib '' is not a number"),
        (GOOD.replace("vendor-vf", "magic"), "magic"),
        (GOOD.replace(' carrier="', ' carier="'), "vgpu has no carrier"),
        (GOOD.replace(' gpu="', ' other="'), "vgpu has no gpu"),
        (GOOD.replace(' capacity-bytes="', ' bytes="'), "disk has no capacity-bytes"),
    ],
)
def test_a_garbled_record_is_lost(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        record_from_xml(text)


def test_entities_are_not_expanded() -> None:
    text = '<!DOCTYPE vm [<!ENTITY a SYSTEM "file:///etc/hostname">]>' + GOOD.replace("{", "&a;{", 1)
    assert record_from_xml(text).request_json in ("", '{"profile":["A100-4C"]}')


def test_each_backend_and_missing_values_read_back() -> None:
    for design in (mdev(), passthrough()):
        assert record_from_xml(record_to_xml(design.record)) == design.record
    assert set(field_names(AssignedVgpu)) == {
        "index", "backend", "gpu", "function", "carrier", "profile", "framebuffer_mib", "params",
        "placement_id", "waits_for_place", "adopted",
    }, "a new field must be written and read too"  # fmt: skip


FILES = Path(__file__).parents[2] / "golden" / "domain" / "libvirt-9.0"


CHANGES = [
    ("vendor-vf", r"<name>vdi-1", "<name>vdi-x", ("name is vdi-x instead of vdi-1",)),
    ("vendor-vf", r"<memory unit='KiB'>\d+", "<memory unit='KiB'>4194304", ("memory is 4 GiB instead of 8 GiB",)),
    ("vendor-vf", r"(<vcpu[^>]*>)4", r"\g<1>1", ("vcpus is 1 instead of 4",)),
    ("vendor-vf", r" firmware='efi'|<loader.*</loader>", "", ("firmware is bios instead of uefi",)),
    ("vendor-vf", r"managed='no'", "managed='yes'", ("0000:3b:00.4 has managed='yes' instead of 'no'",)),
    ("vendor-vf", r"bus='0x3b' slot='0x00' function='0x4'", "bus='0x3b' slot='0x00' function='0x5'",
     ("the pci device 0000:3b:00.4 is missing",)),
    ("vendor-vf", r"<alias name='ua-vgpuctl-0'/>", "", ("0000:3b:00.4 has the alias None instead of ua-vgpuctl-0",)),
    ("vendor-vf", r"<source file='[^']*'/>", "",
     ("the disk /var/lib/libvirt/images/vdi-1-4b20d080.qcow2 is missing",)),
    ("vendor-vf", r"type='qcow2'", "type='raw'",
     ("/var/lib/libvirt/images/vdi-1-4b20d080.qcow2 has format raw instead of qcow2",)),
    ("vendor-vf", r"<source network='default'/>", "<source network='x'/>",
     ("the network card is network=x,model=virtio instead of network=default,model=virtio",)),
    ("vendor-vf", r"<(serial|console) type='pty'", r"<\1 type='null'", ("the serial console is missing",)),
    ("vendor-vf", r"(?s)<metadata>.*</metadata>", "", ("vgpuctl's record is missing",)),
    ("vendor-vf", r"state=\"making\"", 'state="ready"', ("vgpuctl's record differs from what was written",)),
    ("vendor-vf", r"A100-4C\"", 'A100-5C"', ("vgpuctl's record differs from what was written",)),
    ("mdev", MDEV + r"'", "00000000-0000-0000-0000-000000000000'", (f"the mdev device {MDEV} is missing",)),
    ("mdev", r"device='cdrom'", "device='disk'", ("/srv/iso/debian & more.iso is a disk instead of a cdrom",)),
    ("passthrough", r"managed='yes'", "managed='no'",
     ("0000:65:00.0 has managed='no' instead of 'yes'", "0000:65:00.1 has managed='no' instead of 'yes'")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "pattern", "instead", "sentences"), CHANGES)
def test_losses_are_named(name: str, pattern: str, instead: str, sentences: tuple[str, ...]) -> None:
    xml = (FILES / f"{name}.xml").read_text(encoding="utf-8")
    changed = re.sub(pattern, instead, xml)
    assert changed != xml
    assert find_differences(GOLDEN[name](), changed) == sentences


def test_another_uuid_makes_the_record_a_copy() -> None:
    xml = (FILES / "vendor-vf.xml").read_text(encoding="utf-8").replace("<uuid>4b20", "<uuid>5b20")
    assert find_differences(GOLDEN["vendor-vf"](), xml) == (
        "uuid is 5b20d080-1b54-4048-85b3-a6a62d165c01 instead of 4b20d080-1b54-4048-85b3-a6a62d165c01",
        "vgpuctl's record is missing",
    )


MARK = DesktopMark(UUID, "office", "db-1", 7, dirty=True, user="ada")
MARKED = record_to_xml(replace(vendor_vf().record, desktop=MARK))


def test_a_desktop_is_marked_and_no_other_vm() -> None:
    assert "desktop" not in GOOD
    assert record_from_xml(GOOD).desktop is None
    wanted = f'<desktop id="{UUID}" pool="office" incarnation="db-1" generation="7" dirty="yes" user="ada"/>'
    assert wanted in MARKED
    clean = replace(MARK, dirty=False, user=None)
    text = record_to_xml(replace(vendor_vf().record, desktop=clean))
    assert "dirty" not in text
    assert "user=" not in text
    assert record_from_xml(text).desktop == clean


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        (f'desktop id="{UUID}"', "desktop", "desktop has no id"),
        (f'desktop id="{UUID}"', f'desktop id="{UUID.upper()}"', "not a uuid in lower case"),
        (f'desktop id="{UUID}"', f'desktop id="{MDEV}"', "and its VM"),
        (f'desktop id="{UUID}"', 'desktop id="../../etc"', "not a uuid"),
        ('pool="office"', "", "no pool"),
        ('pool="office"', 'pool=""', "pool ''"),
        ('pool="office"', 'pool=" office"', "pool ' office'"),
        ('pool="office"', f'pool="{"x" * 256}"', "pool"),
        ('pool="office"', 'pool="a&#10;b"', "printable"),
        ('incarnation="db-1"', "", "no incarnation"),
        ('incarnation="db-1"', 'incarnation="\u202eb"', "printable"),
        ('generation="7"', "", "no generation"),
        ('generation="7"', 'generation="-7"', "not a number"),
        ('generation="7"', 'generation="7.0"', "not a number"),
        ('generation="7"', f'generation="{"9" * 19}"', "not a number"),
        ('dirty="yes"', 'dirty="no"', "can only be yes"),
        ('dirty="yes"', 'dirty=""', "can only be yes"),
        ('user="ada"', 'user=""', "user"),
        ('user="ada"', f'user="{"x" * 5000}"', "user"),
        ("<spec", f'<desktop id="{UUID}" pool="a" incarnation="b" generation="1"/><spec', "more than one"),
    ],
)
def test_a_doubtful_mark_makes_the_record_unreadable(was: str, now: str, why: str) -> None:
    assert MARKED.count(was) == 1
    with pytest.raises(ValueError, match=re.escape(why)):
        record_from_xml(MARKED.replace(was, now))


MOVE = MigrationMark("m-1", MigrationRole.LEAVING, "gpu02", "b" * 32, copies_disks=True, is_offline=True)
MOVING = record_to_xml(replace(vendor_vf().record, state=RecordState.MOVING, migration=MOVE))


def test_a_move_is_marked_and_no_other_vm() -> None:
    assert "migration" not in GOOD
    assert record_from_xml(GOOD).migration is None
    words = f'id="m-1" role="leaving" peer="gpu02" peer-machine-id="{"b" * 32}" copies-disks="yes" offline="yes"'
    assert f"<migration {words}/>" in MOVING
    assert record_from_xml(MOVING).migration == MOVE


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        ('role="leaving"', 'role="gone"', "'gone' is not a valid MigrationRole"),
        ('id="m-1"', "", "migration has no id"),
        ('peer="gpu02"', "", "migration has no peer"),
        ('state="moving"', 'state="ready"', "state is ready, and it has a migration"),
        ("<migration", "<spec/><other", "state is moving, and it has no migration"),
        ("<spec", '<migration id="a" role="arrived" peer="b" peer-machine-id="c"/><spec', "more than one migration"),
    ],
)
def test_a_doubtful_move_makes_the_record_unreadable(was: str, now: str, why: str) -> None:
    assert MOVING.count(was) == 1
    with pytest.raises(ValueError, match=re.escape(why)):
        record_from_xml(MOVING.replace(was, now))
