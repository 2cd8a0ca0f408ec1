# SPDX-License-Identifier: Apache-2.0
"""The XML that goes to libvirt and comes from it."""

import pytest

from vgpuctl.host.virt.documents import parsed, pool_xml, text_at, volume_xml, without_namespace

NASTY = "a<b>&\"'\N{LATIN SMALL LETTER E WITH ACUTE}"


def test_names_and_paths_are_escaped():
    assert text_at(parsed(pool_xml(NASTY, f"/x/{NASTY}")), "target/path") == f"/x/{NASTY}"
    volume = parsed(volume_xml(NASTY, 5 << 30, f"/x/{NASTY}", "qcow2"))
    assert text_at(volume, "name") == NASTY
    assert text_at(volume, "backingStore/path") == f"/x/{NASTY}"
    assert volume.find("backingStore/format").get("type") == "qcow2"


def test_a_volume_is_thin_qcow2():
    volume = parsed(volume_xml("a", 5 << 30, None, None))
    assert (text_at(volume, "capacity"), text_at(volume, "allocation")) == (str(5 << 30), "0")
    assert volume.find("target/format").get("type") == "qcow2"
    assert text_at(volume, "target/compat") == "1.1"
    assert volume.find("backingStore") is None


def test_entities_are_not_resolved(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("geheim")
    text = f'<!DOCTYPE d [<!ENTITY e SYSTEM "file://{secret}">]><d><name>&e;</name></d>'
    assert text_at(parsed(text), "name") != "geheim"


@pytest.mark.parametrize(
    "text",
    [
        '<p a="1"><q>t</q></p>',
        '<vgpuctl:p xmlns:vgpuctl="urn:vgpuctl:1" a="1"><vgpuctl:q>t</vgpuctl:q></vgpuctl:p>',
        '<p xmlns="urn:vgpuctl:1" a="1"><q>t</q></p>',
        '<x:p xmlns:x="urn:vgpuctl:1" a="1"><x:q>t</x:q></x:p>',
    ],
)
def test_the_promises_namespace_is_taken_off_however_it_is_written(text):
    assert without_namespace(text) == '<p a="1"><q>t</q></p>'
