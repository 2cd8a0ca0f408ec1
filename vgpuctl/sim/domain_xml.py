# SPDX-License-Identifier: Apache-2.0
"""The simulator's own reading of domain XML: checking, normalising as libvirt does, and what a start needs.

lxml is imported inside the functions, so that looking at a simulated host stays cheap.
"""

from __future__ import annotations

import re
import uuid as uuids
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgpuctl.sim.libvirt_errors import Code, VirError
from vgpuctl.value import Value

if TYPE_CHECKING:
    from lxml.etree import RelaxNG, _Element

PROMISE_NAMESPACE = "urn:vgpuctl:1"
SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")
_TAG = re.compile(r"<[^<>]*>")
_KIB = {"b": 1 / 1024, "bytes": 1 / 1024, "kib": 1, "k": 1, "mib": 1024, "m": 1024, "gib": 1 << 20, "g": 1 << 20}
_MACHINES = {"q35": "pc-q35-8.2", "pc": "pc-i440fx-8.2"}


class WantedDevice(Value):
    """A host device that a domain wants: `carrier` an mdev's UUID or a PCI address."""

    kind: str
    carrier: str
    managed: bool


def parse(xml: str) -> _Element:
    """Return the root element of well-formed XML."""
    from lxml import etree

    try:
        return etree.fromstring(xml.encode(), etree.XMLParser(resolve_entities=False, remove_blank_text=True))
    except etree.XMLSyntaxError as exc:
        raise VirError(Code.XML_DETAIL, f"(domain_definition): {exc}") from exc


def unparse(element: _Element) -> str:
    """Return an element as text, with libvirt's quotes, which the journal need not escape.

    Without white space between elements: every look at the host parses all of them.
    """
    from lxml import etree

    text: str = etree.tostring(element, encoding="unicode")
    return _TAG.sub(lambda tag: tag[0].replace("'", "&apos;").replace('"', "'"), text)


@cache
def _schema() -> RelaxNG | None:
    from lxml import etree

    return etree.RelaxNG(etree.parse(str(SCHEMA))) if SCHEMA.exists() else None


def validate(element: _Element) -> None:
    """Check a domain by libvirt's own schema where it is installed (VIR_DOMAIN_DEFINE_VALIDATE)."""
    schema = _schema()
    if schema is None or schema.validate(element):
        return
    why: Any = schema.error_log.last_error
    text = "Unable to validate doc against domain.rng"
    raise VirError(Code.XML_INVALID_SCHEMA, f"XML document failed to validate: {text}\n{why.message}")


def normalise(element: _Element) -> tuple[str, str]:
    """Change a domain's XML as libvirt does when it takes it in; return uuid and name."""
    name = _text(element, "name")
    if element.tag != "domain" or not name:
        raise VirError(Code.XML_ERROR, "XML error: missing name or root element is not <domain>")
    kind = element.find("os/type")
    if kind is None:
        raise VirError(Code.XML_ERROR, "an os <type> must be specified")
    machine = kind.get("machine", "pc")
    kind.set("machine", _MACHINES.get(machine, machine))
    uuid = _uuid(element)
    _memory(element)
    _topology(element)
    for device in element.findall("devices/hostdev"):
        hostdev(device)
    for device in element.findall("devices/*"):
        alias = device.find("alias")
        if alias is not None and not alias.get("name", "").startswith("ua-"):
            device.remove(alias)
    for number, interface in enumerate(element.findall("devices/interface")):
        _mac(interface, f"{uuid}/{number}")
    give_addresses(element)
    seen: set[WantedDevice] = set()
    for wanted in devices(element):
        if wanted in seen:
            raise VirError(Code.XML_ERROR, "XML error: Hostdev already exists in the domain configuration")
        seen.add(wanted)
    return uuid, name


def hostdevs(element: _Element) -> list[_Element]:
    """Return the elements that `devices` reads, in document order."""
    found = element.findall("devices/hostdev")
    return [d for d in found if d.get("type") in ("mdev", "pci") and d.find("source/address") is not None]


def give_addresses(element: _Element, *, hot: bool = False) -> None:
    """Give every device that wants a PCI address the next free root port of the domain.

    A config that lacks ports gets more from libvirt, which is left out here: those devices stay without an address.
    `hot`: the domain runs, its ports are all it has.
    """
    from lxml import etree

    inner = element.find("devices")
    serial = "channel/target[@type='virtio']", "controller[@type='virtio-serial']"
    if inner is not None and [inner.find(path) is None for path in serial] == [False, True]:
        etree.SubElement(inner, "controller", {"type": "virtio-serial", "index": "0"})
    ports = [int(c.get("index", "0")) for c in element.findall("devices/controller[@model='pcie-root-port']")]
    used = {int(a.get("bus", "0"), 0) for a in element.findall("devices/*/address[@type='pci']")}
    free = [port for port in sorted(ports) if port not in used]
    for device in element.findall("devices/*"):
        if not _wants_port(device) or device.find("address") is not None:
            continue
        if not free:
            if hot and device.tag == "hostdev":
                raise VirError(Code.INTERNAL_ERROR, "internal error: No more available PCI slots")
            continue
        place = {"type": "pci", "domain": "0x0000", "bus": f"0x{free.pop(0):02x}", "slot": "0x00", "function": "0x0"}
        etree.SubElement(device, "address", place)


def _wants_port(device: _Element) -> bool:
    """Say whether QEMU puts a device on PCI Express, a root port each, on a q35 machine."""
    if device.tag == "disk":
        return device.find("target[@bus='virtio']") is not None
    if device.tag == "controller":
        return (device.get("type"), device.get("model")) == ("usb", "qemu-xhci") or device.get(
            "type"
        ) == "virtio-serial"
    if device.tag == "memballoon":
        return device.get("model") == "virtio"
    return device.tag in ("interface", "hostdev", "rng")


def devices(element: _Element) -> tuple[WantedDevice, ...]:
    """Return the host devices of a domain, in document order."""
    found = []
    for device in hostdevs(element):
        address = device.find("source/address")
        if address is None:
            continue
        if device.get("type") == "mdev":
            found.append(WantedDevice("mdev", address.get("uuid", "").lower(), managed=False))
        else:
            found.append(WantedDevice("pci", _address(address), managed=device.get("managed") == "yes"))
    return tuple(found)


def disk_paths(element: _Element) -> tuple[str, ...]:
    """Return the files of a domain's disks and CD-ROMs."""
    sources = [source.get("file") or source.get("dev") for source in element.findall("devices/disk/source")]
    return tuple(path for path in sources if path)


def networks(element: _Element) -> tuple[str, ...]:
    """Return the networks of a domain's interfaces."""
    found = []
    for interface in element.findall("devices/interface[@type='network']"):
        source = interface.find("source")
        if source is not None and source.get("network"):
            found.append(source.get("network", ""))
    return tuple(found)


def nvram(element: _Element, name: str) -> str | None:
    """Return the file of the firmware's variables, when the domain boots by UEFI."""
    given = _text(element, "os/nvram")
    if given:
        return given
    system = element.find("os")
    chosen = system is not None and system.get("firmware") == "efi"
    return f"/var/lib/libvirt/qemu/nvram/{name}_VARS.fd" if chosen else None


def wants_tpm(element: _Element) -> bool:
    """Say whether the domain has an emulated TPM and so keeps its state."""
    return element.find("devices/tpm/backend[@type='emulator']") is not None


def set_promise(element: _Element, xml: str | None) -> None:
    """Put the element of the promise's namespace into the metadata, or take it away."""
    from lxml import etree

    metadata = element.find("metadata")
    if metadata is None:
        metadata = etree.Element("metadata")
        element.insert(_after(element), metadata)
    for old in metadata.findall(f"{{{PROMISE_NAMESPACE}}}*"):
        metadata.remove(old)
    if xml is not None:
        promise = parse(xml)
        if etree.QName(promise).namespace != PROMISE_NAMESPACE:
            raise VirError(Code.XML_ERROR, f"the element is not of namespace {PROMISE_NAMESPACE}")
        metadata.append(promise)
    if len(metadata) == 0:
        element.remove(metadata)


def _after(element: _Element) -> int:
    last = element.find("uuid")
    return element.index(last) + 1 if last is not None else 0


def _text(element: _Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _uuid(element: _Element) -> str:
    from lxml import etree

    node = element.find("uuid")
    if node is None:
        node = etree.Element("uuid")
        node.text = str(uuids.uuid4())
        element.insert(1, node)
    try:
        node.text = str(uuids.UUID((node.text or "").strip()))
    except ValueError as exc:
        raise VirError(Code.XML_ERROR, f"XML error: malformed uuid element '{node.text}'") from exc
    return node.text


def _memory(element: _Element) -> None:
    for path in ("memory", "currentMemory"):
        node = element.find(path)
        if node is not None and (node.text or "").strip().isdigit():
            factor = _KIB.get(node.get("unit", "KiB").lower(), 1)
            node.text = str(int(int((node.text or "0").strip()) * factor))
            node.set("unit", "KiB")


def _topology(element: _Element) -> None:
    """Refuse a CPU topology whose product is not the number of vCPUs, as libvirt 11.3 does."""
    sizes = [int(size) for topology in element.findall("cpu/topology") for size in topology.attrib.values()]
    if sizes and prod(sizes) != int(_text(element, "vcpu") or 1):
        why = "CPU topology doesn't match maximum vcpu count"
        raise VirError(Code.CONFIG_UNSUPPORTED, f"unsupported configuration: {why}")


def hostdev(device: _Element) -> None:
    """Fill a host device in as libvirt does."""
    address = device.find("source/address")
    if device.get("managed") is None:
        device.set("managed", "no")
    if address is None:
        return
    if device.get("type") == "mdev":
        address.set("uuid", address.get("uuid", "").lower())
    else:
        for name, width in (("domain", 4), ("bus", 2), ("slot", 2), ("function", 1)):
            address.set(name, f"0x{int(address.get(name, '0'), 0):0{width}x}")


def _address(address: _Element) -> str:
    domain, bus, slot, function = (int(address.get(name, "0"), 0) for name in ("domain", "bus", "slot", "function"))
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"


def _mac(interface: _Element, seed: str) -> None:
    """Give an interface an address: libvirt draws it, the simulator derives it, in KVM's own range."""
    from lxml import etree

    if interface.find("mac") is None:
        drawn = uuids.uuid5(uuids.NAMESPACE_URL, seed).bytes[:3]
        node = etree.Element("mac")
        node.set("address", "52:54:00:" + ":".join(f"{byte:02x}" for byte in drawn))
        interface.insert(0, node)
