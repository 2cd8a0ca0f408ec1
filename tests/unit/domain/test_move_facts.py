# SPDX-License-Identifier: Apache-2.0
"""What a domain's XML says about a move to another host."""

from __future__ import annotations

import pytest

from vgpuctl.domain.move_facts import MoveFacts, parse_move_facts

DISK = "<devices><disk type='{kind}' device='{device}'>{more}<target dev='vda'/></disk></devices>"


def facts(body: str = "", os: str = "<type arch='x86_64' machine='pc-q35-8.2'>hvm</type>") -> MoveFacts:
    return parse_move_facts(f"<domain type='kvm'><name>vm</name><os>{os}</os>{body}</domain>")


@pytest.mark.parametrize(
    ("machine", "version", "vendor"),
    [
        ("pc-q35-8.2", "8.2", None),
        ("pc-i440fx-10.0", "10.0", None),
        ("virt-9.1", "9.1", None),
        ("pc-q35-rhel9.4.0", None, "rhel"),
        ("pc-q35-noble", None, "noble"),
        ("q35", None, None),
    ],
)
def test_a_machine_type_names_the_qemu_that_has_it(machine: str, version: str | None, vendor: str | None) -> None:
    seen = facts(os=f"<type arch='x86_64' machine='{machine}'>hvm</type>")
    assert (seen.machine_version, seen.machine_vendor) == (version, vendor)


def test_an_invariant_tsc_needs_a_frequency() -> None:
    cpu = "<cpu mode='host-model'><feature policy='require' name='invtsc'/></cpu>"
    assert facts(cpu).has_unscaled_tsc
    assert not facts(f"{cpu}<clock><timer name='tsc' frequency='3000000000'/></clock>").has_unscaled_tsc
    assert not facts(cpu.replace("require", "disable")).has_unscaled_tsc


def test_devices_that_stay_are_named() -> None:
    seen = facts(
        "<devices>"
        "<memory model='dimm'/><memory model='dimm'><address type='dimm' slot='0' base='0x100000000'/></memory>"
        "<shmem name='a' role='peer'/><shmem name='b' role='master'/><shmem name='c'/>"
        "<filesystem type='mount'><driver type='virtiofs'/><target dir='home'/></filesystem>"
        "<interface type='hostdev'><source><address type='pci' domain='0' bus='0x3b' slot='0' function='2'/></source>"
        "</interface>"
        "<hostdev mode='subsystem' type='usb'><source><vendor id='0x0951'/><product id='0x1666'/></source></hostdev>"
        "<hostdev mode='subsystem' type='scsi'><source><adapter name='scsi_host0'/></source></hostdev>"
        "<video><model type='virtio'><acceleration accel3d='yes'/></model></video>"
        "</devices>"
    )
    assert seen.unaddressed_dimms == 1
    assert seen.peer_shmem == ("a", "c")
    assert seen.file_systems == ("home",)
    assert seen.nic_carriers == {"0000:3b:00.2"}
    assert seen.other_devices == ("usb 0x0951:0x1666", "scsi scsi_host0")
    assert seen.has_gl


def test_networks_bridges_and_interfaces_are_named_once() -> None:
    seen = facts(
        "<devices><interface type='network'><source network='lan'/></interface>"
        "<interface type='network'><source network='lan'/></interface>"
        "<interface type='bridge'><source bridge='br0'/></interface>"
        "<interface type='direct'><source dev='eno1'/></interface><interface type='user'/></devices>"
    )
    assert (seen.networks, seen.interfaces) == (("lan",), ("br0", "eno1"))


@pytest.mark.parametrize(
    ("kind", "more", "path"),
    [
        ("file", "<source file='/a.qcow2'/>", "/a.qcow2"),
        ("block", "<source dev='/dev/vg/a'/>", "/dev/vg/a"),
        ("network", "<source protocol='rbd' name='pool/image'/>", "rbd:pool/image"),
        ("volume", "<source pool='default' volume='a'/>", ""),
        ("file", "", ""),
    ],
)
def test_where_a_disk_is(kind: str, more: str, path: str) -> None:
    (disk,) = facts(DISK.format(kind=kind, device="disk", more=more)).disks
    assert (disk.target, disk.kind, disk.path) == ("vda", kind, path)
    assert disk.volume == (("default", "a") if kind == "volume" else None)


def test_what_a_disk_says_of_itself() -> None:
    more = (
        "<driver type='qcow2'/><source file='/a' startupPolicy='optional'/><readonly/><shareable/><transient/>"
        "<mirror type='file'/><backingStore type='file'><source file='/base'/></backingStore>"
    )
    (disk,) = facts(DISK.format(kind="file", device="disk", more=more)).disks
    assert (disk.format, disk.base) == ("qcow2", "/base")
    assert disk.is_read_only
    assert disk.is_declared_shared
    assert disk.is_transient
    assert disk.has_job
    assert disk.is_optional
    (disc,) = facts(DISK.format(kind="file", device="cdrom", more="")).disks
    assert disc.is_read_only
    assert not disc.is_optional


def test_firmware_and_tpm() -> None:
    os = (
        "<type arch='x86_64' machine='q35'>hvm</type><loader type='pflash' secure='yes'>/usr/share/OVMF/a.fd</loader>"
        "<kernel>/boot/vmlinuz</kernel>"
    )
    seen = facts("<devices><tpm><backend type='emulator'/></tpm></devices>", os)
    assert seen.has_uefi
    assert seen.has_secure_boot
    assert seen.has_tpm
    assert seen.files == ("/boot/vmlinuz",)
    assert not facts().has_uefi
