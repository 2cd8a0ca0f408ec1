# SPDX-License-Identifier: Apache-2.0
"""A domain's XML, as libvirt gives it, becomes a `Vm`. One pass over the tree: every listing reads every domain.

Host devices are looked for wherever a domain can hold one: `<hostdev>`, a `<interface type='hostdev'>` (a
VF as network card) and a `<disk type='nvme'>`: each keeps a PCI function from everybody else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lxml import etree

from vgpuctl.domain.record import ROOT_TAG, named_files, promise_of
from vgpuctl.domain.sources import sources_of
from vgpuctl.errors import LibvirtFailed
from vgpuctl.model.digits import whole
from vgpuctl.model.vm import DiskRef, HostdevRef, Promise, Vm, VmState

_UNIT_BYTES = {
    "b": 1, "bytes": 1,
    "kb": 1000, "k": 1024, "kib": 1024,
    "mb": 1000**2, "m": 1024**2, "mib": 1024**2,
    "gb": 1000**3, "g": 1024**3, "gib": 1024**3,
    "tb": 1000**4, "t": 1024**4, "tib": 1024**4,
    "pb": 1000**5, "p": 1024**5, "pib": 1024**5,
    "eb": 1000**6, "e": 1024**6, "eib": 1024**6,
}  # fmt: skip
"""libvirt's scaled integers (docs, formatdomain, "memory"): KiB without a unit, KB is 1000 bytes."""

_MIB = 1024**2
_MOST_NODES = 1024
_NODES = re.compile(r"(?P<without>\^)?(?P<first>[0-9]{1,4})(-(?P<last>[0-9]{1,4}))?", re.ASCII)


_SOURCE = re.compile(r"<source[^>]*>\s*<address [^>]*>")

_PARSER = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True)


def parse(xml: str, state: VmState, machine_id: str) -> Vm:
    """Read a domain's inactive XML.

    The promise is the VM's own only if it names this domain and this host; otherwise it is a copy that was
    cloned or restored here. One that is there but cannot be understood is no promise, and not lost either: a newer
    vgpuctl may have written it.

    Raises:
        LibvirtFailed: it is not a domain's XML.
    """
    top = _children(root_of(xml))
    uuid = _text(top.get("uuid")).strip().lower()
    promise, unreadable = _promise(top.get("metadata"))
    own = promise is not None and promise.vm_uuid == uuid and promise.machine_id == machine_id
    devices = top.get("devices")
    interfaces = [] if devices is None else [(i.get("type"), _children(i)) for i in devices.iterchildren("interface")]
    macs = (parts["mac"].get("address") for _, parts in interfaces if "mac" in parts)
    sources = (p["source"].get("network") for kind, p in interfaces if kind == "network" and "source" in p)
    return Vm(
        name=_text(top.get("name")),
        uuid=uuid,
        state=state,
        memory_mib=_memory_mib(top.get("memory")),
        vcpus=_whole(_text(top.get("vcpu")), 1),
        hostdevs=tuple(_hostdevs(devices)),
        disks=tuple(_disks(devices)),
        networks=tuple(str(name) for name in sources if name is not None),
        mac_addresses=tuple(str(mac).lower() for mac in macs if mac is not None),
        firmware=_firmware(top.get("os")),
        memory_nodes=_memory_nodes(top.get("numatune")),
        promise=promise if own else None,
        copied_promise=None if own else promise,
        unreadable_promise=unreadable is not None,
        unreadable_disks=() if unreadable is None else named_files(unreadable),
        backing=sources_of(xml).backing if "<backingStore " in xml else (),
    )


def _memory_nodes(numatune: etree._Element | None) -> frozenset[int]:
    """Return the NUMA nodes outside which a VM's memory may not be (libvirt's formatdomain, "numatune"); none: any.

    `preferred` and `interleave` bind nothing. A nodeset is as in `0-3,^2`.
    """
    memory = None if numatune is None else numatune.find("memory")
    if memory is None or memory.get("mode", "strict") not in ("strict", "restrictive"):
        return frozenset()
    found: set[int] = set()
    for part in (memory.get("nodeset") or "").split(","):
        match = _NODES.fullmatch(part.strip())
        if match is not None:
            first, last = int(match["first"]), int(match["last"] or match["first"])
            nodes = set(range(first, min(last, _MOST_NODES) + 1))
            found = found - nodes if match["without"] else found | nodes
    return frozenset(found)


def run_of(live_xml: str) -> str | None:
    """Return the id that libvirt gave a domain when it was started (virDomainGetID); each start gives another one."""
    return root_of(live_xml).get("id")


def hostdevs_of(xml: str) -> tuple[HostdevRef, ...]:
    """Return the host devices of a domain's XML; for the live XML of a running domain."""
    return tuple(_hostdevs(root_of(xml).find("devices")))


def refers_to_more(live_xml: str, config_xml: str) -> bool:
    """Say whether the running domain may refer to a host device that its config lacks.

    Compares the sources' text, which libvirt writes alike in both; a difference may turn out to be none.
    """
    return not all(source in config_xml for source in _SOURCE.findall(live_xml))


def hostdev_carrier(entry: etree._Element) -> str | None:
    """Return the carrier of a `<hostdev>` element; None when it is no mdev or PCI function."""
    address = entry.find("source/address")
    return None if address is None else _carrier(address)


def has_console(xml: str) -> bool:
    """Say whether a domain has a serial console on a pseudo-terminal."""
    devices = root_of(xml).find("devices")
    return devices is not None and any(
        entry.get("type") == "pty" for tag in ("console", "serial") for entry in devices.iterchildren(tag)
    )


def lost_of_windows(xml: str) -> tuple[str, ...]:
    """Return what a domain lacks that Windows 11 does not start without, a sentence each.

    libvirt writes secure boot as the firmware's feature that was asked for, or as a secure loader once it chose one.
    """
    root = root_of(xml)
    asked = root.find("os/firmware/feature[@name='secure-boot'][@enabled='yes']") is not None
    secure = asked or root.find("os/loader[@secure='yes']") is not None
    emulated = root.find("devices/tpm/backend[@type='emulator']") is not None
    found = () if secure else ("secure boot is not on",)
    return found if emulated else (*found, "the TPM is not there")


def root_of(xml: str) -> etree._Element:
    """Return the root element of a domain's XML, or raise LibvirtFailed."""
    try:
        root = etree.fromstring(xml, _PARSER)
    except (etree.XMLSyntaxError, ValueError) as exc:
        raise LibvirtFailed(f"a domain's XML cannot be read: {exc}") from exc
    if root.tag != "domain":
        raise LibvirtFailed(f"a domain's XML starts with <{root.tag}>, not <domain>")
    return root


def _child(element: etree._Element, tag: str) -> etree._Element | None:
    """Return the first child of that tag; find() takes twice as long, and every listing asks thousands of times."""
    return next(element.iterchildren(tag), None)


def _children(element: etree._Element) -> dict[str, etree._Element]:
    """Return the first child of each tag; asking for one after the other takes longer."""
    found: dict[str, etree._Element] = {}
    for child in element:
        found.setdefault(str(child.tag), child)
    return found


def _text(element: etree._Element | None) -> str:
    return "" if element is None else element.text or ""


def _promise(metadata: etree._Element | None) -> tuple[Promise | None, etree._Element | None]:
    """Return the record, or the element of one that cannot be understood."""
    record = None if metadata is None else _child(metadata, ROOT_TAG)
    try:
        return (None if record is None else promise_of(record)), None
    except ValueError:
        return None, record


def _hostdevs(devices: etree._Element | None) -> Iterator[HostdevRef]:
    for entry in () if devices is None else devices.iterchildren("hostdev", "interface", "disk"):
        tag, kind = entry.tag, entry.get("type")
        if tag != "hostdev" and kind != ("hostdev" if tag == "interface" else "nvme"):
            continue
        source = _child(entry, "source")
        address = None if source is None else _child(source, "address")
        carrier = None if address is None else _carrier(address)
        if source is None or carrier is None:
            continue
        managed = (source if tag == "disk" else entry).get("managed") == "yes"
        alias = _child(entry, "alias")
        name = None if alias is None else alias.get("name")
        mdev = tag == "hostdev" and kind == "mdev"
        yield HostdevRef("mdev" if mdev else "pci", carrier, managed, None if name is None else str(name))


def _carrier(address: etree._Element) -> str | None:
    uuid = address.get("uuid")
    if uuid is not None:
        return str(uuid).strip().lower()
    if address.get("slot") is None or address.get("bus") is None or address.get("type") not in (None, "pci"):
        return None
    parts = [whole(str(address.get(key, "0"))) for key in ("domain", "bus", "slot", "function")]
    if None in parts:
        return None
    return f"{parts[0]:04x}:{parts[1]:02x}:{parts[2]:02x}.{parts[3]:x}"


def _disks(devices: etree._Element | None) -> Iterator[DiskRef]:
    for entry in () if devices is None else devices.iterchildren("disk"):
        parts = _children(entry)
        source, driver, target = parts.get("source"), parts.get("driver"), parts.get("target")
        path = None
        if source is not None:
            path = source.get("file") or source.get("dev") or source.get("dir")
        kind = None if driver is None else driver.get("type")
        yield DiskRef(
            device=str(entry.get("device", "disk")),
            target="" if target is None else str(target.get("dev", "")),
            source=None if path is None else str(path),
            format=None if kind is None else str(kind),
            volume=_volume(source),
        )


def _volume(source: etree._Element | None) -> tuple[str, str] | None:
    pool, name = (None, None) if source is None else (source.get("pool"), source.get("volume"))
    return (str(pool), str(name)) if pool and name else None


def _memory_mib(element: etree._Element | None) -> int:
    if element is None:
        return 0
    unit = _UNIT_BYTES.get(str(element.get("unit", "KiB")).lower(), 1024)
    return _whole(element.text, 0) * unit // _MIB


def _whole(text: str | None, otherwise: int) -> int:
    number = whole(text or "")
    return otherwise if number is None or number < 0 else number


def _firmware(element: etree._Element | None) -> str:
    if element is None:
        return "bios"
    loader = _child(element, "loader")
    flash = loader is not None and loader.get("type") == "pflash"
    return "uefi" if element.get("firmware") == "efi" or flash else "bios"
