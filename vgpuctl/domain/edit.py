# SPDX-License-Identifier: Apache-2.0
"""Changing the XML of a domain that exists: what is asked for, and nothing beside it.

An admin may have changed anything by hand; all of it stays, also the guest's PCI address of a device that is exchanged
for another.
"""

from __future__ import annotations

import math

from lxml import etree

from vgpuctl.domain.metadata import ROOT_TAG, promise_to_xml
from vgpuctl.domain.parse import hostdev_carrier
from vgpuctl.errors import LibvirtFailed, Refused
from vgpuctl.model.vm import Promise
from vgpuctl.model.wish import DesignHostdev
from vgpuctl.value import Value

_PARSER = etree.XMLParser(resolve_entities=False, no_network=True)
_PCI = (("domain", 0, 4), ("bus", 5, 7), ("slot", 8, 10), ("function", 11, 12))


class Edit(Value):
    """What changes: None and empty are what stays.

    `exchange` holds (carrier there now, device in its place): no carrier adds the device, no device takes the carrier's
    away. `network`: of the first network card that has one. `disk`: (file there now, qcow2 file in its place).
    """

    memory_mib: int | None = None
    vcpus: int | None = None
    network: str | None = None
    disk: tuple[str, str] | None = None
    exchange: tuple[tuple[str | None, DesignHostdev | None], ...] = ()
    promise: Promise | None = None


class Ports(Value):
    """The root ports of a domain: how many there are, and how many have no device behind them."""

    free: int
    total: int


def hostdev_xml(device: DesignHostdev, *, indented: bool = False) -> str:
    """Return the element that gives a host device to a domain; `indented` for people. An empty alias is left out."""
    element = _hostdev(device)
    if indented:
        etree.indent(element)
    return etree.tostring(element, encoding="unicode")


def edited(xml: str, edit: Edit) -> str:
    """Return a domain's XML with this changed.

    Raises:
        LibvirtFailed: it is not a domain's XML.
        Refused: it lacks what is to be changed.
    """
    root = _root(xml)
    if edit.memory_mib is not None:
        _memory(root, edit.memory_mib)
    if edit.vcpus is not None:
        _vcpus(root, edit.vcpus)
    if edit.network is not None:
        _needed(root, "devices/interface[@type='network']/source[@network]").set("network", edit.network)
    if edit.disk is not None:
        _disk(root, *edit.disk)
    olds = [None if carrier is None else _referring(root, carrier) for carrier, _ in edit.exchange]
    for old, (_, device) in zip(olds, edit.exchange, strict=True):
        _exchange(root, old, device)
    if edit.promise is not None:
        _record(root, edit.promise)
    return etree.tostring(root, encoding="unicode")


def ports(xml: str) -> Ports:
    """Count the root ports of a domain by the addresses of its devices; for the live XML of a running one.

    A PCI Express device that is plugged in while the guest runs needs a free one: the root bus takes none.
    """
    root = _root(xml)
    there = {c.get("index") for c in root.iterfind("devices/controller[@model='pcie-root-port']")}
    used = {str(int(a.get("bus", "0"), 0)) for a in root.iterfind("devices/*/address[@type='pci']")}
    return Ports(len(there - used), len(there))


def _root(xml: str) -> etree._Element:
    try:
        root = etree.fromstring(xml, _PARSER)
    except (etree.XMLSyntaxError, ValueError) as exc:
        raise LibvirtFailed(f"a domain's XML cannot be read: {exc}") from exc
    return root


def _needed(root: etree._Element, path: str) -> etree._Element:
    found = root.find(path)
    if found is None:
        raise Refused(
            f"the definition of {root.findtext('name')} has no {path} that could be changed",
            hint=f"change it with virsh edit {root.findtext('name')}",
        )
    return found


def _memory(root: etree._Element, mib: int) -> None:
    memory = _needed(root, "memory")
    memory.text = str(mib)
    memory.set("unit", "MiB")
    current = root.find("currentMemory")
    if current is not None:
        root.remove(current)


def _vcpus(root: etree._Element, count: int) -> None:
    """Change the number. A topology gets other cores: libvirt wants its product to be that number (tried: code 67)."""
    vcpu = _needed(root, "vcpu")
    vcpu.text = str(count)
    if "current" in vcpu.attrib:
        del vcpu.attrib["current"]
    topology = root.find("cpu/topology")
    if topology is None:
        return
    sizes = {str(level): int(size) for level, size in topology.attrib.items()}
    others = math.prod(size for level, size in sizes.items() if level != "cores")
    if count % others:
        words = " ".join(f"{level}={size}" for level, size in sizes.items())
        raise Refused(
            f"{count} vCPUs do not fit the CPU topology of {root.findtext('name')}: {words}",
            hint=f"--vcpus with a multiple of {others}, or change the topology with virsh edit {root.findtext('name')}",
            vcpus=count,
        )
    topology.set("cores", str(count // others))


def _disk(root: etree._Element, there: str, instead: str) -> None:
    """Exchange the file; a chain that somebody wrote below it is the former file's."""
    for disk in root.iterfind("devices/disk"):
        source = disk.find("source")
        if source is not None and source.get("file") == there:
            source.set("file", instead)
            for chain in disk.findall("backingStore"):
                disk.remove(chain)
            return
    raise Refused(f"the definition of {root.findtext('name')} does not refer to {there}", disk=there)


def _referring(root: etree._Element, carrier: str) -> etree._Element:
    devices = _needed(root, "devices")
    old = next((d for d in devices.iterchildren("hostdev") if hostdev_carrier(d) == carrier), None)
    if old is None:
        raise Refused(f"the definition of {root.findtext('name')} does not refer to {carrier}", carrier=carrier)
    return old


def _exchange(root: etree._Element, old: etree._Element | None, device: DesignHostdev | None) -> None:
    devices = _needed(root, "devices")
    fresh = None if device is None else _hostdev(device)
    if old is None:
        if fresh is not None:
            devices.append(fresh)
        return
    if fresh is None:
        devices.remove(old)
        return
    for child in old if old.get("type") == fresh.get("type") else old.findall("address"):
        if child.tag not in ("source", "alias"):
            fresh.append(child)
    for name, value in old.attrib.items():
        if old.get("type") == fresh.get("type") and name not in fresh.attrib:
            fresh.set(name, value)
    fresh.tail = old.tail
    devices.replace(old, fresh)


def _hostdev(device: DesignHostdev) -> etree._Element:
    mdev = device.kind == "mdev"
    root = etree.Element("hostdev", {"mode": "subsystem", "type": device.kind})
    if mdev:
        root.set("model", "vfio-pci")
    root.set("managed", "yes" if device.managed else "no")
    address = etree.SubElement(etree.SubElement(root, "source"), "address")
    if mdev:
        address.set("uuid", device.carrier)
    for name, start, end in () if mdev else _PCI:
        address.set(name, f"0x{device.carrier[start:end]}")
    if device.alias:
        etree.SubElement(root, "alias").set("name", device.alias)
    return root


def _record(root: etree._Element, promise: Promise) -> None:
    metadata = root.find("metadata")
    if metadata is None:
        metadata = etree.Element("metadata")
        root.insert(0, metadata)
    for old in metadata.findall(ROOT_TAG):
        metadata.remove(old)
    metadata.append(etree.fromstring(promise_to_xml(promise), _PARSER))
