# SPDX-License-Identifier: Apache-2.0
"""The XML sent to libvirt and received from it.

libvirt's domain capabilities, in the format of libvirt 9.0; its test driver has none.
"""

import json

import pytest

from vgpuctl.host.virt.libvirt_xml import (
    find_text,
    has_enrolled_keys,
    parse_capabilities,
    parse_xml,
    pool_xml,
    strip_namespace,
    volume_xml,
)

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


XML = """<domainCapabilities><path>/usr/bin/qemu-system-x86_64</path><os supported='yes'>
<enum name='firmware'><value>bios</value><value>efi</value></enum>
<loader supported='yes'><enum name='secure'><value>yes</value><value>no</value></enum></loader></os>
<devices><tpm supported='yes'><enum name='model'><value>tpm-tis</value><value>tpm-crb</value></enum>
<enum name='backendModel'><value>passthrough</value><value>emulator</value></enum></tpm></devices>
</domainCapabilities>"""


def test_a_host_that_has_everything():
    result = parse_capabilities(parse_xml(XML), kvm=True, enrolled_keys=True)
    assert (result.kvm, result.uefi, result.secure_boot, result.tpm) == (True, True, True, True)
    assert result.emulator == "/usr/bin/qemu-system-x86_64"


@pytest.mark.parametrize(
    ("lost", "uefi", "secure_boot", "tpm"),
    [
        ("<value>efi</value>", False, False, True),
        ("<value>yes</value>", True, False, True),
        ("<value>emulator</value>", True, True, False),
        ("<value>tpm-crb</value>", True, True, False),
    ],
)
def test_what_is_not_listed_is_not_there(lost, uefi, secure_boot, tpm):
    result = parse_capabilities(parse_xml(XML.replace(lost, "")), kvm=False, enrolled_keys=True)
    assert (result.kvm, result.uefi, result.secure_boot, result.tpm) == (False, uefi, secure_boot, tpm)


def test_no_tpm_at_all():
    assert not parse_capabilities(
        parse_xml(XML.replace("<tpm supported='yes'>", "<tpm supported='no'>")), kvm=True, enrolled_keys=True
    ).tpm


def described(directory, **firmware):
    """A directory with these descriptors: name and features."""
    directory.mkdir()
    for name, features in firmware.items():
        (directory / f"{name}.json").write_text(
            features if isinstance(features, str) else json.dumps({"features": features})
        )
    return str(directory)


def test_a_firmware_with_secure_boot_but_without_keys_is_none_for_secure_boot(tmp_path):
    assert not parse_capabilities(parse_xml(XML), kvm=True, enrolled_keys=False).secure_boot
    plain = described(tmp_path / "usr", secure=["secure-boot", "requires-smm"], plain=["amd-sev"])
    assert not has_enrolled_keys((plain, str(tmp_path / "etc")))
    enrolled = described(tmp_path / "etc", enrolled=["secure-boot", "enrolled-keys"])
    assert has_enrolled_keys((plain, enrolled))


def test_a_description_in_etc_hides_the_one_of_its_name(tmp_path):
    usr = described(tmp_path / "usr", secure=["secure-boot", "enrolled-keys"], plain=[])
    assert has_enrolled_keys((usr,))
    assert not has_enrolled_keys((usr, described(tmp_path / "etc", secure="")))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"features": 1}'])
def test_what_cannot_be_read_refuses_nobody(tmp_path, text):
    assert has_enrolled_keys((str(tmp_path / "none"),))
    assert has_enrolled_keys((described(tmp_path / "usr", plain=[], odd=text),))


@pytest.mark.parametrize(("arch", "machine"), [("x86_64", "pc-q35-8.2"), ("aarch64", "virt-8.2")])
def test_the_architecture_and_machine_are_those_that_libvirt_names(arch, machine):
    text = XML.replace("<os ", f"<machine>{machine}</machine><arch>{arch}</arch><os ", 1)
    result = parse_capabilities(parse_xml(text), kvm=True, enrolled_keys=True)
    assert (result.arch, result.machine, result.is_x86) == (arch, machine, arch == "x86_64")
