# SPDX-License-Identifier: Apache-2.0
"""Read a VM of Proxmox VE: /etc/pve/qemu-server/NUMBER.conf, `key: value` in each line.

Snapshots and pending changes are sections after the VM itself, which do not count. `hostpciN` is a PCI device, a
mapping of the cluster, or with `mdev=` a vGPU type by its number. Source: Proxmox VE's manual page qm.conf(5).
"""

from __future__ import annotations

import posixpath
import re
from typing import NamedTuple

from vgpuctl.config.foreign_vms.imported import (
    ForeignFile,
    ImportedDisk,
    ImportedGpu,
    ImportedNic,
    ImportedVm,
    Source,
    nic_model,
    stays_inside,
)

FORMAT = "Proxmox VE"
_KEY = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_DISK = re.compile(r"(scsi|virtio|sata|ide)(\d{1,3})")
_NIC, _GPU = re.compile(r"net(\d{1,3})"), re.compile(r"hostpci(\d{1,3})")
_MARK = re.compile(
    r"^(ostype|scsihw|vmgenid|smbios1|bootdisk|cores|memory|(scsi|virtio|sata|ide|net|hostpci)\d{1,3}):", re.MULTILINE
)
_SILENT = frozenset({
    "acpi", "agent", "balloon", "boot", "bootdisk", "bios", "cores", "cpu", "machine", "memory", "meta", "name", "numa",
    "ostype", "parent", "runningcpu", "runningmachine", "scsihw", "smbios1", "snaptime", "sockets", "tablet", "vga",
    "vmgenid", "vmstate", "digest", "protection", "localtime", "freeze", "kvm", "autostart", "reboot", "hotplug",
    "keyboard", "rng0", "vcpus",
})  # fmt: skip
"""What is read here, or what every VM of vgpuctl has in its own way."""
_REASONS = {
    "args": "QEMU's own command line is not taken over",
    "hookscript": "a script of the other host is not taken over",
    "efidisk0": "UEFI's variables are not taken over: the VM gets new ones",
    "tpmstate0": "the state of the TPM is not taken over: have BitLocker's recovery key ready",
    "onboot": "autostart: enabled is vgpuctl's way",
    "tags": "labels: is vgpuctl's way",
    "description": "there is no field for it",
    "affinity": "cpu_pin: is vgpuctl's way",
    "hugepages": "hugepages: is vgpuctl's way",
}
_FORMATS = {"qcow2": "qcow2", "vmdk": "vmdk", "raw": "raw", "qed": "qed"}


class _Line(NamedTuple):
    number: int
    key: str
    value: str


def is_format(text: str) -> bool:
    """Return whether a text is probably a VM of Proxmox VE."""
    return _MARK.search(text) is not None


def parse_text(source: Source, text: str) -> ForeignFile:
    """Read a VM.

    Raises:
        InvalidInput: a line is no `key: value`, a key is given twice, or a value is wrong.
    """
    lines = _read_lines(source, text)
    values = {line.key: line for line in lines}
    left_out: list[str] = []
    name = values.get("name")
    memory = values.get("memory")
    vcpus = None
    if "cores" in values or "sockets" in values:
        vcpus = _count(source, values, "cores") * _count(source, values, "sockets")
    vm = ImportedVm(
        name="" if name is None else source.text(name.number, "name", name.value),
        position=source.at(1 if name is None else name.number),
        memory_mib=None if memory is None else _memory(source, memory),
        vcpus=vcpus,
        firmware="uefi" if "bios" in values and values["bios"].value == "ovmf" else "bios",
        is_windows="ostype" in values and values["ostype"].value.startswith(("win", "w2k", "wxp", "wvista")),
        disks=_find_disks(source, lines, left_out),
        nics=tuple(_make_nic(source, line) for line in _sorted(lines, _NIC)),
        gpus=_find_gpus(source, lines),
        left_out=(*left_out, *_find_others(source, lines)),
    )
    return ForeignFile(source.name, FORMAT, vms=(vm,))


def _read_lines(source: Source, text: str) -> list[_Line]:
    """Return the lines of the VM itself."""
    lines: dict[str, _Line] = {}
    for number, text_line in enumerate(text.split("\n"), 1):
        stripped = text_line.strip()
        if stripped.startswith("["):
            break
        if not stripped or stripped.startswith("#"):
            continue
        key, colon, value = stripped.partition(":")
        if not colon or not _KEY.fullmatch(key):
            raise source.error(number, f"{stripped[:60]!a} is not KEY: VALUE")
        if key in lines:
            raise source.error(number, f"{key} is given twice, first in line {lines[key].number}")
        lines[key] = _Line(number, key, value.strip())
    return list(lines.values())


def _count(source: Source, values: dict[str, _Line], key: str) -> int:
    return source.count(values[key].number, key, values[key].value) if key in values else 1


def _memory(source: Source, line: _Line) -> int:
    """Return the memory in MiB: `8192`, or `current=8192` since version 8."""
    first = line.value.partition(",")[0]
    return source.count(line.number, "memory", first.removeprefix("current="))


def _sorted(lines: list[_Line], pattern: re.Pattern[str]) -> list[_Line]:
    numbered = [(int(match[1]), line) for line in lines if (match := pattern.fullmatch(line.key)) is not None]
    return [line for _, line in sorted(numbered)]


def _options(source: Source, line: _Line, first_key: str) -> dict[str, str]:
    """Return a value's options; the first part may lack its key."""
    options: dict[str, str] = {}
    for number, part in enumerate(line.value.split(",")):
        key, equals, value = part.partition("=")
        if not equals and number == 0:
            key, value = first_key, part
        options[key.strip()] = source.text(line.number, line.key, value)
    return options


def _find_disks(source: Source, lines: list[_Line], left_out: list[str]) -> tuple[ImportedDisk, ...]:
    buses = ("scsi", "virtio", "sata", "ide")
    numbered = [
        (buses.index(match[1]), int(match[2]), line)
        for line in lines
        if (match := _DISK.fullmatch(line.key)) is not None
    ]
    disks = []
    for _, _, line in sorted(numbered):
        options = _options(source, line, "file")
        volume, place = options.get("file", ""), source.at(line.number)
        file = posixpath.basename(volume.partition(":")[2])
        if options.get("media") == "cdrom" or volume == "none":
            if "cloudinit" in volume:
                left_out.append(f"{place}: {line.key} is Proxmox' drive for cloud-init: cloud_init: is vgpuctl's way")
            elif volume != "none":
                left_out.append(f"{place}: {line.key} is a CD drive; cdrom: /PATH gives a new VM one")
        elif volume.startswith("/") or ":" not in volume:
            left_out.append(f"{place}: {line.key} is {volume[:80]!a}, a device or file of the other host")
        elif not stays_inside(file):
            left_out.append(f"{place}: {line.key} is {volume[:80]!a}, which names no volume")
        else:
            disks.append(_make_disk(line, options, volume, file, place))
    return tuple(disks)


def _make_disk(line: _Line, options: dict[str, str], volume: str, file: str, place: str) -> ImportedDisk:
    from shlex import quote

    suffix = posixpath.splitext(file)[1].lstrip(".").lower()
    disk_format = _FORMATS.get(options.get("format", suffix), "raw")
    fetch = f"copy it here first: on the Proxmox host pvesm path {quote(volume)} shows where it is"
    return ImportedDisk(file, disk_format, place, fetch, volume)


def _make_nic(source: Source, line: _Line) -> ImportedNic:
    options = _options(source, line, "model")
    model, mac = next(iter(options.items()))
    if model == "model":
        model, mac = options["model"], options.get("macaddr", "")
    vlan = options.get("tag")
    return ImportedNic(
        source.at(line.number),
        mac=mac or None,
        bridge=options.get("bridge") or None,
        vlan=None if vlan is None else source.count(line.number, "tag", vlan),
        model=nic_model(model),
    )


def _find_gpus(source: Source, lines: list[_Line]) -> tuple[ImportedGpu, ...]:
    """Return the devices and vGPUs of the hostpci lines. A device with several functions, such as audio, is one."""
    gpus: list[ImportedGpu] = []
    slots: set[str] = set()
    for line in _sorted(lines, _GPU):
        options = _options(source, line, "host")
        place = source.at(line.number)
        if "mdev" in options:
            gpus.append(ImportedGpu(place, type_id=options["mdev"]))
        elif "mapping" in options:
            gpus.append(ImportedGpu(place, device=f"the mapping {options['mapping']}"))
        else:
            for address in filter(None, (part.strip() for part in options.get("host", "").split(";"))):
                slot = _slot_of(address)
                if slot not in slots:
                    gpus.append(ImportedGpu(place, device=address))
                slots.add(slot)
    return tuple(gpus)


def _slot_of(address: str) -> str:
    """Return domain:bus:slot of a PCI address; Proxmox allows to leave the domain 0000 and the function out."""
    slot = address.partition(".")[0].lower()
    return slot if slot.count(":") > 1 else f"0000:{slot}"


def _find_others(source: Source, lines: list[_Line]) -> list[str]:
    sentences = []
    for line in lines:
        if line.key in _SILENT or any(p.fullmatch(line.key) for p in (_DISK, _NIC, _GPU)):
            continue
        reason = _REASONS.get(line.key, "a VM spec has no such field")
        sentences.append(f"{source.at(line.number)}: {line.key}: {reason}")
    return sentences
