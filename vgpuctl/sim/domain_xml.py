# SPDX-License-Identifier: Apache-2.0
"""The simulator's own domain XML code: it validates, normalises as libvirt does, and reads what a start needs.

lxml is loaded when XML is first read, so that reading a simulated host without VMs stays cheap.
"""

from __future__ import annotations

import re
import uuid as uuids
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from itertools import count
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgpuctl.model.names import format_pci
from vgpuctl.sim.refusals import VirError, VirErrorNumber
from vgpuctl.value import Value

if TYPE_CHECKING:
    from lxml.etree import RelaxNG, _Element

RECORD_NAMESPACE = "urn:vgpuctl:1"
SCHEMA_PATH = Path("/usr/share/libvirt/schemas/domain.rng")
_TAG = re.compile(r"<[^<>]*>")
_PASSWORD = re.compile(r"(<graphics\b[^>]*?) passwd='[^']*'")
_UNIT_KIB = {"b": 1 / 1024, "bytes": 1 / 1024, "kib": 1, "k": 1, "mib": 1024, "m": 1024, "gib": 1 << 20, "g": 1 << 20}
PCIE_MACHINES = {"x86_64": "q35", "aarch64": "virt"}
MACHINE_TYPES = {"q35": "pc-q35-8.2", "pc": "pc-i440fx-8.2", "virt": "virt-8.2"}
_MACHINES_OF_ARCH = {"x86_64": ("pc", "q35"), "aarch64": ("virt",)}
_PC_DEVICES = {
    "features/apic": "the 'apic' feature is not supported for architecture 'aarch64' or machine type 'virt'",
    "devices/disk/target[@bus='sata']": "SATA is not supported with this QEMU binary",
    "devices/serial/target[@type='isa-serial']": "unsupported machine type 'virt' for target type 'isa-serial'",
    "devices/video/model[@type='vga']": "domain configuration does not support video model 'vga'",
    "devices/controller/pcihole64": "Setting the 64-bit PCI hole size is not supported for machine 'virt'",
}
"""What qemu_domain.c and qemu_validate.c refuse for the machine "virt", as XPath and message."""


class SimHostdev(Value):
    """A host device in a domain's XML. `carrier` is an mdev's UUID or a PCI address."""

    kind: str
    carrier: str
    managed: bool


class SimDisplay(Value):
    """A host device whose screen QEMU shows. `ramfb`: also before the guest's driver runs."""

    carrier: str
    ramfb: bool


def parse(xml: str) -> _Element:
    """Return the root element of well-formed XML."""
    from lxml import etree

    try:
        return etree.fromstring(xml.encode(), etree.XMLParser(resolve_entities=False, remove_blank_text=True))
    except etree.XMLSyntaxError as exc:
        raise VirError(VirErrorNumber.XML_DETAIL, f"(domain_definition): {exc}") from exc


def unparse(element: _Element) -> str:
    """Return an element as text, with libvirt's single quotes, which the journal need not escape.

    The text has no white space between elements, because every read of the host parses all domains.
    """
    from lxml import etree

    text: str = etree.tostring(element, encoding="unicode")
    return _TAG.sub(lambda tag: tag[0].replace("'", "&apos;").replace('"', "'"), text)


@cache
def _schema() -> RelaxNG | None:
    from lxml import etree

    return etree.RelaxNG(etree.parse(str(SCHEMA_PATH))) if SCHEMA_PATH.exists() else None


def validate(element: _Element) -> None:
    """Validate a domain with libvirt's own schema if it is installed (VIR_DOMAIN_DEFINE_VALIDATE)."""
    schema = _schema()
    if schema is None or schema.validate(_without_pci_displays(element)):
        return
    error: Any = schema.error_log.last_error
    text = "Unable to validate doc against domain.rng"
    raise VirError(VirErrorNumber.XML_INVALID_SCHEMA, f"XML document failed to validate: {text}\n{error.message}")


def _without_pci_displays(element: _Element) -> _Element:
    """Return a domain for the schema that is installed here, which may be older than the simulated libvirt.

    display= and ramfb= of a PCI function came with libvirt 10.2.
    """
    shown = element.findall("devices/hostdev[@type='pci'][@display]")
    if not shown:
        return element
    copied = deepcopy(element)
    for device in copied.findall("devices/hostdev[@type='pci'][@display]"):
        del device.attrib["display"]
        device.attrib.pop("ramfb", "")
    return copied


def host_arch(scenario: Mapping[str, Any]) -> str:
    """Return the architecture of a host; a state from before there were others has none."""
    return str(scenario.get("arch", "x86_64"))


def check_architecture(element: _Element, arch: str) -> None:
    """Refuse a domain of another architecture, or with what its machine type does not have.

    Raises:
        VirError: as libvirt.
    """
    os_type = element.find("os/type")
    if os_type is None:
        return
    requested, machine = os_type.get("arch", arch), os_type.get("machine", "virt" if arch == "aarch64" else "pc")
    if requested != arch:
        text = f"could not find capabilities for arch={requested} domaintype={element.get('type')}"
        raise VirError(VirErrorNumber.INVALID_ARG, f"invalid argument: {text}")
    if not machine.startswith(_MACHINES_OF_ARCH[arch]):
        text = f"Emulator '/usr/bin/qemu-system-{arch}' does not support machine type '{machine}'"
        raise VirError(VirErrorNumber.CONFIG_UNSUPPORTED, f"unsupported configuration: {text}")
    for path, text in _PC_DEVICES.items() if arch == "aarch64" else ():
        if element.find(path) is not None:
            raise VirError(VirErrorNumber.CONFIG_UNSUPPORTED, f"unsupported configuration: {text}")


def normalise(element: _Element) -> tuple[str, str]:
    """Change a domain's XML as libvirt does when it defines the domain. Return UUID and name."""
    name = _text(element, "name")
    if element.tag != "domain" or not name:
        raise VirError(VirErrorNumber.XML_ERROR, "XML error: missing name or root element is not <domain>")
    os_type = element.find("os/type")
    if os_type is None:
        raise VirError(VirErrorNumber.XML_ERROR, "an os <type> must be specified")
    machine = os_type.get("machine", "pc")
    os_type.set("machine", MACHINE_TYPES.get(machine, machine))
    uuid = _normalise_uuid(element)
    _normalise_memory(element)
    _check_topology(element)
    _check_displays(element)
    for device in element.findall("devices/hostdev"):
        normalise_hostdev(device)
    for device in element.findall("devices/*"):
        alias = device.find("alias")
        if alias is not None and not alias.get("name", "").startswith("ua-"):
            device.remove(alias)
    for number, interface in enumerate(element.findall("devices/interface")):
        _assign_mac(interface, f"{uuid}/{number}")
    assign_addresses(element)
    checked: set[SimHostdev] = set()
    for hostdev in parse_hostdevs(element):
        if hostdev in checked:
            raise VirError(VirErrorNumber.XML_ERROR, "XML error: Hostdev already exists in the domain configuration")
        checked.add(hostdev)
    return uuid, name


def find_hostdevs(element: _Element) -> list[_Element]:
    """Return the hostdev elements that `parse_hostdevs` reads, in document order."""
    candidates = element.findall("devices/hostdev")
    return [d for d in candidates if d.get("type") in ("mdev", "pci") and d.find("source/address") is not None]


def assign_addresses(element: _Element, *, is_running: bool = False) -> None:
    """Give every device that needs a PCI address the next free root port of the domain.

    libvirt adds missing ports to a config. The simulator does not: those devices stay without an address.
    `is_running`: the domain runs, so libvirt cannot add ports.
    """
    from lxml import etree

    devices = element.find("devices")
    serial_paths = "channel/target[@type='virtio']", "controller[@type='virtio-serial']"
    if devices is not None and [devices.find(path) is None for path in serial_paths] == [False, True]:
        etree.SubElement(devices, "controller", {"type": "virtio-serial", "index": "0"})
    ports = [int(c.get("index", "0")) for c in element.findall("devices/controller[@model='pcie-root-port']")]
    used = {int(a.get("bus", "0"), 0) for a in element.findall("devices/*/address[@type='pci']")}
    free = [port for port in sorted(ports) if port not in used]
    for device in element.findall("devices/*"):
        if not _needs_root_port(device) or device.find("address") is not None:
            continue
        if not free:
            if is_running and device.tag == "hostdev":
                raise VirError(VirErrorNumber.INTERNAL_ERROR, "internal error: No more available PCI slots")
            continue
        address = {"type": "pci", "domain": "0x0000", "bus": f"0x{free.pop(0):02x}", "slot": "0x00", "function": "0x0"}
        etree.SubElement(device, "address", address)


def add_live_aliases(element: _Element) -> bool:
    """Give each host device without an alias the one that libvirt gives it at a start: hostdev0, hostdev1 and so on.

    Returns whether one lacked an alias.
    """
    from lxml import etree

    taken = {alias.get("name") for alias in element.iterfind("devices/hostdev/alias")}
    free = (name for name in map("hostdev{}".format, count()) if name not in taken)
    without = [device for device in element.findall("devices/hostdev") if device.find("alias") is None]
    for device in without:
        etree.SubElement(device, "alias", {"name": next(free)})
    return bool(without)


def _needs_root_port(device: _Element) -> bool:
    """Say whether QEMU gives the device its own PCI Express root port on a q35 machine."""
    if device.tag == "disk":
        return device.find("target[@bus='virtio']") is not None
    if device.tag == "controller":
        return (device.get("type"), device.get("model")) == ("usb", "qemu-xhci") or device.get(
            "type"
        ) == "virtio-serial"
    if device.tag == "memballoon":
        return device.get("model") == "virtio"
    return device.tag in ("interface", "hostdev", "rng")


def parse_hostdevs(element: _Element) -> tuple[SimHostdev, ...]:
    """Return the host devices of a domain, in document order."""
    hostdevs = []
    for device in find_hostdevs(element):
        address = device.find("source/address")
        if address is None:
            continue
        if device.get("type") == "mdev":
            hostdevs.append(SimHostdev("mdev", address.get("uuid", "").lower(), managed=False))
        else:
            hostdevs.append(SimHostdev("pci", _format_address(address), managed=device.get("managed") == "yes"))
    return tuple(hostdevs)


def find_disk_paths(element: _Element) -> tuple[str, ...]:
    """Return the files of a domain's disks and CD-ROMs."""
    sources = [
        source.get("file") or source.get("dev")
        for source in element.findall("devices/disk/source")
        if source.get("startupPolicy") != "optional"
    ]
    return tuple(path for path in sources if path)


def find_networks(element: _Element) -> tuple[str, ...]:
    """Return the networks of a domain's interfaces."""
    networks = []
    for interface in element.findall("devices/interface[@type='network']"):
        source = interface.find("source")
        if source is not None and source.get("network"):
            networks.append(source.get("network", ""))
    return tuple(networks)


def nvram_path(element: _Element, name: str) -> str | None:
    """Return the file of the firmware's variables if the domain boots by UEFI."""
    configured = _text(element, "os/nvram")
    if configured:
        return configured
    system = element.find("os")
    uses_uefi = system is not None and system.get("firmware") == "efi"
    return f"/var/lib/libvirt/qemu/nvram/{name}_VARS.fd" if uses_uefi else None


def has_tpm(element: _Element) -> bool:
    """Say whether the domain has an emulated TPM, whose state libvirt keeps."""
    return element.find("devices/tpm/backend[@type='emulator']") is not None


def set_record(element: _Element, xml: str | None) -> None:
    """Put vgpuctl's VM record (an element of its own namespace) into the metadata, or remove it."""
    from lxml import etree

    metadata = element.find("metadata")
    if metadata is None:
        metadata = etree.Element("metadata")
        element.insert(_metadata_position(element), metadata)
    for old in metadata.findall(f"{{{RECORD_NAMESPACE}}}*"):
        metadata.remove(old)
    if xml is not None:
        record = parse(xml)
        if etree.QName(record).namespace != RECORD_NAMESPACE:
            raise VirError(VirErrorNumber.XML_ERROR, f"the element is not of namespace {RECORD_NAMESPACE}")
        metadata.append(record)
    if len(metadata) == 0:
        element.remove(metadata)


def _metadata_position(element: _Element) -> int:
    uuid_node = element.find("uuid")
    return element.index(uuid_node) + 1 if uuid_node is not None else 0


def _text(element: _Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _normalise_uuid(element: _Element) -> str:
    from lxml import etree

    node = element.find("uuid")
    if node is None:
        node = etree.Element("uuid")
        node.text = str(uuids.uuid4())
        element.insert(1, node)
    try:
        node.text = str(uuids.UUID((node.text or "").strip()))
    except ValueError as exc:
        raise VirError(VirErrorNumber.XML_ERROR, f"XML error: malformed uuid element '{node.text}'") from exc
    return node.text


def _normalise_memory(element: _Element) -> None:
    for path in ("memory", "currentMemory"):
        node = element.find(path)
        if node is not None and (node.text or "").strip().isdigit():
            node.text = str(size_kib(node.text or "0", node.get("unit")))
            node.set("unit", "KiB")


def size_kib(number: str, unit: str | None) -> int:
    """Return a size in KiB; without a unit it is in KiB."""
    return int(int(number.strip()) * _UNIT_KIB.get((unit or "KiB").lower(), 1))


def _check_displays(element: _Element) -> None:
    """Refuse a display without graphics, as libvirt does when it defines a domain."""
    if element.find("devices/hostdev[@display='on']") is not None and element.find("devices/graphics") is None:
        problem = "graphics device is needed for attribute value 'display=on' in <hostdev>"
        raise VirError(VirErrorNumber.CONFIG_UNSUPPORTED, f"unsupported configuration: {problem}")


def find_displays(element: _Element) -> tuple[SimDisplay, ...]:
    """Return the host devices whose screen QEMU shows."""
    pairs = zip(find_hostdevs(element), parse_hostdevs(element), strict=True)
    shown = ((device, hostdev) for device, hostdev in pairs if device.get("display") == "on")
    return tuple(SimDisplay(hostdev.carrier, device.get("ramfb") == "on") for device, hostdev in shown)


def _check_topology(element: _Element) -> None:
    """Refuse a CPU topology whose product is not the number of vCPUs, as libvirt 11.3 does."""
    sizes = [int(size) for topology in element.findall("cpu/topology") for size in topology.attrib.values()]
    if sizes and prod(sizes) != int(_text(element, "vcpu") or 1):
        problem = "CPU topology doesn't match maximum vcpu count"
        raise VirError(VirErrorNumber.CONFIG_UNSUPPORTED, f"unsupported configuration: {problem}")


def normalise_hostdev(device: _Element) -> None:
    """Fill in a host device's missing attributes as libvirt does."""
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


def _format_address(address: _Element) -> str:
    domain, bus, slot, function = (int(address.get(name, "0"), 0) for name in ("domain", "bus", "slot", "function"))
    return format_pci(domain, bus, slot, function)


def _assign_mac(interface: _Element, seed: str) -> None:
    """Give an interface a MAC address in KVM's own range. libvirt picks one at random, the simulator derives it."""
    from lxml import etree

    if interface.find("mac") is None:
        suffix = uuids.uuid5(uuids.NAMESPACE_URL, seed).bytes[:3]
        node = etree.Element("mac")
        node.set("address", "52:54:00:" + ":".join(f"{byte:02x}" for byte in suffix))
        interface.insert(0, node)


def strip_passwords(xml: str) -> str:
    """Return a domain's XML as libvirt shows it without VIR_DOMAIN_XML_SECURE."""
    return _PASSWORD.sub(r"\1", xml) if " passwd='" in xml else xml
