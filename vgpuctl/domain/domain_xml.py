# SPDX-License-Identifier: Apache-2.0
"""Parse a domain's XML, as libvirt returns it: into a `Vm`, in one pass, because every listing reads every domain.

It is parsed without entities and without network access. The files that a domain names as disks have their backing
images where libvirt writes the chain: the live XML of a running domain has the whole chain (`<backingStore>`) and the
target of a running copy (`<mirror>`); the config XML usually has only the top image.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator
from functools import cache
from typing import TYPE_CHECKING

from vgpuctl.domain.record import (
    ROOT_TAG,
    UnfinishedExchange,
    carrier_of,
    find_hostdevs,
    find_named_files,
    parse_record,
)
from vgpuctl.domain.settings import SETTINGS, scaled_bytes
from vgpuctl.errors import LibvirtFailed
from vgpuctl.model.numbers import parse_integer, parse_ranges
from vgpuctl.model.vm import DiskRef, HostdevRef, Nic, Vm, VmRecord, VmState
from vgpuctl.value import Value

if TYPE_CHECKING:
    from lxml import etree

_MAX_NODES = 1024
_MAX_CPUS = 8192
_DEVICE_NODE = re.compile(r"/+dev/[A-Za-z0-9_.:/+-]{1,200}", re.ASCII)
_ADDRESS_SOURCE = re.compile(r"<source[^>]*>\s*<address [^>]*>")
_BACKING_SOURCE = re.compile(r"<backingStore\s[^>]*>.*?<source\s(?:file|dev)='([^']*)'", re.DOTALL)


def parse_root(xml: str, *, keep_comments: bool = False) -> etree._Element:
    """Return the root element. `keep_comments`: keep an admin's comments, for XML that is written back.

    Raises:
        LibvirtFailed: it is not a domain's XML.
    """
    from lxml import etree

    try:
        root = etree.fromstring(xml, _parser(keep_comments=keep_comments))
    except (etree.XMLSyntaxError, ValueError) as exc:
        raise LibvirtFailed(f"a domain's XML cannot be read: {exc}") from exc
    if root.tag != "domain":
        raise LibvirtFailed(f"a domain's XML starts with <{root.tag}>, not <domain>")
    return root


@cache
def _parser(*, keep_comments: bool) -> etree.XMLParser:
    from lxml import etree

    return etree.XMLParser(
        resolve_entities=False, no_network=True, remove_comments=not keep_comments, remove_pis=not keep_comments
    )


def parse_domain(xml: str, state: VmState, machine_id: str) -> Vm:
    """Read a domain's inactive XML.

    The record is the VM's own only if it names this domain and this host; otherwise it is a copy from a clone or a
    restored dump. An existing record that cannot be parsed gives no record, but is not lost either: a newer vgpuctl may
    have written it.

    Raises:
        LibvirtFailed: it is not a domain's XML.
    """
    root = parse_root(xml)
    top = _first_children(root)
    uuid = _text(top.get("uuid")).strip().lower()
    element, record, problem = _parse_record(top.get("metadata"))
    is_own = record is not None and record.vm_uuid == uuid and record.machine_id == machine_id
    devices = top.get("devices")
    return Vm(
        name=_text(top.get("name")),
        uuid=uuid,
        state=state,
        memory_mib=_parse_memory_mib(top.get("memory")),
        vcpus=_parse_count(_text(top.get("vcpu")), 1),
        hostdevs=find_hostdevs(root),
        disks=tuple(_iterate_disks(devices)),
        nics=() if devices is None else tuple(parse_nic(entry) for entry in devices.iterchildren("interface")),
        firmware=_parse_firmware(top.get("os")),
        memory_nodes=_parse_memory_nodes(top.get("numatune")),
        pinned_cpus=_parse_pinned_cpus(top.get("cputune"), top.get("vcpu")),
        settings=tuple((name, setting.read(top)) for name, setting in SETTINGS.items()),
        record=record if is_own else None,
        copied_record=None if is_own else record,
        has_unreadable_record=problem is not None,
        has_unfinished_exchange=isinstance(problem, UnfinishedExchange),
        unreadable_disks=() if element is None or problem is None else find_named_files(element),
        backing_pairs=parse_disk_sources(xml).backing_pairs if "<backingStore " in xml else (),
        render_node=_parse_render_node(devices) if " rendernode=" in xml and devices is not None else None,
    )


def _parse_render_node(devices: etree._Element) -> str | None:
    """Return the node by which QEMU draws for the guest: that of a screen, if a video card has acceleration.

    Any other text than a path in /dev is none: QEMU would not start with it.
    """
    if devices.find("video/model/acceleration[@accel3d='yes']") is None:
        return None
    nodes = (str(gl.get("rendernode", "")) for gl in devices.iterfind("graphics/gl"))
    return next((posixpath.normpath(node) for node in nodes if _DEVICE_NODE.fullmatch(node)), None)


def _parse_memory_nodes(numatune: etree._Element | None) -> frozenset[int]:
    """Return the NUMA nodes to which a VM's memory is bound (libvirt's formatdomain, "numatune"); empty: not bound.

    `preferred` and `interleave` bind nothing. A nodeset has the form `0-3,^2`.
    """
    memory = None if numatune is None else numatune.find("memory")
    if memory is None or memory.get("mode", "strict") not in ("strict", "restrictive"):
        return frozenset()
    return parse_ranges(memory.get("nodeset") or "", _MAX_NODES + 1)


def _parse_pinned_cpus(tune: etree._Element | None, vcpu: etree._Element | None) -> frozenset[int]:
    """Return the CPUs that a VM's vCPUs may run on (formatdomain, "vcpupin"); empty: any."""
    pins = [] if tune is None else [str(pin.get("cpuset", "")) for pin in tune.iterchildren("vcpupin")]
    if not pins and vcpu is not None:
        pins = [str(vcpu.get("cpuset", ""))]
    return frozenset().union(*(parse_ranges(pin, _MAX_CPUS) for pin in set(pins)))


def parse_nic(interface: etree._Element) -> Nic:
    """Return a network card of a domain."""
    parts = _first_children(interface)
    source, kind = parts.get("source"), interface.get("type")
    tag = parts["vlan"].find("tag") if "vlan" in parts else None
    vlan = None if tag is None else parse_integer(str(tag.get("id")))
    mac = parts["mac"].get("address") if "mac" in parts else None
    return Nic(
        network=source.get("network") if source is not None and kind == "network" else None,
        bridge=source.get("bridge") if source is not None and kind == "bridge" else None,
        vlan=vlan,
        model=parts["model"].get("type") if "model" in parts else None,
        mac=None if mac is None else str(mac).lower(),
    )


def parse_domain_id(live_xml: str) -> str | None:
    """Return the id that libvirt gives a domain at its start (virDomainGetID); each start gives another one."""
    return parse_root(live_xml).get("id")


def parse_hostdevs(xml: str) -> tuple[HostdevRef, ...]:
    """Return the host devices of a domain's XML; for the live XML of a running domain."""
    return find_hostdevs(parse_root(xml))


def names_other_devices(live_xml: str, config_xml: str) -> bool:
    """Return whether the running domain may name other devices of the host than its config.

    Compares the texts of the sources, which libvirt writes alike in both; a difference may turn out to be none.
    """
    return sorted(_ADDRESS_SOURCE.findall(live_xml)) != sorted(_ADDRESS_SOURCE.findall(config_xml))


def hostdev_carrier(entry: etree._Element) -> str | None:
    """Return the carrier of a `<hostdev>` element; None when it is no mdev or PCI function."""
    address = entry.find("source/address")
    return None if address is None else carrier_of(address)


def has_serial_console(xml: str) -> bool:
    """Return whether a domain has a serial console on a pseudo-terminal."""
    devices = parse_root(xml).find("devices")
    return devices is not None and any(
        entry.get("type") == "pty" for tag in ("console", "serial") for entry in devices.iterchildren(tag)
    )


def has_no_video(xml: str) -> bool:
    """Return whether a domain has no video card, because a vGPU shows its screen."""
    return parse_root(xml).find("devices/video/model[@type='none']") is not None


def missing_windows_features(xml: str) -> tuple[str, ...]:
    """Return what a domain lacks that Windows 11 needs to start, a sentence each.

    libvirt writes secure boot as the requested firmware feature, or as a secure loader after it has chosen one.
    """
    root = parse_root(xml)
    requested = root.find("os/firmware/feature[@name='secure-boot'][@enabled='yes']") is not None
    secure = requested or root.find("os/loader[@secure='yes']") is not None
    emulated = root.find("devices/tpm/backend[@type='emulator']") is not None
    missing = () if secure else ("secure boot is not on",)
    return missing if emulated else (*missing, "the TPM is missing")


def _first_child(element: etree._Element, tag: str) -> etree._Element | None:
    """Return the first child of that tag; find() takes twice as long, and every listing calls it thousands of times."""
    return next(element.iterchildren(tag), None)


def _first_children(element: etree._Element) -> dict[str, etree._Element]:
    """Return the first child of each tag; a lookup for each tag takes longer."""
    children: dict[str, etree._Element] = {}
    for child in element:
        children.setdefault(str(child.tag), child)
    return children


def _text(element: etree._Element | None) -> str:
    return "" if element is None else element.text or ""


def _parse_record(
    metadata: etree._Element | None,
) -> tuple[etree._Element | None, VmRecord | None, ValueError | None]:
    """Return the record's element with the record, or with the reason why it cannot be read."""
    element = None if metadata is None else _first_child(metadata, ROOT_TAG)
    try:
        return element, None if element is None else parse_record(element), None
    except ValueError as error:
        return element, None, error


def _iterate_disks(devices: etree._Element | None) -> Iterator[DiskRef]:
    for entry in () if devices is None else devices.iterchildren("disk"):
        parts = _first_children(entry)
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
            volume=_parse_volume(source),
        )


def _parse_volume(source: etree._Element | None) -> tuple[str, str] | None:
    pool, name = (None, None) if source is None else (source.get("pool"), source.get("volume"))
    return (str(pool), str(name)) if pool and name else None


def _parse_memory_mib(element: etree._Element | None) -> int:
    if element is None:
        return 0
    return scaled_bytes(element.text, element.get("unit")) >> 20


def _parse_count(text: str | None, default: int) -> int:
    number = parse_integer(text or "")
    return default if number is None or number < 0 else number


def _parse_firmware(element: etree._Element | None) -> str:
    if element is None:
        return "bios"
    loader = _first_child(element, "loader")
    flash = loader is not None and loader.get("type") == "pflash"
    return "uefi" if element.get("firmware") == "efi" or flash else "bios"


class DiskSources(Value):
    """The sources of one domain's disks: paths, (pool, volume) pairs, and (path, path of its backing image) pairs.

    `formats`: each path or (pool, volume) with the format that the domain's XML gives for it, where it has one.
    """

    files: tuple[str, ...] = ()
    volumes: tuple[tuple[str, str], ...] = ()
    backing_pairs: tuple[tuple[str, str], ...] = ()
    formats: tuple[tuple[str | tuple[str, str], str], ...] = ()


def parse_disk_sources(*documents: str | None) -> DiskSources:
    """Return the sources of a domain's disks, from its config XML and, when it runs, its live XML."""
    files: dict[str, None] = {}
    volumes: dict[tuple[str, str], None] = {}
    backing: dict[tuple[str, str], None] = {}
    formats: dict[tuple[str | tuple[str, str], str], None] = {}
    for text in documents:
        root = None if text is None else parse_root(text)
        for disk in () if root is None else root.findall("devices/disk"):
            for source in (disk.find("source"), disk.find("mirror/source")):
                path = _source_path(source)
                if path is not None:
                    files[path] = None
                if source is not None and source.get("pool") and source.get("volume"):
                    volumes[str(source.get("pool")), str(source.get("volume"))] = None
            source, driver = disk.find("source"), disk.find("driver")
            disk_format = None if driver is None else driver.get("type")
            if source is not None and disk_format:
                location = _source_path(source) or (str(source.get("pool")), str(source.get("volume")))
                formats[location, str(disk_format)] = None
            backing.update(dict.fromkeys(_backing_pairs(disk)))
    return DiskSources(tuple(files), tuple(volumes), tuple(backing), tuple(formats))


def has_unknown_backing_file(live_xml: str, known_paths: Collection[str]) -> bool:
    """Return whether a running domain's XML names an unknown backing image. Searches the text, which is fast."""
    return any(path not in known_paths for path in _BACKING_SOURCE.findall(live_xml))


def _backing_pairs(disk: etree._Element) -> list[tuple[str, str]]:
    """Return (file, its backing file) from the top down, as far as both are files of this host."""
    pairs = []
    above, below = disk, disk.find("backingStore")
    while below is not None:
        upper, lower = _source_path(above.find("source")), _source_path(below.find("source"))
        if upper is not None and lower is not None:
            pairs.append((upper, lower))
        above, below = below, below.find("backingStore")
    return pairs


def _source_path(source: etree._Element | None) -> str | None:
    path = None if source is None else source.get("file") or source.get("dev")
    return None if not path else str(path)
