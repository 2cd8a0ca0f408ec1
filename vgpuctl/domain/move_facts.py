# SPDX-License-Identifier: Apache-2.0
"""What of a domain's XML decides whether it can move to another host: obstacles, and what it needs there.

What libvirt refuses is from its source: qemuMigrationSrcIsAllowed and qemuMigrationSrcIsSafe in qemu_migration.c.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from vgpuctl.domain.domain_xml import hostdev_carrier, parse_root
from vgpuctl.value import Value

if TYPE_CHECKING:
    from lxml import etree

_MACHINE_VERSION = re.compile(r"-([0-9]{1,3}\.[0-9]{1,3})$", re.ASCII)
_MACHINE_VENDOR = re.compile(r"-(rhel)[0-9.]+$|-(?:[0-9.]+-)?([a-z]{4,12})$", re.ASCII)


class MovingDisk(Value):
    """One disk of a domain. `kind`: as libvirt names where it is: file, block, network, volume, nvme, dir.

    `path`: a file or device; for a network disk its protocol and name. `is_optional`: the VM starts without the file.
    `is_declared_shared`: its definition says that several VMs may use it at once (`<shareable/>`).
    """

    device: str
    target: str
    kind: str
    path: str
    format: str | None = None
    volume: tuple[str, str] | None = None
    is_read_only: bool = False
    is_optional: bool = False
    is_declared_shared: bool = False
    is_transient: bool = False
    has_job: bool = False
    base: str | None = None


class MoveFacts(Value):
    """What a domain has. `machine_version`: the QEMU release of its machine type (8.2), None where it names none.

    `machine_vendor`: whose QEMU has the machine type (`rhel`, or the name of an Ubuntu release), None for any QEMU.
    `cpu_mode`: host-passthrough, host-model, custom, maximum; None: QEMU's default. `has_unscaled_tsc`: the feature
    invtsc without a frequency. `unaddressed_dimms`: memory modules without slot or base address. `peer_shmem`: the
    names of shared memories with another role than master. `file_systems`: directories of the host that the guest has
    mounted. `nic_carriers`: the host's devices that are network cards. `other_devices`: devices of the host that are
    neither PCI functions nor mdevs, in words. `interfaces`: interfaces of the host that network cards need. `files`:
    files other than disks that it needs. `has_gl`: QEMU draws for the guest with OpenGL. `needs_kvm`: the host's
    processor runs the guest, and QEMU does not emulate one.
    """

    arch: str
    machine: str
    machine_version: str | None = None
    machine_vendor: str | None = None
    cpu_mode: str | None = None
    cpu_model: str | None = None
    has_unscaled_tsc: bool = False
    unaddressed_dimms: int = 0
    peer_shmem: tuple[str, ...] = ()
    file_systems: tuple[str, ...] = ()
    nic_carriers: frozenset[str] = frozenset()
    other_devices: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    disks: tuple[MovingDisk, ...] = ()
    has_uefi: bool = False
    has_secure_boot: bool = False
    has_tpm: bool = False
    has_gl: bool = False
    needs_kvm: bool = False


def parse_move_facts(xml: str) -> MoveFacts:
    """Return what a domain's XML, live or inactive, says.

    Raises:
        LibvirtFailed: it is not a domain's XML.
    """
    root = parse_root(xml)
    kind, loader, cpu = root.find("os/type"), root.find("os/loader"), root.find("cpu")
    machine = _attribute(kind, "machine")
    version, vendor = _MACHINE_VERSION.search(machine), _MACHINE_VENDOR.search(machine)
    uefi = _attribute(root.find("os"), "firmware") == "efi" or _attribute(loader, "type") == "pflash"
    secure = root.find("os/firmware/feature[@name='secure-boot'][@enabled='yes']") is not None
    nics = root.findall("devices/interface")
    return MoveFacts(
        arch=_attribute(kind, "arch"),
        machine=machine,
        machine_version=None if version is None else version[1],
        machine_vendor=None if vendor is None or version is not None else vendor[1] or vendor[2],
        cpu_mode=_attribute(cpu, "mode") or (None if cpu is None else "custom"),
        cpu_model=None if cpu is None else (cpu.findtext("model") or "").strip() or None,
        has_unscaled_tsc=_has_unscaled_tsc(root),
        unaddressed_dimms=sum(_is_unaddressed(dimm) for dimm in root.iterfind("devices/memory[@model='dimm']")),
        peer_shmem=tuple(str(s.get("name")) for s in root.iterfind("devices/shmem") if s.get("role") != "master"),
        file_systems=tuple(_attribute(f.find("target"), "dir") for f in root.iterfind("devices/filesystem")),
        nic_carriers=frozenset(c for nic in nics if nic.get("type") == "hostdev" and (c := hostdev_carrier(nic))),
        other_devices=tuple(_name_other(h) for h in root.iterfind("devices/hostdev") if hostdev_carrier(h) is None),
        networks=_sources(nics, "network", "network"),
        interfaces=(*_sources(nics, "bridge", "bridge"), *_sources(nics, "direct", "dev")),
        files=_other_files(root),
        disks=tuple(_parse_disk(disk) for disk in root.iterfind("devices/disk")),
        has_uefi=uefi,
        has_secure_boot=secure or _attribute(loader, "secure") == "yes",
        has_tpm=root.find("devices/tpm/backend[@type='emulator']") is not None,
        has_gl=root.find("devices/video/model/acceleration[@accel3d='yes']") is not None,
        needs_kvm=root.get("type") == "kvm",
    )


def _attribute(element: etree._Element | None, name: str) -> str:
    return "" if element is None else str(element.get(name, ""))


def _has_unscaled_tsc(root: etree._Element) -> bool:
    required = root.find("cpu/feature[@name='invtsc'][@policy='require']") is not None
    return required and root.find("clock/timer[@name='tsc'][@frequency]") is None


def _is_unaddressed(dimm: etree._Element) -> bool:
    address = dimm.find("address")
    return address is None or address.get("slot") is None or address.get("base") is None


def _name_other(hostdev: etree._Element) -> str:
    kind = hostdev.get("type") or hostdev.get("mode") or "device"
    vendor, product = hostdev.find("source/vendor"), hostdev.find("source/product")
    adapter = hostdev.find("source/adapter")
    if vendor is not None and product is not None:
        return f"{kind} {_attribute(vendor, 'id')}:{_attribute(product, 'id')}"
    return f"{kind} {_attribute(adapter, 'name')}".strip()


def _sources(nics: list[etree._Element], kind: str, attribute: str) -> tuple[str, ...]:
    names = (_attribute(nic.find("source"), attribute) for nic in nics if nic.get("type") == kind)
    return tuple(dict.fromkeys(name for name in names if name))


def _other_files(root: etree._Element) -> tuple[str, ...]:
    """Return the kernel and its companions, which libvirt opens at the start; the firmware's are not named here.

    libvirt chooses the firmware of a domain with `firmware='efi'` again, so another host may have it elsewhere.
    """
    texts = (root.findtext(f"os/{tag}") for tag in ("kernel", "initrd", "dtb"))
    return tuple(posixpath.normpath(text.strip()) for text in texts if text and text.strip().startswith("/"))


def _parse_disk(disk: etree._Element) -> MovingDisk:
    source, driver = disk.find("source"), disk.find("driver")
    pool, volume = _attribute(source, "pool"), _attribute(source, "volume")
    path = next((text for name in ("file", "dev", "dir") if (text := _attribute(source, name))), "")
    if not path and source is not None and source.get("protocol"):
        path = f"{source.get('protocol')}:{source.get('name', '')}"
    base = disk.find("backingStore/source")
    device = str(disk.get("device", "disk"))
    return MovingDisk(
        device=device,
        target=_attribute(disk.find("target"), "dev"),
        kind=str(disk.get("type", "file")),
        path=path,
        format=_attribute(driver, "type") or None,
        volume=(pool, volume) if pool and volume else None,
        is_read_only=disk.find("readonly") is not None or device == "cdrom",
        is_optional=_attribute(source, "startupPolicy") in ("optional", "requisite"),
        is_declared_shared=disk.find("shareable") is not None,
        is_transient=disk.find("transient") is not None,
        has_job=disk.find("mirror") is not None,
        base=next((text for name in ("file", "dev") if (text := _attribute(base, name))), None),
    )
