# SPDX-License-Identifier: Apache-2.0
"""Read OVF, the description of VMs in DMTF's standard DSP0243, versions 1 and 2, as VMware and VirtualBox write it.

Items have CIM's resource types: 3 CPU, 4 memory, 10 network card, 17 disk. VMware adds `Config` and `ExtraConfig`
entries: those of the whole VM have the keys of its VMX, and those of an item vSphere's names. A passed-through device
is an item of type 1 whose subtype begins with `vmware.pci.passthrough`. Source: govmomi's OVF fixtures.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from vgpuctl.config.foreign_vms.imported import (
    MAX_VMS_PER_FILE,
    ForeignFile,
    ImportedDisk,
    ImportedGpu,
    ImportedNic,
    ImportedVm,
    Source,
    nic_model,
    scaled_mib,
    stays_inside,
)
from vgpuctl.config.foreign_vms.vmx import find_clock, find_gpus, passed_gpu
from vgpuctl.config.foreign_vms.xml_reader import attribute, children, content, first, line_of, local_name, parse_xml
from vgpuctl.model.numbers import format_size
from vgpuctl.value import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lxml import etree

FORMAT = "OVF"
_SYSTEM = "VirtualSystem"
_ITEMS = ("Item", "StorageItem", "EthernetPortItem")
_OTHER, _CPU, _MEMORY, _NIC, _DISK = "1", "3", "4", "10", "17"
_PASSED = "vmware.pci.passthrough"
_SILENT = frozenset({"5", "6", "20", "24", "13", "18"})
"""Controllers of disks, keyboards and the like, video cards: a VM of vgpuctl has its own."""
_NAMES = {"14": "a floppy drive", "15": "a CD drive", "16": "a DVD drive", "21": "a serial port",
          "22": "a parallel port", "23": "a USB controller", "35": "a sound card"}  # fmt: skip
_IGNORED_SUBTYPES = re.compile(r"vmware\.(vmci|keyboard|pointingdevice|sata\.ahci|nvme\.controller)", re.IGNORECASE)
_UNIT = re.compile(r"byte\s*\*\s*2\s*\^\s*(\d{1,2})", re.IGNORECASE)
_UNIT_PRODUCT = re.compile(r"byte((?:\s*\*\s*1024){1,4})", re.IGNORECASE)
_UNIT_WORDS = {"bytes": 0, "byte": 0, "kilobytes": 10, "megabytes": 20, "gigabytes": 30}
_DISK_FORMATS = {"vmdk": "vmdk", "vhd": "vpc", "qcow2": "qcow2"}


def parse_ovf(source: Source, text: str) -> ForeignFile:
    """Read an OVF: a VM for each virtual system.

    Raises:
        InvalidInput: it is not XML, has entities, too many systems or none, or a value is wrong.
    """
    root = parse_xml(source, text)
    systems = [element for element in root.iter() if isinstance(element.tag, str) and local_name(element) == _SYSTEM]
    if not systems:
        raise source.error(1, "this OVF describes no VM: it has no VirtualSystem")
    if len(systems) > MAX_VMS_PER_FILE:
        raise source.error(1, f"it describes {len(systems)} VMs; at most {MAX_VMS_PER_FILE} are read at once")
    files = _Files(source, root)
    vms = tuple(_System(source, root, system, files).read() for system in systems)
    return ForeignFile(source.name, FORMAT, vms=vms)


class _Files:
    """The disks of an OVF by the names that items use, each with its file.

    `is_safe`: whether all files of disks that were asked for stay in the folder of the OVF.
    """

    def __init__(self, source: Source, root: etree._Element) -> None:
        self._source = source
        self.is_safe = True
        references = first(root, "References")
        self._files = {} if references is None else {attribute(f, "id"): f for f in children(references, "File")}
        disks = [disk for section in children(root, "DiskSection", "Section") for disk in children(section, "Disk")]
        self._disks = {attribute(disk, "diskId"): disk for disk in disks}

    def find(self, resource: str, name: str, size: str, line: int, left_out: list[str]) -> ImportedDisk | None:
        """Return the disk of an item; None with the reason in `left_out`.

        `resource`: `ovf:/disk/ID`, in old files `/disk/ID`, or `ovf:/file/ID`. `name`, `size`: as the item has them.
        """
        kind, _, key = resource.removeprefix("ovf:").strip("/").partition("/")
        disk = self._disks.get(key) if kind == "disk" else None
        file = self._files.get(attribute(disk, "fileRef") if kind == "disk" else key)
        place = self._source.at(line)
        if file is None:
            size = self._capacity(disk) or size or "SIZE"
            named = " ".join(filter(None, (name, resource[:60] and f"({resource[:60]!a})"))) or "a disk"
            left_out.append(f"{place}: {named} has no file: an empty one is made with disk: {size}")
            return None
        href = self._source.text(line_of(file), "href", attribute(file, "href") or "")
        place = self._source.at(line_of(file))
        if not stays_inside(href):
            self.is_safe = False
            left_out.append(f"{place}: the disk {href!a} is outside the folder of {self._source.name}")
            return None
        if attribute(file, "compression") not in (None, "", "identity"):
            left_out.append(f"{place}: the disk {href!a} is compressed: decompress it, and remove its compression here")
            return None
        disk_format = self._format_of(disk, href)
        if disk_format is None:
            left_out.append(f"{place}: the disk {href!a} has a format that vgpuctl does not know")
            return None
        return ImportedDisk(href, disk_format, place)

    @staticmethod
    def _capacity(disk: etree._Element | None) -> str:
        number, unit = attribute(disk, "capacity") or "", attribute(disk, "capacityAllocationUnits") or "byte"
        return _size_text(number, unit)

    @staticmethod
    def _format_of(disk: etree._Element | None, href: str) -> str | None:
        named = (attribute(disk, "format") or "").lower()
        suffix = posixpath.splitext(href)[1].lstrip(".").lower()
        word = next((word for word in _DISK_FORMATS if word in named), suffix)
        return _DISK_FORMATS.get(word)


class _System:
    """One virtual system."""

    def __init__(self, source: Source, root: etree._Element, system: etree._Element, files: _Files) -> None:
        self._source = source
        self._system = system
        self._files = files
        self._hardware = first(system, "VirtualHardwareSection")
        self._option = _default_option(root)
        self._left_out: list[str] = []
        self._config = dict(self._read_config())

    def read(self) -> ImportedVm:
        """Return the VM."""
        name_element = first(self._system, "Name")
        line = line_of(self._system if name_element is None else name_element)
        name = content(name_element) or attribute(self._system, "id") or ""
        firmware = self._config.get("firmware", (1, "bios"))[1].lower()
        by_type: dict[str, list[etree._Element]] = {}
        for item in self._items():
            by_type.setdefault(content(first(item, "ResourceType")), []).append(item)
        vm = ImportedVm(
            name=self._source.text(line, "Name", name),
            position=self._source.at(line),
            memory_mib=self._memory_mib(by_type.pop(_MEMORY, [])),
            vcpus=self._sum_quantities(by_type.pop(_CPU, [])),
            firmware="uefi" if firmware == "efi" else "bios",
            is_windows=self._is_windows(),
            disks=tuple(disk for item in by_type.pop(_DISK, []) if (disk := self._disk(item)) is not None),
            nics=tuple(self._nic(item) for item in by_type.pop(_NIC, [])),
            gpus=self._gpus(by_type),
            clock=find_clock(self._source, self._config),
        )
        self._list_others(by_type)
        opener = "ova" if self._files.is_safe else None
        return replace(vm, opener=opener, left_out=tuple(self._left_out))

    def _items(self) -> Iterator[etree._Element]:
        if self._hardware is None:
            return
        for item in children(self._hardware, *_ITEMS):
            options = (attribute(item, "configuration") or "").split()
            if not options or self._option in options:
                yield item
            else:
                line, names = line_of(item), self._source.text(line_of(item), "configuration", " ".join(options))
                self._left_out.append(
                    f"{self._source.at(line)}: {self._name_of(item) or 'an item'}: only the deployment option {names} "
                    f"has it, and {self._option or 'none'} is taken"
                )

    def _name_of(self, item: etree._Element) -> str:
        return self._source.text(line_of(item), "ElementName", content(first(item, "ElementName")))

    def _read_config(self) -> Iterator[tuple[str, tuple[int, str]]]:
        """Yield VMware's settings of the VM: (line, value) by key in lower case."""
        if self._hardware is not None:
            yield from _read_settings(self._hardware)

    def _is_windows(self) -> bool:
        section = first(self._system, "OperatingSystemSection")
        words = f"{attribute(section, 'osType') or ''} {content(first(section, 'Description'))}".lower()
        return "windows" in words or words.startswith("win")

    def _sum_quantities(self, items: list[etree._Element]) -> int | None:
        quantities = [first(item, "VirtualQuantity") for item in items]
        numbers = [
            self._source.count(line_of(element), "VirtualQuantity", content(element))
            for element in quantities
            if element is not None
        ]
        return sum(numbers) if numbers else None

    def _memory_mib(self, items: list[etree._Element]) -> int | None:
        number = self._sum_quantities(items[:1])
        if number is None:
            return None
        unit = content(first(items[0], "AllocationUnits")) or "byte * 2^20"
        exponent = _exponent_of(unit)
        if exponent is None:
            raise self._source.error(line_of(items[0]), f"the memory has the unit {unit[:60]!a}, which is not known")
        return scaled_mib(number, 1 << exponent)

    def _disk(self, item: etree._Element) -> ImportedDisk | None:
        resource = content(first(item, "HostResource"))
        unit = content(first(item, "AllocationUnits")) or "byte"
        size = _size_text(content(first(item, "VirtualQuantity")), unit)
        return self._files.find(resource, self._name_of(item), size, line_of(item), self._left_out)

    def _nic(self, item: etree._Element) -> ImportedNic:
        line = line_of(item)
        address = content(first(item, "Address"))
        return ImportedNic(
            self._source.at(line),
            mac=self._source.text(line, "Address", address) if ":" in address else None,
            network=self._source.text(line, "Connection", content(first(item, "Connection"))) or None,
            model=nic_model(content(first(item, "ResourceSubType"))),
        )

    def _gpus(self, by_type: dict[str, list[etree._Element]]) -> tuple[ImportedGpu, ...]:
        """Return the vGPUs and GPUs: by the items, which are taken out of `by_type`, or else by the VM's settings."""
        others = by_type.get(_OTHER, [])
        passed = [item for item in others if _is_passed(item)]
        by_type[_OTHER] = [item for item in others if not _is_passed(item)]
        if not passed:
            return find_gpus(self._source, self._config, self._left_out)
        return tuple(gpu for item in passed for gpu in self._passed_gpu(item))

    def _passed_gpu(self, item: etree._Element) -> tuple[ImportedGpu, ...]:
        settings = dict(_read_settings(item))
        shown = self._name_of(item) or "a PCI device"
        if "backing.vgpu" in settings:
            line, profile = settings["backing.vgpu"]
            return (ImportedGpu(self._source.at(line), profile=self._source.text(line, "backing.vgpu", profile)),)
        line, kind = settings.get("dvx.deviceclass", (line_of(item), ""))
        if kind:
            kind = self._source.text(line, "dvx.deviceClass", kind)
            self._left_out.append(f"{self._source.at(line)}: {shown}: a device of the class {kind}, which is no GPU")
            return ()
        vendors = [settings[key][1] for key in ("backing.vendorid", "backing.alloweddevice") if key in settings]
        line, address = settings.get("backing.id", (line_of(item), ""))
        device = self._source.text(line, "backing.id", address) or shown
        return passed_gpu(self._source, line_of(item), shown, device, vendors, self._left_out)

    def _list_others(self, by_type: dict[str, list[etree._Element]]) -> None:
        for number, items in by_type.items():
            for item in items:
                subtype = content(first(item, "ResourceSubType"))
                if number in _SILENT or _IGNORED_SUBTYPES.match(subtype):
                    continue
                line = line_of(item)
                name = self._name_of(item)
                what = _NAMES.get(number, "a device that a VM spec does not have")
                self._left_out.append(f"{self._source.at(line)}: {name or 'an item'}: {what}")
        product = first(self._system, "ProductSection")
        if first(product, "Property") is not None and product is not None:
            self._left_out.append(
                f"{self._source.at(line_of(product))}: the properties of the appliance: a VM spec has cloud_init:"
            )


def _is_passed(item: etree._Element) -> bool:
    return content(first(item, "ResourceSubType")).lower().startswith(_PASSED)


def _read_settings(parent: etree._Element) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield the settings of VMware's that an element has itself: (line, value) by key in lower case."""
    for element in children(parent, "Config", "ExtraConfig"):
        key, value = attribute(element, "key"), attribute(element, "value")
        if key is not None and value is not None:
            yield key.lower(), (line_of(element), value)


def _exponent_of(unit: str) -> int | None:
    """Return which power of two a unit is, in bytes; None if it is not known."""
    match, product = _UNIT.fullmatch(unit), _UNIT_PRODUCT.fullmatch(unit)
    if product is not None:
        return 10 * product[1].count("*")
    exponent = int(match[1]) if match is not None else _UNIT_WORDS.get(unit.lower())
    return None if exponent is None or exponent > 40 else exponent


def _size_text(number: str, unit: str) -> str:
    """Return a size as vgpuctl writes it; empty where the file does not say it plainly."""
    exponent = _exponent_of(unit)
    if exponent is None or re.fullmatch("[0-9]{1,15}", number, re.ASCII) is None or not int(number):
        return ""
    return format_size(scaled_mib(int(number), 1 << exponent))


def _default_option(root: etree._Element) -> str:
    """Return the deployment option that counts when nobody chooses one; empty if there are none."""
    section = first(root, "DeploymentOptionSection")
    options = [] if section is None else list(children(section, "Configuration"))
    default = next((option for option in options if attribute(option, "default") == "true"), None)
    chosen = default if default is not None else next(iter(options), None)
    return attribute(chosen, "id") or ""
