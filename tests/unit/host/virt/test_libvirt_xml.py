# SPDX-License-Identifier: Apache-2.0
"""The XML sent to libvirt and received from it."""

import pytest

from vgpuctl.host.virt.libvirt_xml import find_text, parse_xml, pool_xml, strip_namespace, volume_xml

NASTY = "a<b>&\"'\N{LATIN SMALL LETTER E WITH ACUTE}"


def test_names_and_paths_are_escaped():
    assert find_text(parse_xml(pool_xml(NASTY, f"/x/{NASTY}")), "target/path") == f"/x/{NASTY}"
    volume = parse_xml(volume_xml(NASTY, 5 << 30, f"/x/{NASTY}", "qcow2"))
    assert find_text(volume, "name") == NASTY
    assert find_text(volume, "backingStore/path") == f"/x/{NASTY}"
    assert volume.find("backingStore/format").get("type") == "qcow2"


def test_a_volume_is_thin_qcow2():
    volume = parse_xml(volume_xml("a", 5 << 30, None, None))
    assert (find_text(volume, "capacity"), find_text(volume, "allocation")) == (str(5 << 30), "0")
    assert volume.find("target/format").get("type") == "qcow2"
    assert find_text(volume, "target/compat") == "1.1"
    assert volume.find("backingStore") is None


def test_entities_are_not_resolved(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("geheim")
    text = f'<!DOCTYPE d [<!ENTITY e SYSTEM "file://{secret}">]><d><name>&e;</name></d>'
    assert find_text(parse_xml(text), "name") != "geheim"


@pytest.mark.parametrize(
    "text",
    [
        '<p a="1"><q>t</q></p>',
        '<vgpuctl:p xmlns:vgpuctl="urn:vgpuctl:1" a="1"><vgpuctl:q>t</vgpuctl:q></vgpuctl:p>',
        '<p xmlns="urn:vgpuctl:1" a="1"><q>t</q></p>',
        '<x:p xmlns:x="urn:vgpuctl:1" a="1"><x:q>t</x:q></x:p>',
    ],
)
def test_the_namespace_of_a_record_is_stripped_in_any_form(text):
    assert strip_namespace(text) == '<p a="1"><q>t</q></p>'
