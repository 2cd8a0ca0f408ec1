# SPDX-License-Identifier: Apache-2.0
"""Read OVF, the description of VMs in DMTF's standard DSP0243, versions 1 and 2, as VMware and VirtualBox write it.

Items have CIM's resource types: 3 CPU, 4 memory, 10 network card, 17 disk. VMware adds `Config` and `ExtraConfig`
entries with the keys of its VMX; a vGPU is only in these.
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
from vgpuctl.config.foreign_vms.vmx import find_gpus
from vgpuctl.config.foreign_vms.xml_reader import attribute, children, content, first, line_of, local_name, parse_xml
from vgpuctl.value import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lxml import etree

FORMAT = "OVF"
_SYSTEM = "VirtualSystem"
_ITEMS = ("Item", "StorageItem", "EthernetPortItem")
_CPU, _MEMORY, _NIC, _DISK = "3", "4", "10", "17"
_SILENT = frozenset({"5", "6", "20", "24", "13", "18"})
"""Controllers of disks, keyboards and the like, video cards: a VM of vgpuctl has its own."""
_NAMES = {"14": "a floppy drive", "15": "a CD drive", "16": "a DVD drive", "21": "a serial port",
          "22": "a parallel port", "23": "a USB controller", "35": "a sound card"}  # fmt: skip
_IGNORED_SUBTYPES = re.compile(r"vmware\.(vmci|keyboard|pointingdevice|sata\.ahci|nvme\.controller)", re.IGNORECASE)
_UNIT = re.compile(r"byte\s*\*\s*2\s*\^\s*(\d{1,2})", re.IGNORECASE)
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

    def find(self, resource: str, line: int, left_out: list[str]) -> ImportedDisk | None:
        """Return the disk of an item; None with the reason in `left_out`.

        `resource`: `ovf:/disk/ID`, in old files `/disk/ID`, or `ovf:/file/ID`.
        """
        kind, _, key = resource.removeprefix("ovf:").strip("/").partition("/")
        disk = self._disks.get(key) if kind == "disk" else None
        file = self._files.get(attribute(disk, "fileRef") if kind == "disk" else key)
        place = self._source.at(line)
        if file is None:
            left_out.append(f"{place}: the disk {resource[:60]!a} has no file: an empty one is made with disk: SIZE")
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
            gpus=self._gpus(),
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

    def _read_config(self) -> Iterator[tuple[str, tuple[int, str]]]:
        """Yield VMware's settings: (line, value) by key in lower case."""
        if self._hardware is None:
            return
        for element in self._hardware.iter():
            if isinstance(element.tag, str) and local_name(element) in ("Config", "ExtraConfig"):
                key, value = attribute(element, "key"), attribute(element, "value")
                if key is not None and value is not None:
                    yield key.lower(), (line_of(element), value)

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
        match = _UNIT.fullmatch(unit)
        exponent = int(match[1]) if match is not None else _UNIT_WORDS.get(unit.lower())
        if exponent is None or exponent > 40:
            raise self._source.error(line_of(items[0]), f"the memory has the unit {unit[:60]!a}, which is not known")
        return scaled_mib(number, 1 << exponent)

    def _disk(self, item: etree._Element) -> ImportedDisk | None:
        resource = content(first(item, "HostResource"))
        return self._files.find(resource, line_of(item), self._left_out)

    def _nic(self, item: etree._Element) -> ImportedNic:
        line = line_of(item)
        address = content(first(item, "Address"))
        return ImportedNic(
            self._source.at(line),
            mac=self._source.text(line, "Address", address) if ":" in address else None,
            network=self._source.text(line, "Connection", content(first(item, "Connection"))) or None,
            model=nic_model(content(first(item, "ResourceSubType"))),
        )

    def _gpus(self) -> tuple[ImportedGpu, ...]:
        gpus = list(find_gpus(self._source, self._config, self._left_out))
        for key, (line, value) in self._config.items():
            if key.endswith("vgpu") and not key.startswith("pcipassthru"):
                gpus.append(ImportedGpu(self._source.at(line), profile=self._source.text(line, key, value)))
        return tuple(gpus)

    def _list_others(self, by_type: dict[str, list[etree._Element]]) -> None:
        for number, items in by_type.items():
            for item in items:
                subtype = content(first(item, "ResourceSubType"))
                if number in _SILENT or _IGNORED_SUBTYPES.match(subtype):
                    continue
                line = line_of(item)
                name = self._source.text(line, "ElementName", content(first(item, "ElementName")))
                what = _NAMES.get(number, "a device that a VM spec does not have")
                self._left_out.append(f"{self._source.at(line)}: {name or 'an item'}: {what}")
        product = first(self._system, "ProductSection")
        if first(product, "Property") is not None and product is not None:
            self._left_out.append(
                f"{self._source.at(line_of(product))}: the properties of the appliance: cloud_init: is vgpuctl's way"
            )


def _default_option(root: etree._Element) -> str:
    """Return the deployment option that counts when nobody chooses one; empty if there are none."""
    section = first(root, "DeploymentOptionSection")
    options = [] if section is None else list(children(section, "Configuration"))
    default = next((option for option in options if attribute(option, "default") == "true"), None)
    chosen = default if default is not None else next(iter(options), None)
    return attribute(chosen, "id") or ""
