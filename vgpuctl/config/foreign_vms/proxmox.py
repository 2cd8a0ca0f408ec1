# SPDX-License-Identifier: Apache-2.0
"""Read a VM of Proxmox VE: /etc/pve/qemu-server/NUMBER.conf, `key: value` in each line.

Snapshots and pending changes are sections after the VM itself: none of them is taken over. `hostpciN` is a PCI device,
a mapping of the cluster, or with `mdev=` a vGPU type by its number. Source: Proxmox VE's manual page qm.conf(5).
"""

from __future__ import annotations

import posixpath
import re
from typing import NamedTuple

from vgpuctl.config.foreign_vms.imported import (
    LOCAL_TIME,
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
    stays_inside,
)
from vgpuctl.value import replace

FORMAT = "Proxmox VE"
_KEY = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_DISK = re.compile(r"(scsi|virtio|sata|ide)(\d{1,3})")
_NIC, _GPU = re.compile(r"net(\d{1,3})"), re.compile(r"hostpci(\d{1,3})")
_MARK = re.compile(
    r"^(ostype|scsihw|vmgenid|smbios1|bootdisk|cores|memory|(scsi|virtio|sata|ide|net|hostpci)\d{1,3}):", re.MULTILINE
)
_USED = frozenset(
    {"arch", "bios", "cores", "memory", "name", "ostype", "sockets", "vcpus", "smbios1", "localtime", "tpmstate0"}
)
_SILENT = frozenset({"boot", "bootdisk", "description", "digest", "meta", "scsihw", "tablet", "vmgenid"})
"""What means nothing for a guest elsewhere, or what every VM of vgpuctl has in its own way."""
_SILENT_VALUES = {
    "acpi": ("1",), "autostart": ("0",), "balloon": ("0",), "freeze": ("0",), "kvm": ("1",), "numa": ("0",),
    "onboot": ("0",), "protection": ("0",), "reboot": ("1",), "template": ("0",), "agent": ("0", "1"),
}  # fmt: skip
"""Values that change nothing: mostly Proxmox' defaults."""
_NIC_OPTIONS = frozenset({"model", "macaddr", "bridge", "tag"})
_DISK_OPTIONS = frozenset({"file", "format", "media", "size", "cache", "discard", "ssd", "iothread", "aio", "backup"})
_GPU_OPTIONS = frozenset({"host", "mapping", "mdev", "pcie", "x-vga"})
"""What is read of a device, or only tunes it."""
_DEFAULT_OPTIONS = frozenset({"firewall=0", "link_down=0", "rombar=1", "replicate=1", "shared=0", "ro=0"})
_OS_NAMES = {"win7": "Windows 7", "win8": "Windows 8 or 2012", "win10": "Windows 10, 2016 or 2019",
             "win11": "Windows 11, 2022 or 2025"}  # fmt: skip
_UNKNOWN_SYSTEMS = frozenset({"other", "solaris"})
_REASONS = {
    "args": "QEMU's own command line is not taken over",
    "hookscript": "a script of the other host is not taken over",
    "efidisk0": "UEFI's variables are not taken over: the VM gets new ones",
    "onboot": "a VM spec has autostart: enabled for that",
    "tags": "a VM spec has labels: for that",
    "affinity": "a VM spec has cpu_pin: for that",
    "hugepages": "a VM spec has hugepages: for that",
    "numa": "a VM spec has numa_node: and cpu_pin: for that",
    "balloon": "a VM of vgpuctl always has its whole memory",
    "cpu": "vgpuctl chooses the CPU that the guest sees",
    "machine": "vgpuctl chooses the machine type",
    "vga": "a VM here has a VGA card for its console, or display: for a vGPU's screen",
    "startup": "a VM spec has start_order: for that",
    "parent": "the snapshots are not taken over",
    "template": "it is a template there, and a VM here",
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
    left_out: list[str] = []
    notes: list[str] = []
    lines, sections = _read_lines(source, text)
    values = {line.key: line for line in lines}
    name, memory, os_type = values.get("name"), values.get("memory"), values.get("ostype")
    os_word = "" if os_type is None else source.text(os_type.number, "ostype", os_type.value)
    is_windows = os_word.startswith(("win", "w2k", "wxp", "wvista"))
    position = source.at(1 if name is None else name.number)
    if os_type is not None and os_word in _UNKNOWN_SYSTEMS:
        notes.append(f"{source.at(os_type.number)}: ostype: {os_word} names no system: check os: in the spec")
    smbios, arch = values.get("smbios1"), values.get("arch")
    has_uuid = smbios is not None and "uuid=" in smbios.value
    vm = ImportedVm(
        name="" if name is None else source.text(name.number, "name", name.value),
        position=position,
        memory_mib=None if memory is None else _memory(source, memory),
        vcpus=_vcpus(source, values, position, left_out, notes),
        firmware="uefi" if "bios" in values and values["bios"].value == "ovmf" else "bios",
        is_windows=is_windows,
        os_name=_OS_NAMES.get(os_word, os_word),
        disks=_find_disks(source, lines, left_out),
        nics=tuple(_make_nic(source, line, left_out) for line in _sorted(lines, _NIC)),
        gpus=_find_gpus(source, lines, left_out),
        left_out=(*left_out, *_find_others(source, lines), *sections),
        clock=_clock(source, values, is_windows=is_windows),
        tpm=None if "tpmstate0" not in values else f"{source.at(values['tpmstate0'].number)}: tpmstate0",
        hardware_uuid=f"{source.at(smbios.number)}: smbios1" if smbios is not None and has_uuid else None,
        arch=None if arch is None else source.text(arch.number, "arch", arch.value),
        drawn=_drawn(source, values),
        notes=tuple(notes),
    )
    return ForeignFile(source.name, FORMAT, vms=(vm,))


def _drawn(source: Source, values: dict[str, _Line]) -> str | None:
    """Return where the display is VirGL's (qm.conf(5): `vga: virtio-gl`, or with `type=`)."""
    line = values.get("vga")
    is_drawn = line is not None and line.value.partition(",")[0].removeprefix("type=") == "virtio-gl"
    return f"{source.at(line.number)}: vga: virtio-gl" if line is not None and is_drawn else None


def _clock(source: Source, values: dict[str, _Line], *, is_windows: bool) -> ImportedClock | None:
    """Return what the clock shows: `localtime: 1`, also of Windows where the file does not say (qm.conf(5))."""
    line = values.get("localtime", values.get("ostype") if is_windows else None)
    if line is None:
        return None
    is_local = line.key == "ostype" or line.value in ("1", "on", "yes", "true")
    shown = f"{source.at(line.number)}: {line.key}: {source.text(line.number, line.key, line.value)}"
    return ImportedClock(shown, LOCAL_TIME if is_local else UTC)


def _read_lines(source: Source, text: str) -> tuple[list[_Line], list[str]]:
    """Return the lines of the VM itself, and sentences about the sections after them."""
    lines: dict[str, _Line] = {}
    sections: list[str] = []
    section = ""
    for number, text_line in enumerate(text.split("\n"), 1):
        stripped = text_line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if stripped.startswith("["):
            section = source.text(number, "the section", stripped[:_MAX_SHOWN])
            if section.upper() != _PENDING:
                sections.append(f"{source.at(number)}: {section}: a snapshot or other section is not taken over")
        elif section.upper() == _PENDING:
            shown = source.text(number, section, stripped[:_MAX_SHOWN])
            sections.append(f"{source.at(number)}: {section}: {shown!a} waits there for the VM's next start")
        elif not section:
            key, colon, value = stripped.partition(":")
            if not colon or not _KEY.fullmatch(key):
                raise source.error(number, f"{stripped[:60]!a} is not KEY: VALUE")
            if key in lines:
                raise source.error(number, f"{key} is given twice, first in line {lines[key].number}")
            lines[key] = _Line(number, key, value.strip())
    return list(lines.values()), sections


_PENDING = "[PENDING]"
_MAX_SHOWN = 80


def _vcpus(source: Source, values: dict[str, _Line], position: str, left_out: list[str], notes: list[str]) -> int:
    """Return the vCPUs: cores of all sockets, each 1 where the file does not say (qm.conf(5))."""
    number = _count(source, values, "cores") * _count(source, values, "sockets")
    if "cores" not in values:
        notes.append(f"{position}: there is no cores: Proxmox' default is 1 for each socket, so vcpus is {number}")
    if "vcpus" in values and _count(source, values, "vcpus") != number:
        place, there = source.at(values["vcpus"].number), values["vcpus"].value
        left_out.append(f"{place}: vcpus: the VM starts with {there} of its {number} CPUs there, and with all here")
    return number


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
    first = _boot_keys(lines)
    numbered.sort(key=lambda one: (first.index(one[2].key) if one[2].key in first else len(first), one[0], one[1]))
    disks = []
    for _, _, line in numbered:
        options = _options(source, line, "file")
        volume, place = options.get("file", ""), source.at(line.number)
        file = posixpath.basename(volume.partition(":")[2])
        if options.get("media") == "cdrom" or volume == "none":
            if "cloudinit" in volume:
                left_out.append(
                    f"{place}: {line.key} is Proxmox' drive for cloud-init: a VM spec has cloud_init: for that"
                )
            elif volume != "none":
                left_out.append(f"{place}: {line.key} is a CD drive; cdrom: /PATH gives a new VM one")
        elif volume.startswith("/") or ":" not in volume:
            left_out.append(
                f"{place}: {line.key} is {volume[:80]!a}, a device or file of the other host: name it in disk: once it "
                "is here"
            )
        elif not stays_inside(file):
            left_out.append(f"{place}: {line.key} is {volume[:80]!a}, which names no volume")
        else:
            disks.append(_make_disk(line, options, volume, file, place))
            _name_options(source, line, options, _DISK_OPTIONS, left_out)
    return tuple(disks)


def _boot_keys(lines: list[_Line]) -> list[str]:
    """Return what the VM boots from: `boot: order=scsi0;net0`, before version 6.3 `bootdisk: scsi0`."""
    values = {line.key: line.value for line in lines}
    order = next((part[6:] for part in values.get("boot", "").split(",") if part.startswith("order=")), "")
    return [key.strip() for key in (order or values.get("bootdisk", "")).split(";")]


def _make_disk(line: _Line, options: dict[str, str], volume: str, file: str, place: str) -> ImportedDisk:
    from shlex import quote

    suffix = posixpath.splitext(file)[1].lstrip(".").lower()
    disk_format = _FORMATS.get(options.get("format", suffix), "raw")
    fetch = f"copy it here first: on the Proxmox host pvesm path {quote(volume)} shows where it is"
    return ImportedDisk(file, disk_format, place, fetch, volume, is_on_virtio=line.key.startswith("virtio"))


def _make_nic(source: Source, line: _Line, left_out: list[str]) -> ImportedNic:
    options = _options(source, line, "model")
    model, mac = next(iter(options.items()))
    _name_options(source, line, options, _NIC_OPTIONS | {model}, left_out)
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


def _name_options(
    source: Source, line: _Line, options: dict[str, str], known: frozenset[str], left_out: list[str]
) -> None:
    """Add a sentence about the options of a device that are not taken over."""
    pairs = {key: f"{key}={value}"[:_MAX_SHOWN] for key, value in options.items() if key not in known}
    others = ", ".join(
        source.text(line.number, line.key, pair) for pair in pairs.values() if pair not in _DEFAULT_OPTIONS
    )
    if others:
        left_out.append(f"{source.at(line.number)}: {line.key}: {others}: a VM spec has no such field")


def _find_gpus(source: Source, lines: list[_Line], left_out: list[str]) -> tuple[ImportedGpu, ...]:
    """Return the devices and vGPUs of the hostpci lines. A device with several functions, such as audio, is one."""
    gpus: dict[str, ImportedGpu] = {}
    slots: dict[str, list[str]] = {}
    for line in _sorted(lines, _GPU):
        options = _options(source, line, "host")
        place = source.at(line.number)
        _name_options(source, line, options, _GPU_OPTIONS, left_out)
        mapping = options.get("mapping") or None
        if "mdev" in options:
            gpus[line.key] = ImportedGpu(place, type_id=options["mdev"], mapping=mapping)
        elif mapping is not None:
            gpus[line.key] = ImportedGpu(place, device=f"the mapping {mapping}", mapping=mapping)
        else:
            for address in filter(None, (part.strip() for part in options.get("host", "").split(";"))):
                slot = _slot_of(address)
                slots.setdefault(slot, []).append(address)
                gpus.setdefault(slot, ImportedGpu(place))
    for slot, addresses in slots.items():
        gpus[slot] = replace(gpus[slot], device=name_functions(addresses))
        if not any(address.partition(".")[2] in ("", "0") for address in addresses):  # without a function: all
            gpu = gpus.pop(slot)
            left_out.append(f"{gpu.position}: {gpu.device}, passed through: {WITHOUT_FIRST_FUNCTION}")
    return tuple(gpus.values())


def _slot_of(address: str) -> str:
    """Return domain:bus:slot of a PCI address; Proxmox allows to leave the domain 0000 and the function out."""
    slot = address.partition(".")[0].lower()
    return slot if slot.count(":") > 1 else f"0000:{slot}"


def _find_others(source: Source, lines: list[_Line]) -> list[str]:
    """Return a sentence for each line that is not read and that could mean something for the guest."""
    sentences = []
    for line in lines:
        if line.key == "smbios1":
            others = [part for part in line.value.split(",") if part.partition("=")[0] not in ("uuid", "base64")]
            if others:
                sentences.append(f"{source.at(line.number)}: smbios1: SMBIOS values of the other host")
            continue
        is_drawn = line.key == "vga" and line.value.partition(",")[0].removeprefix("type=") == "virtio-gl"
        is_silent = is_drawn or line.key in _USED | _SILENT or line.value in _SILENT_VALUES.get(line.key, ())
        if not is_silent and not any(pattern.fullmatch(line.key) for pattern in (_DISK, _NIC, _GPU)):
            reason = _REASONS.get(line.key, "a VM spec has no such field")
            sentences.append(f"{source.at(line.number)}: {line.key}: {reason}")
    return sentences
