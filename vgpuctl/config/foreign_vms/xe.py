# SPDX-License-Identifier: Apache-2.0
"""Read what XenServer's and XCP-ng's `xe` prints: VMs (vm-param-list, vm-list params=all), vGPUs, VIFs, GPU groups.

Each record begins with its uuid: `key ( RO)    : value`, where M, S and RW mark maps, sets and what can be written.
Long values continue in the next lines. A vGPU's type is its model name, such as `GRID A100-4C`; `passthrough` is a
whole GPU. Sources: xapi's cli_operations and records in xapi-project/xen-api, XenServer's command reference.
"""

from __future__ import annotations

import re

from vgpuctl.config.arguments import placement_policy_of
from vgpuctl.config.foreign_vms.imported import (
    MAX_DEVICES_PER_VM,
    MAX_VMS_PER_FILE,
    WITHOUT_FIRST_FUNCTION,
    ForeignFile,
    ImportedClock,
    ImportedDevice,
    ImportedDisk,
    ImportedGpu,
    ImportedHostSettings,
    ImportedNic,
    ImportedVm,
    Source,
    bytes_to_mib,
    name_functions,
)
from vgpuctl.model.names import normalize_pci
from vgpuctl.value import Value

FORMAT = "XenServer xe"
_FIELD = re.compile(r"[ \t]*([A-Za-z][A-Za-z0-9_-]{0,63})[ \t]*\([ MS]?R[OW]\)[ \t]*:[ \t]?(.*)")
_MARK = re.compile(r"^[ \t]*uuid[ \t]*\([ MS]?R[OW]\)[ \t]*:", re.MULTILINE)
_OS_NAME = re.compile(r"(?:.*;)?[ ]*name:[ ]*([^|;]*)")
_NONE = ("", "<not in database>", "<null>")


class _Field(Value):
    line: int
    value: str


_Record = dict[str, _Field]


def is_format(text: str) -> bool:
    """Return whether a text is probably one that xe printed."""
    return _MARK.search(text) is not None


def parse_text(source: Source, text: str) -> ForeignFile:
    """Read one or more outputs of xe.

    Raises:
        InvalidInput: a value is wrong, or there are too many VMs.
    """
    vms: list[ImportedVm] = []
    devices: list[ImportedDevice] = []
    settings: list[ImportedHostSettings] = []
    left_out: list[str] = []
    for record in _read_records(source, text):
        line = record["uuid"].line
        if "memory-static-max" in record or "VCPUs-max" in record:
            skipped = next((key for key in _NO_VMS if _value(source, record, key) == "true"), None)
            if skipped is not None:
                left_out.append(f"{source.at(line)}: {_value(source, record, 'name-label')!a} {_NO_VMS[skipped]}")
            else:
                vms.append(_make_vm(source, record))
        elif "vm-uuid" in record and ("type-model-name" in record or "gpu-group-uuid" in record):
            devices.append(_make_vgpu(source, record))
        elif "vm-uuid" in record and "MAC" in record:
            devices.append(_make_nic(source, record))
        elif "allocation-algorithm" in record:
            settings.append(_make_settings(source, record))
        else:
            left_out.append(f"{source.at(line)}: a record that is no VM, vGPU, VIF or GPU group")
    if len(vms) > MAX_VMS_PER_FILE:
        raise source.error(1, f"it describes {len(vms)} VMs; at most {MAX_VMS_PER_FILE} are read at once")
    return ForeignFile(source.name, FORMAT, tuple(vms), tuple(devices), tuple(settings), tuple(left_out))


_NO_VMS = {
    "is-a-template": "is a template, not a VM",
    "is-a-snapshot": "is a snapshot, not a VM",
    "is-control-domain": "is the host's control domain, not a VM",
}


def _read_records(source: Source, text: str) -> list[_Record]:
    records: list[_Record] = []
    key = ""
    wrapped: dict[int, list[str]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        match = _FIELD.fullmatch(line)
        if match is not None:
            key = match[1]
            if key == "uuid":
                records.append({})
            if not records:
                raise source.error(number, f"{key} is before the first uuid: expected a whole record, as xe prints it")
            if key in records[-1]:
                raise source.error(number, f"{key} is given twice, first in line {records[-1][key].line}")
            records[-1][key] = _Field(number, "")
            wrapped[number] = [match[2]]
        elif line.strip() and records:
            wrapped[records[-1][key].line].append(line)
        elif line.strip():
            raise source.error(number, f"{line.strip()[:60]!a} is not what xe prints")
    return [{k: _Field(f.line, _joined(wrapped[f.line])) for k, f in record.items()} for record in records]


def _joined(lines: list[str]) -> str:
    """Return a value whose lines xe, a terminal or a mail program wrapped."""
    return " ".join(line.strip().removesuffix("\\").strip() for line in lines).strip()


def _value(source: Source, record: _Record, key: str) -> str:
    field = record.get(key)
    if field is None:
        return ""
    value = source.text(field.line, key, field.value)
    return "" if value in _NONE else value


def _map_value(record: _Record, key: str, entry: str) -> str:
    """Return an entry of a map like `firmware: uefi; order: cdn`; empty if it is missing."""
    field = record.get(key)
    pairs = (part.partition(":") for part in (field.value if field is not None else "").split(";"))
    return next((value.strip().lower() for name, _, value in pairs if name.strip() == entry), "")


def _make_vm(source: Source, record: _Record) -> ImportedVm:
    line = record["uuid"].line
    uuid = _value(source, record, "uuid")
    memory = record.get("memory-static-max")
    vcpus = record.get("VCPUs-max", record.get("VCPUs-number"))
    gpus, lost = _find_passed_through(source, record)
    os_text = record["os-version"].value.lower() if "os-version" in record else ""
    os_name = _OS_NAME.match(_value(source, record, "os-version")) if "windows" in os_text else None
    is_windows = "windows" in os_text or (not os_text and _map_value(record, "platform", "viridian") == "true")
    fetch = (
        f"on the XenServer host: xe vm-disk-list uuid={uuid} lists its disks, and xe vdi-export uuid=VDI "
        "filename=FILE format=vhd writes one to this file"
    )
    name = _value(source, record, "name-label")
    vifs = _value(source, record, "VIFs")
    return ImportedVm(
        name=name,
        position=source.at(line),
        uuid=uuid,
        memory_mib=None
        if memory is None
        else bytes_to_mib(source.count(memory.line, "memory-static-max", memory.value)),
        vcpus=None if vcpus is None else source.count(vcpus.line, "the number of VCPUs", vcpus.value),
        firmware="uefi" if _map_value(record, "HVM-boot-params", "firmware") == "uefi" else "bios",
        is_windows=is_windows,
        os_name="" if os_name is None else os_name[1],
        disks=(ImportedDisk("disk.vhd", "vpc", source.at(line), fetch),),
        opener="disk",
        gpus=gpus,
        clock=_clock(source, record),
        listed_nics=len([part for part in vifs.split(";") if part.strip()]) if vifs else None,
        left_out=(
            f"{source.at(line)}: xe's text does not name the VM's disks: one is assumed",
            *_find_differences(source, record),
            *lost,
        ),
    )


def _clock(source: Source, record: _Record) -> ImportedClock | None:
    """Return the clock by platform:timeoffset, in seconds; 0 is what every new VM has."""
    seconds = _map_value(record, "platform", "timeoffset")
    is_set = seconds not in ("", "0")
    return source.clock(record["platform"].line, "platform: timeoffset", seconds) if is_set else None


def _find_passed_through(source: Source, record: _Record) -> tuple[tuple[ImportedGpu, ...], tuple[str, ...]]:
    """Return the whole devices of other-config:pci, a GPU for the functions of each slot, and what is no address.

    Its form is `0/0000:0b:00.0,0/0000:0b:00.1`. Source: XCP-ng's documentation, PCI Passthrough.
    """
    field = record.get("other-config")
    value = "" if field is None else _map_value(record, "other-config", "pci")
    if field is None or not value:
        return (), ()
    place = source.at(field.line)
    slots: dict[str, list[str]] = {}
    lost = []
    for text in value.split(",")[:MAX_DEVICES_PER_VM]:
        entry = source.text(field.line, "other-config:pci", text)
        order, slash, device = entry.rpartition("/")
        address = None if slash and not order.isdecimal() else normalize_pci(device)
        if address is None:
            lost.append(f"{place}: other-config:pci: {entry!a} is no PCI address")
        else:
            slots.setdefault(address.rpartition(".")[0], []).append(address)
    gpus = []
    for parts in slots.values():
        if any(part.endswith(".0") for part in parts):
            gpus.append(ImportedGpu(place, device=name_functions(parts)))
        else:
            lost.append(f"{place}: {name_functions(parts)}, passed through: {WITHOUT_FIRST_FUNCTION}")
    return tuple(gpus), tuple(lost)


_LOWER = (
    ("VCPUs-at-startup", "VCPUs-max", "the VM starts with fewer CPUs there, and with all here"),
    ("memory-dynamic-max", "memory-static-max", "the VM gets less memory there, and the whole memory here"),
)


def _find_differences(source: Source, record: _Record) -> list[str]:
    """Return a sentence for each number that is lower than the one that is taken over."""
    sentences = []
    for key, whole, sentence in _LOWER:
        field = record.get(key)
        if field is None or whole not in record or not _value(source, record, key):
            continue
        if source.count(field.line, key, field.value) < source.count(record[whole].line, whole, record[whole].value):
            sentences.append(f"{source.at(field.line)}: {key} {field.value} is below {whole}: {sentence}")
    return sentences


def _make_vgpu(source: Source, record: _Record) -> ImportedDevice:
    position = source.at(record["uuid"].line)
    model = _value(source, record, "type-model-name")
    group = _value(source, record, "gpu-group-name-label")
    if model.lower() in ("", "passthrough"):
        gpu = ImportedGpu(position, device=group or "a whole GPU")
    else:
        gpu = ImportedGpu(position, profile=model)
    return ImportedDevice(_value(source, record, "vm-uuid"), position, gpu=gpu)


def _make_nic(source: Source, record: _Record) -> ImportedDevice:
    position = source.at(record["uuid"].line)
    network = _value(source, record, "network-name-label")
    nic = ImportedNic(position, mac=_value(source, record, "MAC") or None, network=network or None)
    return ImportedDevice(_value(source, record, "vm-uuid"), position, nic=nic)


def _make_settings(source: Source, record: _Record) -> ImportedHostSettings:
    field = record["allocation-algorithm"]
    policy = placement_policy_of(source.text(field.line, "allocation-algorithm", field.value))
    if policy is None:
        raise source.error(
            field.line, f"allocation-algorithm is {field.value[:60]!a}, not depth-first or breadth-first"
        )
    return ImportedHostSettings(source.at(field.line), placement=policy)
