# SPDX-License-Identifier: Apache-2.0
"""The VM's record as XML: one element in the domain's own metadata, namespace `urn:vgpuctl:1`.

A domain keeps one element for each namespace; libvirt copies it with the definition and never reads it. The record
names its own VM and host, because a clone or a restored dump copies it too: every reader compares both.

    <vm xmlns="urn:vgpuctl:1" state="ready" vm-uuid="…" machine-id="…" reserve="always">
      <vgpu index="0" backend="vendor-vf" gpu="…" function="…" carrier="…" profile="A100-4C"/>
      <disk pool="default" volume="…" path="…" capacity-bytes="…"/>
      <spec>{"profile":["A100-4C"]}</spec>
    </vm>

The namespace has no prefix, because virDomainSetMetadata adds its own (`key`) and refuses an element that declares the
same one ("failed to create a new XML namespace", libvirt 9.0). So one text serves both uses: inside the XML of a new
domain, and as a new record of a defined domain.
A vGPU's `placement-id` says where it is on a mixed-size GPU. `waits-for-place="yes"` marks one that gave up its place
and waits for another; where it is then is its last place.
A disk's `role` marks a disk without user data: a seed, or a spare of refresh-vm. A disk is qcow2 unless its `format`
says otherwise.
A record with an `exchange` is refused: version 0.1 left a move unfinished, which version 0.2 finishes.
`made-vm="no"` marks a VM that vgpuctl did not create and that only gets vGPUs from it.
Attributes and elements that this version does not know are ignored, so a later one may add some. A value of None has no
attribute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.domain.record import NAMESPACE, ROOT_TAG, parse_record
from vgpuctl.errors import InvalidInput
from vgpuctl.model.vm import AssignedVgpu, DiskRole, VmRecord

if TYPE_CHECKING:
    from lxml import etree

_NOT_XML = re.compile("[\x00-\x1f\ud800-\udfff\ufffe\uffff]")


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
                "role": None if disk.role is DiskRole.DISK else disk.role.value,
            },
        )
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
        },
    )


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


__all__ = ["NAMESPACE", "ROOT_TAG", "parse_record", "record_from_xml", "record_to_xml"]
