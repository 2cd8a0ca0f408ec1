# SPDX-License-Identifier: Apache-2.0
"""The record in a domain's metadata reads back as written, and a garbled one is lost, not guessed."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from lxml import etree

from tests.unit.domain.designs import mdev, passthrough, records, vendor_vf
from vgpuctl.domain.record import UnfinishedExchange, parse_record, record_from_xml, record_to_xml
from vgpuctl.errors import InvalidInput
from vgpuctl.model.vm import AssignedVgpu, VmRecord
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
        "state", "vm_uuid", "machine_id", "vgpus", "disks", "request_json", "reserve", "created_vm",
    }, "a new field must be written and read too"  # fmt: skip


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
        "placement_id", "waits_for_place",
    }, "a new field must be written and read too"  # fmt: skip
