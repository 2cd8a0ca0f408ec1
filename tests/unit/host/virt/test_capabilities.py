# SPDX-License-Identifier: Apache-2.0
"""libvirt's domain capabilities, in the format of libvirt 9.0; its test driver has none."""

import json

import pytest

from vgpuctl.host.virt.capabilities import has_enrolled_keys, parse_capabilities
from vgpuctl.host.virt.libvirt_xml import parse_xml

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
