# SPDX-License-Identifier: Apache-2.0
"""Change the XML of an existing domain: what the request says, and nothing else.

An admin may have changed anything by hand; all of it stays, even the guest's PCI address when a device is replaced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.domain.device_edit import (
    fit_pins,
    set_display,
    set_driver_disc,
    set_nics,
    set_pci_window,
    set_pins,
    show_first_vgpu,
)
from vgpuctl.domain.domain_xml import hostdev_carrier, parse_root
from vgpuctl.domain.record import ROOT_TAG, record_to_xml
from vgpuctl.domain.settings import SETTINGS
from vgpuctl.errors import Refused
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.request import DesignHostdev
from vgpuctl.model.vm import Nic, VmRecord
from vgpuctl.value import EMPTY_MAPPING, Value

if TYPE_CHECKING:
    from lxml import etree

_PCI_FIELDS = (("domain", 0, 4), ("bus", 5, 7), ("slot", 8, 10), ("function", 11, 12))


class DomainEdit(Value):
    """The changes: None and empty mean unchanged.

    `hostdev_changes` holds (current carrier, device in its place): None as carrier adds the device, None as device
    removes the carrier's device. `disk_change`: (current file or block device, one of the same kind and format in its
    place). `nics`: every network card; one without a model is new with `nic_model`, or keeps its own. `settings`: by
    field, as `domain.settings` has them. `pins`: the only CPUs, and the NUMA nodes of the memory; both empty for any.
    `display`: whether the first vGPU's screen is in the console; `display_needs_gl`: then with OpenGL. `pci_window`:
    its size in MiB, and whether the guest's addresses get the host's width. `driver_disc`: the disc with the guest's
    driver, "" for none. `render_node`: the device node by which QEMU draws for the guest, in place of the current one.
    """

    memory_mib: int | None = None
    vcpus: int | None = None
    nics: tuple[Nic, ...] | None = None
    nic_model: str = "virtio"
    settings: Mapping[str, str] = EMPTY_MAPPING
    pins: tuple[str, str] | None = None
    display: bool | None = None
    display_needs_gl: bool = False
    disk_change: tuple[str, str] | None = None
    pci_window: tuple[int, bool] | None = None
    driver_disc: str | None = None
    hostdev_changes: tuple[tuple[str | None, DesignHostdev | None], ...] = ()
    render_node: str | None = None
    record: VmRecord | None = None


class RootPorts(Value):
    """The root ports of a domain: how many there are, and how many have no device behind them."""

    free: int
    total: int


def hostdev_xml(device: DesignHostdev, *, indented: bool = False) -> str:
    """Return the element that gives a host device to a domain; `indented` for people. An empty alias is omitted."""
    from lxml import etree

    element = _hostdev_element(device)
    if indented:
        etree.indent(element)
    return etree.tostring(element, encoding="unicode")


def edit_domain(xml: str, edit: DomainEdit) -> str:
    """Return a domain's XML with these changes.

    Raises:
        LibvirtFailed: it is not a domain's XML.
        Refused: it lacks something that has to change.
    """
    from lxml import etree

    root = parse_root(xml, keep_comments=True)
    if edit.memory_mib is not None:
        _set_memory(root, edit.memory_mib)
    if edit.vcpus is not None:
        _set_vcpus(root, edit.vcpus)
    _change_guest(root, edit)
    if edit.disk_change is not None:
        _replace_disk(root, *edit.disk_change)
    if edit.driver_disc is not None:
        set_driver_disc(root, edit.driver_disc)
    _change_hostdevs(root, edit.hostdev_changes)
    if edit.display is not None:
        set_display(root, shown=edit.display, needs_gl=edit.display_needs_gl)
    if edit.render_node is not None:
        for gl in root.iterfind("devices/graphics/gl[@rendernode]"):
            gl.set("rendernode", edit.render_node)
    if edit.record is not None:
        _set_record(root, edit.record)
    return etree.tostring(root, encoding="unicode")


def with_next_generation(xml: str) -> str:
    """Return a definition with the next generation in the VM's own record; without one, as it is."""
    from lxml import etree

    root = parse_root(xml, keep_comments=True)
    uuid = (root.findtext("uuid") or "").strip().lower()
    own = [element for element in root.iterfind(f"metadata/{ROOT_TAG}") if element.get("vm-uuid") == uuid]
    for element in own:
        element.set("generation", str((parse_integer(element.get("generation", "0")) or 0) + 1))
    return etree.tostring(root, encoding="unicode") if own else xml


def _change_guest(root: etree._Element, edit: DomainEdit) -> None:
    """Change what a guest has beside disks and vGPUs."""
    if edit.nics is not None:
        set_nics(root, edit.nics, edit.nic_model)
    for field, value in edit.settings.items():
        SETTINGS[field].write(root, value)
    if edit.pins is not None:
        set_pins(root, *edit.pins)
    if edit.pci_window is not None:
        set_pci_window(root, *edit.pci_window)


def pci_window_of(xml: str) -> int | None:
    """Return the window for a domain's PCI devices above 4 GiB in MiB; None where the definition names none."""
    size = parse_root(xml, keep_comments=True).find("devices/controller[@model='pcie-root']/pcihole64")
    number = parse_integer(size.text or "") if size is not None else None
    return None if number is None else number >> 10  # libvirt writes KiB


def count_root_ports(xml: str) -> RootPorts:
    """Count the root ports of a domain by the addresses of its devices; for the live XML of a running domain.

    Hot-plugging a PCI Express device needs a free root port: the root bus does not support hotplug.
    """
    root = parse_root(xml, keep_comments=True)
    indexes = {controller.get("index") for controller in root.iterfind("devices/controller[@model='pcie-root-port']")}
    used = {str(int(address.get("bus", "0"), 0)) for address in root.iterfind("devices/*/address[@type='pci']")}
    return RootPorts(len(indexes - used), len(indexes))


def _require_element(root: etree._Element, path: str) -> etree._Element:
    element = root.find(path)
    if element is None:
        raise Refused(
            f"the definition of {root.findtext('name')} has no {path} to change",
            hint=f"change it with virsh edit {root.findtext('name')}",
        )
    return element


def _set_memory(root: etree._Element, mib: int) -> None:
    memory = _require_element(root, "memory")
    memory.text = str(mib)
    memory.set("unit", "MiB")
    current = root.find("currentMemory")
    if current is not None:
        root.remove(current)


def _set_vcpus(root: etree._Element, count: int) -> None:
    """Change the number.

    A topology gets other cores: libvirt requires its product to be that number (tried: code 67).
    """
    vcpu = _require_element(root, "vcpu")
    vcpu.text = str(count)
    if "current" in vcpu.attrib:
        del vcpu.attrib["current"]
    fit_pins(root, count)
    topology = root.find("cpu/topology")
    if topology is None:
        return
    sizes = {str(level): int(size) for level, size in topology.attrib.items()}
    other_levels = math.prod(size for level, size in sizes.items() if level != "cores")
    if count % other_levels:
        topology_text = " ".join(f"{level}={size}" for level, size in sizes.items())
        raise Refused(
            f"{count} vCPUs do not match the CPU topology of {root.findtext('name')}: {topology_text}",
            hint=f"--vcpus with a multiple of {other_levels}, or change the topology with "
            f"virsh edit {root.findtext('name')}",
            vcpus=count,
        )
    topology.set("cores", str(count // other_levels))


def _replace_disk(root: etree._Element, current: str, replacement: str) -> None:
    """Replace the file; a chain below it in the XML belongs to the old file and is removed."""
    for disk in root.iterfind("devices/disk"):
        source = disk.find("source")
        kind = next((k for k in ("file", "dev") if source is not None and source.get(k) == current), None)
        if source is not None and kind is not None:
            source.set(kind, replacement)
            for chain in disk.findall("backingStore"):
                disk.remove(chain)
            return
    raise Refused(f"the definition of {root.findtext('name')} does not refer to {current}", disk=current)


def _change_hostdevs(root: etree._Element, changes: tuple[tuple[str | None, DesignHostdev | None], ...]) -> None:
    """Replace, add and remove host devices; all current ones are found before the first change."""
    current_hostdevs = [None if carrier is None else _require_hostdev(root, carrier) for carrier, _ in changes]
    for current, (_, device) in zip(current_hostdevs, changes, strict=True):
        _replace_hostdev(root, current, device)


def _require_hostdev(root: etree._Element, carrier: str) -> etree._Element:
    devices = _require_element(root, "devices")
    old = next((d for d in devices.iterchildren("hostdev") if hostdev_carrier(d) == carrier), None)
    if old is None:
        raise Refused(f"the definition of {root.findtext('name')} does not refer to {carrier}", carrier=carrier)
    return old


def _replace_hostdev(root: etree._Element, old: etree._Element | None, device: DesignHostdev | None) -> None:
    devices = _require_element(root, "devices")
    fresh = None if device is None else _hostdev_element(device)
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


def _hostdev_element(device: DesignHostdev) -> etree._Element:
    from lxml import etree

    mdev = device.kind == "mdev"
    root = etree.Element("hostdev", {"mode": "subsystem", "type": device.kind})
    if mdev:
        root.set("model", "vfio-pci")
    root.set("managed", "yes" if device.managed else "no")
    if device.display:
        show_first_vgpu(root)
    address = etree.SubElement(etree.SubElement(root, "source"), "address")
    if mdev:
        address.set("uuid", device.carrier)
    for name, start, end in () if mdev else _PCI_FIELDS:
        address.set(name, f"0x{device.carrier[start:end]}")
    if device.alias:
        etree.SubElement(root, "alias").set("name", device.alias)
    return root


def _set_record(root: etree._Element, record: VmRecord) -> None:
    from lxml import etree

    metadata = root.find("metadata")
    if metadata is None:
        metadata = etree.Element("metadata")
        root.insert(0, metadata)
    for old in metadata.findall(ROOT_TAG):
        metadata.remove(old)
    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    metadata.append(etree.fromstring(record_to_xml(record), parser))
