# SPDX-License-Identifier: Apache-2.0
"""A domain's elements, lxml's or the standard library's: a VM's record, and the devices of the host that it names.

libvirt's hook runs while a VM's start waits, so it reads both without loading lxml; every other command loads lxml
anyway. One function reads for both.

The record is in the domain's metadata. `<hostdev>`, an `<interface type='hostdev'>` (a VF as network card) and a
`<disk type='nvme'>` name a device in an element of their own. QEMU's own arguments (`<qemu:commandline>`,
`<qemu:override>`) and other kinds of `<hostdev>` name one in a text: `sysfsdev=/sys/bus/mdev/devices/UUID`,
`host=3b:00.4`. An interface on a network with a pool of VFs names its VF only while the domain runs: libvirt's live XML
then shows it as an `<interface type='hostdev'>`.

Size: what writes a record and what reads it are next to each other, element by element.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vgpuctl.errors import InvalidInput
from vgpuctl.model.desktop import DesktopMark, check_mark
from vgpuctl.model.gpu import Backend
from vgpuctl.model.migration import MigrationMark, MigrationRole
from vgpuctl.model.names import format_pci
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.vm import AssignedVgpu, DiskRole, HostdevRef, ManagedDisk, RecordState, VmRecord
from vgpuctl.value import replace

if TYPE_CHECKING:
    from lxml import etree

_NOT_XML = re.compile("[\x00-\x1f\ud800-\udfff\ufffe\uffff]")

Element = Any
"""An element with `tag`, `text`, `attrib`, `get` and its children: lxml.etree's or xml.etree's."""
TEXT_KIND = "text"
"""The `kind` of a device that a domain names only in a text, so that libvirt does not know of it."""
_QEMU_PARTS = tuple(
    f"{{http://libvirt.org/schemas/domain/qemu/1.0}}{part}" for part in ("commandline", "override", "capabilities")
)
_NAMED_DEVICE = re.compile(
    r"(?<![0-9A-Za-z.:-])"
    r"(?:(?P<uuid>[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})"
    r"|(?:(?P<domain>[0-9A-Fa-f]{4,8}):)?(?P<bus>[0-9A-Fa-f]{1,2}):(?P<slot>[01]?[0-9A-Fa-f])\.(?P<function>[0-7]))"
    r"(?![0-9A-Za-z.:-]|/[0-9A-Za-z])",
    re.ASCII,
)
"""A UUID or a PCI address. One that is a directory in a longer path does not count: it is only the parent."""


def record_to_xml(record: VmRecord) -> str:
    """Return the element; it declares its namespace itself, so it can stand in a domain's `<metadata>`.

    Raises:
        InvalidInput: a value holds a control character, which XML cannot keep.
    """
    from lxml import etree

    root = etree.Element(ROOT_TAG, nsmap={None: NAMESPACE})  # type: ignore[dict-item] # the stubs know no default namespace
    _set_attributes(
        root,
        {
            "state": record.state.value,
            "vm-uuid": record.vm_uuid,
            "machine-id": record.machine_id,
            "reserve": record.reserve,
            "made-vm": None if record.created_vm else "no",
            "account": record.account,
            "generation": _number_text(record.generation or None),
            "should-run": "yes" if record.should_run else None,
        },
    )
    for vgpu in record.vgpus:
        _add_vgpu(root, vgpu)
    for disk in record.disks:
        _set_attributes(
            etree.SubElement(root, f"{{{NAMESPACE}}}disk"),
            {
                "pool": disk.pool,
                "volume": disk.volume,
                "path": disk.path,
                "capacity-bytes": _number_text(disk.capacity_bytes),
                "base": disk.base,
                "base-format": disk.base_format,
                "copied-from": disk.copied_from,
                "format": None if disk.format == "qcow2" else disk.format,
                "bin": disk.bin_entry,
                "role": None if disk.role is DiskRole.DISK else disk.role.value,
            },
        )
    if record.desktop is not None:
        _add_desktop(root, record.desktop)
    if record.migration is not None:
        _add_migration(root, record.migration)
    etree.SubElement(root, f"{{{NAMESPACE}}}spec").text = _require_xml_text("spec", record.request_json) or None
    return etree.tostring(root, encoding="unicode")


def _add_vgpu(parent: etree._Element, vgpu: AssignedVgpu) -> None:
    from lxml import etree

    _set_attributes(
        etree.SubElement(parent, f"{{{NAMESPACE}}}vgpu"),
        {
            "index": _number_text(vgpu.index),
            "backend": vgpu.backend.value,
            "gpu": vgpu.gpu,
            "function": vgpu.function,
            "carrier": vgpu.carrier,
            "profile": vgpu.profile,
            "framebuffer-mib": _number_text(vgpu.framebuffer_mib),
            "params": vgpu.params or None,
            "placement-id": _number_text(vgpu.placement_id),
            "waits-for-place": "yes" if vgpu.waits_for_place else None,
            "adopted": "yes" if vgpu.adopted else None,
        },
    )


def _add_desktop(parent: etree._Element, mark: DesktopMark) -> None:
    from lxml import etree

    _set_attributes(
        etree.SubElement(parent, f"{{{NAMESPACE}}}desktop"),
        {
            "id": mark.id,
            "pool": mark.pool,
            "incarnation": mark.incarnation,
            "generation": _number_text(mark.generation),
            "dirty": "yes" if mark.dirty else None,
            "user": mark.user,
        },
    )


def _add_migration(parent: etree._Element, mark: MigrationMark) -> None:
    from lxml import etree

    _set_attributes(
        etree.SubElement(parent, f"{{{NAMESPACE}}}migration"),
        {
            "id": mark.id,
            "role": mark.role.value,
            "peer": mark.peer,
            "peer-machine-id": mark.peer_machine_id,
            "copies-disks": "yes" if mark.copies_disks else None,
            "offline": "yes" if mark.is_offline else None,
        },
    )


def record_after(record: VmRecord, previous: VmRecord | None) -> VmRecord:
    """Return a record as it is written instead of `previous`: with the next generation. None: the VM had none.

    The generation grows with each change of the record or the definition. Version 0.2 writes none, which counts as 0.
    """
    return replace(record, generation=0 if previous is None else previous.generation + 1)


def record_from_xml(text: str) -> VmRecord:
    """Read the element as `record_to_xml` writes it, or as virDomainGetMetadata returns it: without namespace.

    Raises:
        ValueError: it is not a record, or part of it cannot be parsed: the record is lost.
    """
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    try:
        root = etree.fromstring(text, parser)
    except (etree.XMLSyntaxError, ValueError) as exc:
        raise ValueError(f"the record is not XML: {exc}") from exc
    return parse_record(root)


def _set_attributes(element: etree._Element, values: Mapping[str, str | None]) -> None:
    for key, value in values.items():
        if value is not None:
            element.set(key, _require_xml_text(key, value))


def _require_xml_text(attribute: str, value: str) -> str:
    if _NOT_XML.search(value):
        raise InvalidInput(
            f"{attribute} {value!a} contains a character that a VM's record cannot hold",
            hint="remove control characters",
            value=ascii(value),
        )
    return value


def _number_text(number: int | None) -> str | None:
    return None if number is None else str(number)


__all__ = ["NAMESPACE", "ROOT_TAG", "parse_record", "record_after", "record_from_xml", "record_to_xml"]


NAMESPACE = "urn:vgpuctl:1"
ROOT_TAG = f"{{{NAMESPACE}}}vm"
FINISH_EXCHANGE = "install vgpuctl 0.2 again and run its 'vgpuctl reconcile-host', which finishes it; then upgrade"

_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


class UnfinishedExchange(ValueError):
    """The record has an exchange of places with other VMs, which version 0.1 left and only version 0.2 can finish."""

    def __init__(self) -> None:
        super().__init__("version 0.1 left it in an exchange of places")


def parse_record(root: Element) -> VmRecord:
    """Read the record from the element of a parsed document.

    Raises:
        UnfinishedExchange: it has an `exchange`.
        ValueError: as for `record_from_xml`.
    """
    if root.tag not in (ROOT_TAG, "vm"):
        raise ValueError(f"the record's element is {root.tag}, not {ROOT_TAG}")
    namespace_prefix = root.tag.removesuffix("vm")
    children = list(root)
    if any(child.tag == f"{namespace_prefix}exchange" for child in children):
        raise UnfinishedExchange
    state = RecordState(_require_attribute(root, "state"))
    migration = _parse_migration([child for child in children if child.tag == f"{namespace_prefix}migration"])
    if (state is RecordState.MOVING) is not (migration is not None):
        raise ValueError(
            f"the record's state is {state}, and it has {'a' if migration is not None else 'no'} migration"
        )
    return VmRecord(
        state=state,
        vm_uuid=_require_attribute(root, "vm-uuid"),
        machine_id=_require_attribute(root, "machine-id"),
        vgpus=tuple(_parse_vgpu(child) for child in children if child.tag == f"{namespace_prefix}vgpu"),
        disks=tuple(_parse_disk(child) for child in children if child.tag == f"{namespace_prefix}disk"),
        request_json=next((child.text or "" for child in children if child.tag == f"{namespace_prefix}spec"), ""),
        reserve=_require_attribute(root, "reserve"),
        created_vm=root.get("made-vm") != "no",
        account=_optional_attribute(root, "account"),
        generation=0 if root.get("generation") is None else _require_number(root, "generation"),
        should_run=root.get("should-run") == "yes",
        desktop=_parse_desktop(
            [child for child in children if child.tag == f"{namespace_prefix}desktop"], str(root.get("vm-uuid"))
        ),
        migration=migration,
    )


def find_named_files(root: Element) -> tuple[ManagedDisk, ...]:
    """Return every file that a record of any version names, so that none of them counts as unused.

    Only the path and the base of such a disk are known.
    """
    disks: dict[str, ManagedDisk] = {}
    for element in root.iter():
        base = _optional_attribute(element, "base")
        for value in element.attrib.values():
            if value.startswith("/") and value != base:
                disks[value] = ManagedDisk(pool="", volume="", path=value, capacity_bytes=0, base=base)
        if base is not None and base.startswith("/"):
            disks.setdefault(base, ManagedDisk(pool="", volume="", path=base, capacity_bytes=0))
    return tuple(disks[path] for path in sorted(disks))


def _parse_vgpu(element: Element) -> AssignedVgpu:
    framebuffer, placement = element.get("framebuffer-mib"), element.get("placement-id")
    return AssignedVgpu(
        index=_require_number(element, "index"),
        backend=Backend(_require_attribute(element, "backend")),
        gpu=_require_attribute(element, "gpu"),
        function=_require_attribute(element, "function"),
        carrier=_require_attribute(element, "carrier"),
        profile=_optional_attribute(element, "profile"),
        framebuffer_mib=None if framebuffer is None else _require_number(element, "framebuffer-mib"),
        params=_optional_attribute(element, "params") or "",
        placement_id=None if placement is None else _require_number(element, "placement-id"),
        waits_for_place=element.get("waits-for-place") == "yes",
        adopted=element.get("adopted") == "yes",
    )


def _parse_disk(element: Element) -> ManagedDisk:
    return ManagedDisk(
        pool=_require_attribute(element, "pool"),
        volume=_require_attribute(element, "volume"),
        path=_require_attribute(element, "path"),
        capacity_bytes=_require_number(element, "capacity-bytes"),
        base=_optional_attribute(element, "base"),
        base_format=_optional_attribute(element, "base-format"),
        role=DiskRole(_optional_attribute(element, "role") or DiskRole.DISK),
        copied_from=_optional_attribute(element, "copied-from"),
        format=_optional_attribute(element, "format") or "qcow2",
        bin_entry=_optional_attribute(element, "bin"),
    )


def _parse_desktop(elements: list[Element], vm_uuid: str) -> DesktopMark | None:
    """Read the mark of a desktop. A doubtful one makes the record unreadable: then nobody gets or changes the VM."""
    if not elements:
        return None
    if len(elements) > 1:
        raise ValueError("the record has more than one desktop")
    element = elements[0]
    dirty = _optional_attribute(element, "dirty")
    if dirty not in (None, "yes"):
        raise ValueError(f"the record's desktop has dirty '{dirty[:60]}', which can only be yes")
    mark = DesktopMark(
        id=_require_attribute(element, "id"),
        pool=_require_attribute(element, "pool"),
        incarnation=_require_attribute(element, "incarnation"),
        generation=_require_number(element, "generation"),
        dirty=dirty == "yes",
        user=_optional_attribute(element, "user"),
    )
    check_mark(mark)
    if mark.id != vm_uuid:
        raise ValueError(f"the record's desktop is {mark.id}, and its VM {vm_uuid}")
    return mark


def _parse_migration(elements: list[Element]) -> MigrationMark | None:
    """Read the mark of a move. A doubtful one makes the record unreadable: then nobody starts or changes the VM."""
    if not elements:
        return None
    if len(elements) > 1:
        raise ValueError("the record has more than one migration")
    element = elements[0]
    return MigrationMark(
        id=_require_attribute(element, "id"),
        role=MigrationRole(_require_attribute(element, "role")),
        peer=_require_attribute(element, "peer"),
        peer_machine_id=_require_attribute(element, "peer-machine-id"),
        copies_disks=_optional_attribute(element, "copies-disks") == "yes",
        is_offline=_optional_attribute(element, "offline") == "yes",
    )


def _optional_attribute(element: Element, key: str) -> str | None:
    value: str | None = element.get(key)
    return value


def _require_attribute(element: Element, key: str) -> str:
    value: str | None = element.get(key)
    if value is None:
        raise ValueError(f"the record's {element.tag.rpartition('}')[2]} has no {key}")
    return value


def _require_number(element: Element, key: str) -> int:
    text = _require_attribute(element, key)
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"the record's {key} '{text}' is not a number")
    return int(text)


def find_hostdevs(root: Element) -> tuple[HostdevRef, ...]:
    """Return every device that a domain names, those of elements as often as they are there."""
    devices = _first_child(root, "devices")
    named = [] if devices is None else list(_named_by_devices(devices))
    in_arguments = [h for part in _QEMU_PARTS for child in _children(root, part) for h in _named_in_texts(child)]
    if in_arguments:
        carriers = {hostdev.carrier for hostdev in named}
        named += [h for h in dict.fromkeys(in_arguments) if h.carrier not in carriers]
    return tuple(named)


def carrier_of(address: Element) -> str | None:
    """Return the carrier of a source's `<address>`; None when it is no mdev or PCI function."""
    uuid = address.get("uuid")
    if uuid is not None:
        return str(uuid).strip().lower()
    if address.get("slot") is None or address.get("bus") is None or address.get("type") not in (None, "pci"):
        return None
    parts = [parse_integer(str(address.get(key, "0"))) for key in ("domain", "bus", "slot", "function")]
    numbers = [part for part in parts if part is not None]
    return format_pci(*numbers) if len(numbers) == len(parts) else None


def _named_by_devices(devices: Element) -> Iterator[HostdevRef]:
    for entry in _children(devices, "hostdev", "interface", "disk"):
        tag, kind = entry.tag, entry.get("type")
        if tag != "hostdev" and (tag, kind) not in (("interface", "hostdev"), ("disk", "nvme")):
            continue
        source = _first_child(entry, "source")
        address = None if source is None else _first_child(source, "address")
        carrier = None if address is None else carrier_of(address)
        if source is None:
            continue
        if carrier is None:
            yield from _named_in_texts(source) if tag == "hostdev" else ()
            continue
        managed = (source if tag == "disk" else entry).get("managed") == "yes"
        alias = _first_child(entry, "alias")
        name = None if alias is None else alias.get("name")
        mdev = tag == "hostdev" and kind == "mdev"
        display = entry.get("display") == "on"
        yield HostdevRef("mdev" if mdev else "pci", carrier, managed, None if name is None else str(name), display)


def _named_in_texts(element: Element) -> Iterator[HostdevRef]:
    for entry in element.iter():
        for text in (entry.text, *entry.attrib.values()):
            for match in _NAMED_DEVICE.finditer(text or ""):
                yield HostdevRef(TEXT_KIND, _carrier_of_match(match), managed=False)


def _carrier_of_match(match: re.Match[str]) -> str:
    if match["uuid"] is not None:
        return match["uuid"].lower()
    return format_pci(*(int(match[part] or "0", 16) for part in ("domain", "bus", "slot", "function")))


def _first_child(element: Element, tag: str) -> Element | None:
    return next(iter(_children(element, tag)), None)


def _children(element: Element, *tags: str) -> Iterable[Element]:
    """Return the children of these tags; lxml's own search takes half the time, and every listing reads every VM."""
    search = getattr(element, "iterchildren", None)
    return search(*tags) if search is not None else (child for child in element if child.tag in tags)
