# SPDX-License-Identifier: Apache-2.0
"""Read libvirt's domain XML, as `virsh dumpxml` prints it on another host.

What only means something on that host is left out: paths of programs, firmware and shared folders, QEMU's own command
line, tuning, and every element that a VM spec has no field for. Source: https://libvirt.org/formatdomain.html.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.config.foreign_vms.imported import (
    LOCAL_TIME,
    OWN_TIME,
    UTC,
    WITHOUT_FIRST_FUNCTION,
    ForeignFile,
    ImportedClock,
    ImportedDisk,
    ImportedGpu,
    ImportedNic,
    ImportedVm,
    Source,
    name_functions,
    nic_model,
    scaled_mib,
    stays_inside,
)
from vgpuctl.config.foreign_vms.libvirt_unusual import find_drawing_card, find_unusual
from vgpuctl.config.foreign_vms.xml_reader import (
    attribute,
    children,
    content,
    first,
    line_of,
    local_name,
    parse_xml,
    shown,
)

if TYPE_CHECKING:
    from lxml import etree

FORMAT = "libvirt XML"
_SILENT_TOP = frozenset({
    "name", "uuid", "genid", "title", "description", "metadata", "memory", "currentMemory", "vcpu", "os", "features",
    "clock", "cpu", "on_poweroff", "on_reboot", "on_crash", "on_lockfailure", "pm", "devices", "resource", "seclabel",
})  # fmt: skip
_SILENT_DEVICES = frozenset({
    "controller", "input", "graphics", "video", "channel", "console", "serial", "memballoon", "rng", "audio", "hub",
    "disk", "interface", "hostdev", "tpm",
})  # fmt: skip
"""What is read here, or what every VM of vgpuctl has in its own way: `libvirt_unusual` names what is unusual there."""
_DISK_PARTS = frozenset({"driver", "source", "target", "backingStore", "address", "alias", "boot"})
_NIC_PARTS = frozenset({"mac", "source", "model", "target", "vlan", "driver", "address", "alias", "boot"})
_HOSTDEV_PARTS = frozenset({"source", "driver", "address", "alias", "boot"})
"""What is read of a device, or names and tunes it only on that host."""
_REASONS = {
    "commandline": "QEMU's own command line is not taken over",
    "emulator": "a program of the other host; vgpuctl takes this host's QEMU",
    "filesystem": "a folder of the other host",
    "cputune": "a VM spec has cpu_pin: for that",
    "numatune": "a VM spec has numa_node: and cpu_pin: for that",
    "memoryBacking": "a VM spec has hugepages: for that",
    "sysinfo": "SMBIOS values of the other host",
}
_LAST = 1 << 30
_OS_PATHS = ("loader", "nvram", "kernel", "initrd", "cmdline", "dtb", "init")
_UNITS = {"b": 1, "bytes": 1, "kb": 1000, "k": 1 << 10, "kib": 1 << 10, "mb": 10**6, "m": 1 << 20, "mib": 1 << 20,
          "gb": 10**9, "g": 1 << 30, "gib": 1 << 30, "tb": 10**12, "t": 1 << 40, "tib": 1 << 40}  # fmt: skip
_FORMATS = ("raw", "qcow2", "vmdk", "vdi", "vhdx", "vpc", "qed")


def parse_domain_file(source: Source, text: str) -> ForeignFile:
    """Read a domain.

    Raises:
        InvalidInput: it is not XML, has entities, or a value is wrong.
    """
    domain = parse_xml(source, text)
    left_out: list[str] = []
    name = first(domain, "name")
    line = line_of(domain if name is None else name)
    vcpu = first(domain, "vcpu")
    devices = first(domain, "devices")
    tpm, uuid = first(devices, "tpm"), first(domain, "uuid")
    vm = ImportedVm(
        name=source.text(line, "name", content(name)),
        position=source.at(line),
        memory_mib=_memory_mib(source, domain),
        vcpus=None if vcpu is None else source.count(line_of(vcpu), "vcpu", content(vcpu)),
        firmware=_firmware(domain),
        is_windows=_is_windows(domain),
        os_name=source.text(line, "libosinfo", _windows_name(domain)),
        disks=_find_disks(source, devices, left_out),
        nics=_find_nics(source, devices, left_out),
        gpus=_find_gpus(source, devices, left_out),
        clock=_clock(source, domain),
        tpm=None if tpm is None else f"{source.at(line_of(tpm))}: <tpm>",
        hardware_uuid=None if uuid is None else f"{source.at(line_of(uuid))}: <uuid>",
        arch=_arch(source, domain),
        drawn=_drawn(source, devices),
        left_out=(
            *left_out,
            *_find_differences(source, domain),
            *find_unusual(source, domain, is_windows=_is_windows(domain), firmware=_firmware(domain)),
            *_find_others(source, domain, devices),
        ),
    )
    return ForeignFile(source.name, FORMAT, vms=(vm,))


def _drawn(source: Source, devices: etree._Element | None) -> str | None:
    """Return where QEMU is made to draw for the guest; None if it is not."""
    model = find_drawing_card(devices)
    return None if model is None else f"{source.at(line_of(model))}: accel3d='yes'"


def _clock(source: Source, domain: etree._Element) -> ImportedClock | None:
    clock = first(domain, "clock")
    if clock is None:
        return None
    line, offset = line_of(clock), attribute(clock, "offset") or "utc"
    seconds, basis = attribute(clock, "adjustment") or "0", attribute(clock, "basis") or "utc"
    if offset == "variable" and basis == "utc" and seconds != "reset":
        return source.clock(line, "<clock adjustment>", seconds)
    words = {"utc": UTC, "localtime": LOCAL_TIME, "variable": LOCAL_TIME if basis == "localtime" else UTC}
    zone = source.text(line, "<clock timezone>", attribute(clock, "timezone") or "another zone")
    return ImportedClock(
        f"{source.at(line)}: <clock offset='{source.text(line, '<clock offset>', offset)}'>",
        f"the time of {zone}" if offset == "timezone" else words.get(offset, OWN_TIME),
    )


def _memory_mib(source: Source, domain: etree._Element, name: str = "memory") -> int | None:
    memory = first(domain, name)
    if memory is None:
        return None
    line, unit = line_of(memory), attribute(memory, "unit") or "KiB"
    if unit.lower() not in _UNITS:
        raise source.error(line, f"{name} has the unit {unit[:60]!a}, which is not known")
    return scaled_mib(source.count(line, name, content(memory)), _UNITS[unit.lower()])


def _arch(source: Source, domain: etree._Element) -> str | None:
    kind = first(domain, "os", "type")
    arch = attribute(kind, "arch")
    return None if kind is None or arch is None else source.text(line_of(kind), "arch", arch) or None


def _find_differences(source: Source, domain: etree._Element) -> list[str]:
    """Return a sentence for each number and name of the machine itself that is not taken over."""
    sentences = []
    vcpu, current = first(domain, "vcpu"), first(domain, "currentMemory")
    started = attribute(vcpu, "current")
    if vcpu is not None and started is not None:
        line = line_of(vcpu)
        if source.count(line, "vcpu current", started) != source.count(line, "vcpu", content(vcpu)):
            sentences.append(
                f"{source.at(line)}: <vcpu current>: the VM starts with {started} of its {content(vcpu)} CPUs there, "
                "and with all here"
            )
    memory_mib, current_mib = _memory_mib(source, domain), _memory_mib(source, domain, "currentMemory")
    if current is not None and current_mib != memory_mib:
        sentences.append(
            f"{source.at(line_of(current))}: <currentMemory>: the VM has {current_mib} of its {memory_mib} MiB there, "
            "and all here"
        )
    kind = first(domain, "os", "type")
    machine = attribute(kind, "machine")
    if kind is not None and machine is not None:
        shown = source.text(line_of(kind), "machine", machine)
        sentences.append(f"{source.at(line_of(kind))}: machine {shown}: vgpuctl chooses the machine type")
    return sentences


def _name_parts(source: Source, device: etree._Element, known: frozenset[str], what: str, left_out: list[str]) -> None:
    """Add a sentence about the parts of a device that are not taken over."""
    others = [
        source.text(line_of(part), what, shown(part)) for part in children(device) if local_name(part) not in known
    ]
    if others:
        place = source.at(line_of(device))
        left_out.append(f"{place}: {what}: {', '.join(dict.fromkeys(others))}: a VM spec has no such field")


def _firmware(domain: etree._Element) -> str:
    os_element = first(domain, "os")
    loader = first(os_element, "loader")
    words = f"{content(loader)} {content(first(os_element, 'nvram'))}".lower()
    is_uefi = attribute(os_element, "firmware") == "efi" or attribute(loader, "type") == "pflash" or "ovmf" in words
    return "uefi" if is_uefi else "bios"


def _is_windows(domain: etree._Element) -> bool:
    """Return whether libosinfo's metadata, or the features for Hyper-V's guests, show Windows."""
    ids = _os_ids(domain)
    return "microsoft.com/win" in ids if ids else first(domain, "features", "hyperv") is not None


def _windows_name(domain: etree._Element) -> str:
    """Return the guest's system as people call it, if libosinfo's metadata has one of Microsoft's: `win/10`."""
    return re.sub("^win/", "Windows ", _os_ids(domain).rpartition("microsoft.com/")[2])


def _os_ids(domain: etree._Element) -> str:
    info = first(domain, "metadata", "libosinfo")
    return "" if info is None else " ".join(attribute(element, "id") or "" for element in children(info, "os"))


def _find_disks(source: Source, devices: etree._Element | None, left_out: list[str]) -> tuple[ImportedDisk, ...]:
    disks = []
    for disk in sorted(() if devices is None else children(devices, "disk"), key=_boot_order):
        line = line_of(disk)
        place = source.at(line)
        target = source.text(line, "target", attribute(first(disk, "target"), "dev") or "a disk")
        kind = attribute(disk, "device") or "disk"
        origin = first(disk, "source")
        path = next((p for key in ("file", "dev", "volume") if (p := attribute(origin, key))), "")
        path = source.text(line, "<source> of a <disk>", path)
        file = posixpath.basename(path)
        if kind in ("cdrom", "floppy"):
            if path:
                left_out.append(f"{place}: {target} is a CD or floppy drive; cdrom: /PATH gives a new VM one")
        elif kind != "disk" or not stays_inside(file):
            left_out.append(f"{place}: {target} is not a file, volume or device that could be copied")
        else:
            from shlex import quote

            named = attribute(first(disk, "driver"), "type") or posixpath.splitext(file)[1].lstrip(".")
            disk_format = named if named in _FORMATS else "raw"
            fetch = (
                f"copy it here first: {quote(path)} on the other host; one with a backing file as one file, by "
                "qemu-img convert there"
            )
            is_on_virtio = attribute(first(disk, "target"), "bus") == "virtio"
            disks.append(ImportedDisk(file, disk_format, place, fetch, path, is_on_virtio=is_on_virtio))
            _name_parts(source, disk, _DISK_PARTS, f"disk {target}", left_out)
    return tuple(disks)


def _boot_order(disk: etree._Element) -> int:
    """Return the number of a disk among what the VM boots from; of those without one the first in the file counts."""
    order = attribute(first(disk, "boot"), "order") or ""
    return int(order) if re.fullmatch("[0-9]{1,9}", order, re.ASCII) else _LAST


def _find_nics(source: Source, devices: etree._Element | None, left_out: list[str]) -> tuple[ImportedNic, ...]:
    nics = []
    for interface in () if devices is None else children(devices, "interface"):
        line, kind = line_of(interface), attribute(interface, "type")
        origin = first(interface, "source")
        vlan = attribute(first(interface, "vlan", "tag"), "id")
        if kind == "hostdev":
            left_out.append(f"{source.at(line)}: a VF of a network card, passed through")
            continue
        if kind not in ("network", "bridge"):
            left_out.append(
                f"{source.at(line)}: a network card of the type {kind!a}: network 'default' takes its place"
            )
        bridge = attribute(origin, "bridge") if kind == "bridge" else None
        network = attribute(origin, "network") if kind == "network" else None
        _name_parts(source, interface, _NIC_PARTS, "a network card", left_out)
        nics.append(
            ImportedNic(
                source.at(line),
                mac=source.text(line, "mac", attribute(first(interface, "mac"), "address") or "") or None,
                network=source.text(line, "network", network or "") or None,
                bridge=source.text(line, "bridge", bridge or "") or None,
                vlan=None if vlan is None else source.count(line, "vlan", vlan),
                model=nic_model(attribute(first(interface, "model"), "type") or ""),
            )
        )
    return tuple(nics)


def _find_gpus(source: Source, devices: etree._Element | None, left_out: list[str]) -> tuple[ImportedGpu, ...]:
    gpus: list[ImportedGpu] = []
    slots: dict[str, list[etree._Element]] = {}
    for hostdev in () if devices is None else children(devices, "hostdev"):
        place, kind = source.at(line_of(hostdev)), attribute(hostdev, "type")
        address = first(hostdev, "source", "address")
        if kind == "mdev":
            uuid = source.text(line_of(hostdev), "uuid", attribute(address, "uuid") or "")
            gpus.append(ImportedGpu(place, vgpu_uuid=uuid))
        elif kind == "pci" and address is not None:
            numbers = [attribute(address, key) or "0" for key in ("domain", "bus", "slot")]
            slot = source.text(line_of(hostdev), "address", ":".join(n.removeprefix("0x") for n in numbers))
            slots.setdefault(slot, []).append(hostdev)
            _name_parts(source, hostdev, _HOSTDEV_PARTS, f"{slot}, passed through", left_out)
        else:
            left_out.append(f"{place}: a device of the other host ({kind!a}), passed through")
    for slot, parts in slots.items():
        reason = _no_gpu(parts)
        place = source.at(line_of(parts[0]))
        functions = [attribute(first(part, "source", "address"), "function") or "0" for part in parts]
        named = name_functions([f"{slot}.{number.removeprefix('0x')}" for number in functions])
        named = source.text(line_of(parts[0]), "function", named)
        if reason is None:
            gpus.append(ImportedGpu(place, device=named))
        else:
            left_out.append(f"{place}: {named}, passed through: {reason}")
    return tuple(gpus)


def _no_gpu(functions: Sequence[etree._Element]) -> str | None:
    """Return why a slot's functions that a VM has are no GPU; None if they may be.

    A GPU's functions are 0 and those that follow it: sound, USB, and USB's power.
    """
    if any(first(function, "boot") is not None for function in functions):
        return "it counts as no GPU, because the VM boots from it"
    numbers = {(attribute(first(f, "source", "address"), "function") or "0").removeprefix("0x") for f in functions}
    if "0" not in numbers:
        return WITHOUT_FIRST_FUNCTION
    if numbers != {str(number) for number in range(len(numbers))}:
        return "it counts as no GPU, because the functions of one have no gap"
    return None


def _find_others(source: Source, domain: etree._Element, devices: etree._Element | None) -> list[str]:
    os_element = first(domain, "os")
    others = [element for element in children(domain) if local_name(element) not in _SILENT_TOP]
    others += [] if devices is None else [e for e in children(devices) if local_name(e) not in _SILENT_DEVICES]
    others += [] if os_element is None else [e for e in children(os_element, *_OS_PATHS) if content(e)]
    sentences = []
    for element in others:
        name = source.text(line_of(element), "the element", local_name(element))
        shown = name if element.prefix is None else f"{element.prefix}:{name}"
        reason = _REASONS.get(name, "a path of the other host" if name in _OS_PATHS else "a VM spec has no such field")
        sentences.append(f"{source.at(line_of(element))}: <{shown}>: {reason}")
    return sentences
