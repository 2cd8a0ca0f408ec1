# SPDX-License-Identifier: Apache-2.0
"""Comparing after define: everything that libvirt drops or changes is reported in a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.domain.designs import GOLDEN, MDEV
from vgpuctl.domain.compare import find_differences

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
