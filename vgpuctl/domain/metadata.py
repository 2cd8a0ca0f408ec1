# SPDX-License-Identifier: Apache-2.0
"""The promise as XML: one element in the domain's own metadata, namespace `urn:vgpuctl:1`.

A domain keeps one element for each namespace; libvirt copies it with the definition and never reads it. The
record names its own VM and host, because a clone or a restored dump carries it along: whoever reads
compares both.

    <vm xmlns="urn:vgpuctl:1" state="ready" vm-uuid="…" machine-id="…" reserve="always">
      <vgpu index="0" backend="vendor-vf" gpu="…" function="…" carrier="…" profile="A100-4C"/>
      <disk pool="default" volume="…" path="…" capacity-bytes="…"/>
      <spec>{"profile":["A100-4C"]}</spec>
    </vm>

The namespace has no prefix, because virDomainSetMetadata adds its own (`key`) and refuses an element that
declares the same one ("failed to create a new XML namespace", libvirt 9.0). So one text serves both ways in:
inside the XML that is defined, and as a new record of a defined domain.
A vGPU's `placement-id` says where it is on a mixed-size GPU.
A disk's `role` says what it is where it is no disk with somebody's work: a seed, or a spare of refresh-vm.
`exchange` says where a vGPU goes together with those of other VMs; only an exchange that was interrupted leaves one.
`made-vm="no"` marks a VM that somebody else made and that only has vGPUs from here.
Attributes and elements that this version does not know are passed over, so a later one may add some. What is
None has no attribute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lxml import etree

from vgpuctl.domain.record import NAMESPACE, ROOT_TAG, promise_of
from vgpuctl.errors import InvalidInput
from vgpuctl.model.vm import DiskRole, Promise, PromisedVgpu

_NOT_XML = re.compile("[\x00-\x1f\ud800-\udfff\ufffe\uffff]")


def promise_to_xml(promise: Promise) -> str:
    """Return the element; it declares its namespace itself, so it can stand in a domain's `<metadata>`.

    Raises:
        InvalidInput: a value holds a control character, which XML cannot keep.
    """
    root = etree.Element(ROOT_TAG, nsmap={None: NAMESPACE})  # type: ignore[dict-item] # the stubs know no default namespace
    _set(
        root,
        {
            "state": promise.state.value,
            "vm-uuid": promise.vm_uuid,
            "machine-id": promise.machine_id,
            "reserve": promise.reserve,
            "made-vm": None if promise.made_vm else "no",
        },
    )
    for vgpu in promise.vgpus:
        _add_vgpu(root, vgpu)
    if promise.exchange is not None:
        going = etree.SubElement(root, f"{{{NAMESPACE}}}exchange")
        note = promise.exchange
        _set(going, {"carrier": note.carrier, "with-vm": note.with_vm, "with-carrier": note.with_carrier})
        _add_vgpu(going, note.vgpu)
    for disk in promise.disks:
        _set(
            etree.SubElement(root, f"{{{NAMESPACE}}}disk"),
            {
                "pool": disk.pool,
                "volume": disk.volume,
                "path": disk.path,
                "capacity-bytes": _digits(disk.capacity_bytes),
                "base": disk.base,
                "base-format": disk.base_format,
                "role": None if disk.role is DiskRole.DISK else disk.role.value,
            },
        )
    etree.SubElement(root, f"{{{NAMESPACE}}}spec").text = _kept("spec", promise.spec) or None
    return etree.tostring(root, encoding="unicode")


def _add_vgpu(parent: etree._Element, vgpu: PromisedVgpu) -> None:
    _set(
        etree.SubElement(parent, f"{{{NAMESPACE}}}vgpu"),
        {
            "index": _digits(vgpu.index),
            "backend": vgpu.backend.value,
            "gpu": vgpu.gpu,
            "function": vgpu.function,
            "carrier": vgpu.carrier,
            "profile": vgpu.profile,
            "framebuffer-mib": _digits(vgpu.framebuffer_mib),
            "params": vgpu.params or None,
            "placement-id": _digits(vgpu.placement_id),
        },
    )


def promise_from_xml(text: str) -> Promise:
    """Read the element as `promise_to_xml` wrote it, or as virDomainGetMetadata returns it: without namespace.

    Raises:
        ValueError: it is not a record, or something in it cannot be understood: the record is lost.
    """
    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    try:
        root = etree.fromstring(text, parser)
    except (etree.XMLSyntaxError, ValueError) as exc:
        raise ValueError(f"the record is not XML: {exc}") from exc
    return promise_of(root)


def _set(element: etree._Element, values: Mapping[str, str | None]) -> None:
    for key, value in values.items():
        if value is not None:
            element.set(key, _kept(key, value))


def _kept(what: str, value: str) -> str:
    if _NOT_XML.search(value):
        raise InvalidInput(
            f"{what} {value!a} holds a character that a VM's record cannot keep",
            hint="leave control characters out",
            value=ascii(value),
        )
    return value


def _digits(number: int | None) -> str | None:
    return None if number is None else str(number)


__all__ = ["NAMESPACE", "ROOT_TAG", "promise_from_xml", "promise_of", "promise_to_xml"]
