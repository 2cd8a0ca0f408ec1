# SPDX-License-Identifier: Apache-2.0
"""libvirt's domain capabilities, in the form that libvirt 9.0 gives them; its test driver has none."""

import pytest

from vgpuctl.host.virt.capabilities import capabilities_of
from vgpuctl.host.virt.documents import parsed

XML = """<domainCapabilities><path>/usr/bin/qemu-system-x86_64</path><os supported='yes'>
<enum name='firmware'><value>bios</value><value>efi</value></enum>
<loader supported='yes'><enum name='secure'><value>yes</value><value>no</value></enum></loader></os>
<devices><tpm supported='yes'><enum name='model'><value>tpm-tis</value><value>tpm-crb</value></enum>
<enum name='backendModel'><value>passthrough</value><value>emulator</value></enum></tpm></devices>
</domainCapabilities>"""


def test_a_host_that_has_everything():
    found = capabilities_of(parsed(XML), kvm=True)
    assert (found.kvm, found.uefi, found.secure_boot, found.tpm) == (True, True, True, True)
    assert found.emulator == "/usr/bin/qemu-system-x86_64"


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
    found = capabilities_of(parsed(XML.replace(lost, "")), kvm=False)
    assert (found.kvm, found.uefi, found.secure_boot, found.tpm) == (False, uefi, secure_boot, tpm)


def test_no_tpm_at_all():
    assert not capabilities_of(parsed(XML.replace("<tpm supported='yes'>", "<tpm supported='no'>")), kvm=True).tpm
