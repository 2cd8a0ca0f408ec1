# SPDX-License-Identifier: Apache-2.0
"""Read VMware's VMX: one `key = "value"` in each line, keys in any case, `|22` for a quote.

Disks that the file names outside its own folder are left out: a VMX from elsewhere could name any file of the host.
Sources of the keys: libvirt's vmx.c, VMware's knowledge base, NVIDIA's vGPU documentation for VMware vSphere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vgpuctl.config.foreign_vms.imported import (
    IF_IT_IS_A_GPU,
    ForeignFile,
    ImportedClock,
    ImportedDisk,
    ImportedGpu,
    ImportedNic,
    ImportedVm,
    Source,
    nic_model,
    stays_inside,
)
from vgpuctl.makers import is_makers_vendor_id, is_vendor_of_network_cards
from vgpuctl.value import Value

FORMAT = "VMware VMX"
ENCODINGS = {
    **dict.fromkeys(("utf-8", "utf8"), "utf-8"),
    **{f"windows-{number}": f"cp{number}" for number in range(1250, 1259)},
    **{f"iso-8859-{number}": f"iso8859-{number}" for number in range(1, 16) if number != 12},
    "shift_jis": "cp932", "gbk": "gbk", "gb2312": "gbk", "big5": "big5", "euc-kr": "euc_kr", "us-ascii": "ascii",
}  # fmt: skip
"""What `.encoding` may say, and Python's name for it."""
_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_ESCAPE = re.compile(r"\|([0-9A-Fa-f]{2})")
_MARKS = ("config.version", "virtualhw.version", "displayname", "guestos", "memsize", "numvcpus")
_DISK = re.compile(r"(scsi|nvme|sata|ide)(\d{1,3}):(\d{1,3})\.(present|filename|devicetype)")
_BUSES = ("scsi", "nvme", "sata", "ide")
_NIC = re.compile(r"ethernet(\d{1,3})\.present")
_GPU = re.compile(r"pcipassthru(\d{1,3})\.(present|vgpu|id)")
_VALUE = re.compile(r"""("(?P<quoted>[^"]*)"|(?P<plain>[^\s"#]*))\s*(#.*)?""")
"""A value, and a comment after it."""
_NIC_KEYS = ("pfid", "dvs.portgroupid", "networkname", "macaddress")
"""Keys of a passed-through device that only VFs of network cards have."""
_VENDOR = re.compile(r"\s*(?:0x(?P<hex>[0-9a-f]{1,4})|(?P<number>-?[0-9]{1,5}))(?![0-9a-z])", re.IGNORECASE)
_SNAPSHOT = re.compile(r".*-[0-9]{6}\.vmdk", re.IGNORECASE)
"""What VMware calls a disk that has only what changed since a snapshot."""
_OTHER_DEVICES = re.compile(r"((?:floppy|serial|parallel|sharedfolder)\d{1,3}|sound)\.present")
_WINDOWS_9 = re.compile(r"^windows9(?!\d)")
"""What VMware calls Windows 10, and with `srv` Windows Server 2016."""
_UNSUPPORTED_PREFIXES = {
    "sched.": "limits and reservations of CPU and memory",
    "numa.": "NUMA placement; numa_node: and cpu_pin: are vgpuctl's",
    "guestinfo.": "values for VMware Tools in the guest; a VM spec has cloud_init: for that",
    "migrate.": "settings of vMotion",
    "hypervisor.cpuid.": "the guest sees here that it runs on KVM",
    "vvtd.": "a virtual IOMMU",
}


class _Entry(Value):
    key: str
    """As it is written."""
    line: int
    value: str


def is_format(text: str) -> bool:
    """Return whether a text is probably a VMX."""
    pattern = rf"^[ \t]*({'|'.join(map(re.escape, _MARKS))})[ \t]*="
    return re.search(pattern, text, re.IGNORECASE | re.MULTILINE) is not None


def parse_text(source: Source, text: str) -> ForeignFile:
    """Read a VMX.

    Raises:
        InvalidInput: a line is no `key = "value"`, a key is given twice, a value is wrong, or the VM is encrypted.
    """
    entries = _read_entries(source, text)
    encrypted = next((entry for key, entry in entries.items() if key.startswith("encryption.")), None)
    if encrypted is not None:
        raise source.error(
            encrypted.line, "this VM is encrypted, and its file shows nothing", hint="remove the encryption in VMware"
        )
    left_out: list[str] = []
    notes: list[str] = []
    name_line, name = _get_text(source, entries, "displayname")
    os_name = _get_text(source, entries, "guestos")[1]
    disks, is_safe = _find_disks(source, entries, left_out, notes)
    by_key = {key: (entry.line, entry.value) for key, entry in entries.items()}
    vm = ImportedVm(
        name=name,
        position=source.at(name_line),
        memory_mib=_get_count(source, entries, "memsize"),
        vcpus=_get_count(source, entries, "numvcpus"),
        firmware="uefi" if _get_text(source, entries, "firmware")[1].lower() == "efi" else "bios",
        is_windows=os_name.lower().startswith("win"),
        os_name=_WINDOWS_9.sub("windows10", os_name.lower()),
        disks=disks,
        nics=(*_find_nics(source, entries, left_out), *_find_passed_nics(source, entries, left_out)),
        gpus=find_gpus(source, by_key, left_out),
        opener="vmx" if is_safe else None,
        left_out=(*left_out, *_find_others(source, entries)),
        clock=find_clock(source, by_key),
        tpm=f"{source.at(entries['vtpm.present'].line)}: vtpm" if _is_true(entries, "vtpm.present") else None,
        notes=tuple(notes),
    )
    return ForeignFile(source.name, FORMAT, vms=(vm,))


def _read_entries(source: Source, text: str) -> dict[str, _Entry]:
    """Return the entries by key in lower case."""
    entries: dict[str, _Entry] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        match = _VALUE.fullmatch(value)
        if not equals or not _KEY.fullmatch(key) or match is None:
            raise source.error(number, f'{line.strip()[:60]!a} is not KEY = "VALUE"')
        if key.lower() in entries:
            raise source.error(number, f"{key} is given twice, first in line {entries[key.lower()].line}")
        inner = match["plain"] if match["quoted"] is None else match["quoted"]
        entries[key.lower()] = _Entry(key, number, _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), inner))
    return entries


def _get_text(source: Source, entries: dict[str, _Entry], key: str) -> tuple[int, str]:
    entry = entries.get(key)
    return (1, "") if entry is None else (entry.line, source.text(entry.line, entry.key, entry.value))


def _get_count(source: Source, entries: dict[str, _Entry], key: str) -> int | None:
    entry = entries.get(key)
    return None if entry is None else source.count(entry.line, entry.key, entry.value)


def _is_true(entries: dict[str, _Entry], key: str) -> bool:
    return key in entries and entries[key].value.strip().lower() == "true"


def _find_disks(
    source: Source, entries: dict[str, _Entry], left_out: list[str], notes: list[str]
) -> tuple[tuple[ImportedDisk, ...], bool]:
    """Return the disks, and whether all that the file names stay in its folder."""
    slots = {match.groups()[:3] for key in entries if (match := _DISK.fullmatch(key)) is not None}
    disks, is_safe = [], True
    for bus, controller, unit in sorted(slots, key=lambda slot: (_BUSES.index(slot[0]), int(slot[1]), int(slot[2]))):
        slot = f"{bus}{controller}:{unit}"
        line, file = _get_text(source, entries, f"{slot}.filename")
        if not _is_true(entries, f"{slot}.present") or not file:
            continue
        kind = _get_text(source, entries, f"{slot}.devicetype")[1].lower()
        if "cdrom" in kind or file.lower().endswith(".iso"):
            left_out.append(f"{source.at(line)}: {slot} is a CD drive; cdrom: /PATH gives a new VM one")
        elif "raw" in kind or "rdm" in kind:
            left_out.append(f"{source.at(line)}: {slot} is a device of the other host, not a file")
        elif not stays_inside(file):
            is_safe = False
            left_out.append(
                f"{source.at(line)}: {slot} is {file!a}, outside the VM's folder: move the disk into the folder of "
                f"{source.name} and write its name alone"
            )
        elif not file.lower().endswith(".vmdk"):
            left_out.append(f"{source.at(line)}: {slot} is {file!a}, and only .vmdk files are VMware's disks")
        else:
            disks.append(ImportedDisk(file, "vmdk", source.at(line)))
            if _SNAPSHOT.fullmatch(file):
                notes.append(
                    f"{source.at(line)}: {file} has only what changed since a snapshot: delete the VM's snapshots in "
                    "VMware first, which consolidates its disks, and give the VMX that it then has"
                )
    return tuple(disks), is_safe


def _find_nics(source: Source, entries: dict[str, _Entry], left_out: list[str]) -> tuple[ImportedNic, ...]:
    numbers = sorted(int(match[1]) for key in entries if (match := _NIC.fullmatch(key)) is not None)
    nics = []
    for number in dict.fromkeys(numbers):
        prefix = f"ethernet{number}"
        if not _is_true(entries, f"{prefix}.present"):
            continue
        line = entries[f"{prefix}.present"].line
        mac = (
            _get_text(source, entries, f"{prefix}.address")[1]
            or _get_text(source, entries, f"{prefix}.generatedaddress")[1]
        )
        network = _network_of(source, entries, prefix)
        model = _get_text(source, entries, f"{prefix}.virtualdev")[1]
        if model.lower() == "sriov":
            left_out.append(f"{source.at(line)}: {prefix} is a VF of a network card, passed through")
            continue
        start = entries.get(f"{prefix}.startconnected")
        if start is not None and start.value.strip().lower() == "false":
            left_out.append(f"{source.at(start.line)}: {start.key}: the card is not connected there, and is here")
        nics.append(ImportedNic(source.at(line), mac=mac or None, network=network or None, model=nic_model(model)))
    return tuple(nics)


def _network_of(source: Source, entries: dict[str, _Entry], prefix: str) -> str:
    """Return the network of a card: by its name, or by the id of its port group on a distributed switch."""
    texts = (_get_text(source, entries, f"{prefix}.{key}")[1] for key in ("networkname", "dvs.portgroupid"))
    return next(filter(None, texts), "")


def _is_nic(entries: Iterable[str], prefix: str) -> bool:
    """Return whether a passed-through device is a VF of a network card, by its keys."""
    return any(f"{prefix}.{key}" in entries for key in _NIC_KEYS)


def _find_passed_nics(source: Source, entries: dict[str, _Entry], left_out: list[str]) -> list[ImportedNic]:
    """Return a network card for each VF of one that is passed through."""
    numbers = sorted({int(match[1]) for key in entries if (match := _GPU.fullmatch(key)) is not None})
    nics = []
    for number in numbers:
        shown = f"pciPassthru{number}"
        prefix = shown.lower()
        present = entries.get(f"{prefix}.present")
        if not _is_nic(entries, prefix) or (present is not None and not _is_true(entries, f"{prefix}.present")):
            continue
        line = next(entry.line for key, entry in entries.items() if key.startswith(f"{prefix}."))
        mac = _get_text(source, entries, f"{prefix}.macaddress")[1]
        network = _network_of(source, entries, prefix)
        where = f" of the network {network!a}" if network else ""
        left_out.append(f"{source.at(line)}: {shown} is a VF of a network card{where}: here it is a virtual card")
        nics.append(ImportedNic(source.at(line), mac=mac or None, network=network or None))
    return nics


def find_gpus(source: Source, entries: dict[str, tuple[int, str]], left_out: list[str]) -> tuple[ImportedGpu, ...]:
    """Return the vGPUs and GPUs among entries like `pciPassthru0.vgpu`: (line, value) by key in lower case."""
    numbers = sorted({int(match[1]) for key in entries if (match := _GPU.fullmatch(key)) is not None})
    gpus = []
    for number in numbers:
        shown = f"pciPassthru{number}"
        prefix = shown.lower()
        line, present = entries.get(f"{prefix}.present", (1, "true"))
        if present.strip().lower() != "true" or _is_nic(entries, prefix):
            continue
        if f"{prefix}.vgpu" in entries:
            line, profile = entries[f"{prefix}.vgpu"]
            gpus.append(ImportedGpu(source.at(line), profile=source.text(line, f"{shown}.vgpu", profile)))
            continue
        line, address = entries.get(f"{prefix}.id", (line, ""))
        device = source.text(line, f"{shown}.id", address) or shown
        vendors = [entries[key][1] for key in (f"{prefix}.vendorid", f"{prefix}.alloweddevices") if key in entries]
        gpus += passed_gpu(source, line, shown, device, vendors, left_out)
    return tuple(gpus)


def find_clock(source: Source, entries: dict[str, tuple[int, str]]) -> ImportedClock | None:
    """Return the clock, if `rtc.diffFromUTC` among such entries has the seconds by which it differs from UTC."""
    line, seconds = entries.get("rtc.difffromutc", (1, ""))
    return source.clock(line, "rtc.diffFromUTC", seconds) if seconds else None


def passed_gpu(
    source: Source, line: int, shown: str, device: str, vendors: Iterable[str], left_out: list[str]
) -> tuple[ImportedGpu, ...]:
    """Return a whole device that is passed through, if it may be a GPU; else the reason is in `left_out`.

    `shown`: its name in its file, `device`: for people. `vendors`: texts that begin with its PCI vendor: its own key,
    or the devices that DirectPath may choose. A maker of network cards, such as Intel, makes more of these,
    so its devices do not count.
    """
    vendor = next((number for text in vendors if (number := _vendor_id(text)) is not None), None)
    if vendor is not None and is_vendor_of_network_cards(f"{vendor:04x}"):
        left_out.append(
            f"{source.at(line)}: {shown} passes a device of vendor {vendor:#06x} through, which may be a network card "
            f"and does not count: {IF_IT_IS_A_GPU}"
        )
    elif vendor is not None and not is_makers_vendor_id(f"{vendor:04x}"):
        left_out.append(f"{source.at(line)}: {shown} passes a device of vendor {vendor:#06x} through, which is no GPU")
    else:
        return (ImportedGpu(source.at(line), device=device),)
    return ()


def _vendor_id(text: str) -> int | None:
    """Return a PCI vendor: 0x10de, or as vSphere's API has it, a number of 16 bits with a sign."""
    match = _VENDOR.match(text)
    if match is None:
        return None
    return int(match["hex"], 16) if match["hex"] else int(match["number"]) & 0xFFFF


def _find_others(source: Source, entries: dict[str, _Entry]) -> list[str]:
    """Return a sentence for each thing that a VM spec cannot express."""
    lines = []
    for key, entry in entries.items():
        match = _OTHER_DEVICES.fullmatch(key)
        if match is not None and _is_true(entries, key):
            lines.append(f"{source.at(entry.line)}: {match[1]}: a VM of vgpuctl has no such device of the other host")
    for prefix, what in _UNSUPPORTED_PREFIXES.items():
        matching = [entry.line for key, entry in entries.items() if key.startswith(prefix)]
        if matching:
            lines.append(f"{source.at(matching[0])}: {prefix}*: {what}")
    return lines
