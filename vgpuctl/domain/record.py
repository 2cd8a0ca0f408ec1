# SPDX-License-Identifier: Apache-2.0
"""Reads the promise out of a parsed document, whichever parser made it: lxml's elements or the standard library's.

libvirt's hook runs while a VM's start waits, so it reads the record without loading lxml; every other command has lxml
loaded anyway. One function reads for both.
"""

from __future__ import annotations

import re
from typing import Any

from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import DiskRole, Exchange, MadeDisk, Promise, PromisedVgpu, PromiseState

NAMESPACE = "urn:vgpuctl:1"
ROOT_TAG = f"{{{NAMESPACE}}}vm"

Element = Any
"""An element with `tag`, `text`, `get` and its children: lxml.etree's or xml.etree's."""

_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def promise_of(root: Element) -> Promise:
    """Read the element out of a document that is parsed already.

    Raises:
        ValueError: as for `promise_from_xml`.
    """
    if root.tag not in (ROOT_TAG, "vm"):
        raise ValueError(f"the record's element is {root.tag}, not {ROOT_TAG}")
    space = root.tag.removesuffix("vm")
    children = list(root)
    return Promise(
        state=PromiseState(_need(root, "state")),
        vm_uuid=_need(root, "vm-uuid"),
        machine_id=_need(root, "machine-id"),
        vgpus=tuple(_vgpu(child) for child in children if child.tag == f"{space}vgpu"),
        disks=tuple(_disk(child) for child in children if child.tag == f"{space}disk"),
        spec=next((child.text or "" for child in children if child.tag == f"{space}spec"), ""),
        reserve=_need(root, "reserve"),
        made_vm=root.get("made-vm") != "no",
        exchange=next((_exchange(child, space) for child in children if child.tag == f"{space}exchange"), None),
    )


def named_files(root: Element) -> tuple[MadeDisk, ...]:
    """Return every file that a record names, whatever its version calls them: it must not be taken for nobody's.

    Of such a disk only the path and the base are known.
    """
    found: dict[str, MadeDisk] = {}
    for element in root.iter():
        base = _text(element, "base")
        for value in element.attrib.values():
            if value.startswith("/") and value != base:
                found[value] = MadeDisk(pool="", volume="", path=value, capacity_bytes=0, base=base)
        if base is not None and base.startswith("/"):
            found.setdefault(base, MadeDisk(pool="", volume="", path=base, capacity_bytes=0))
    return tuple(found[path] for path in sorted(found))


def _vgpu(element: Element) -> PromisedVgpu:
    framebuffer, placement = element.get("framebuffer-mib"), element.get("placement-id")
    return PromisedVgpu(
        index=_number(element, "index"),
        backend=Backend(_need(element, "backend")),
        gpu=_need(element, "gpu"),
        function=_need(element, "function"),
        carrier=_need(element, "carrier"),
        profile=_text(element, "profile"),
        framebuffer_mib=None if framebuffer is None else _number(element, "framebuffer-mib"),
        params=_text(element, "params") or "",
        placement_id=None if placement is None else _number(element, "placement-id"),
    )


def _exchange(element: Element, space: str) -> Exchange:
    vgpus = [_vgpu(child) for child in element if child.tag == f"{space}vgpu"]
    if len(vgpus) != 1:
        raise ValueError("the record's exchange has no place")
    return Exchange(_need(element, "carrier"), vgpus[0], _need(element, "with-vm"), _need(element, "with-carrier"))


def _disk(element: Element) -> MadeDisk:
    return MadeDisk(
        pool=_need(element, "pool"),
        volume=_need(element, "volume"),
        path=_need(element, "path"),
        capacity_bytes=_number(element, "capacity-bytes"),
        base=_text(element, "base"),
        base_format=_text(element, "base-format"),
        role=DiskRole(_text(element, "role") or DiskRole.DISK),
    )


def _text(element: Element, key: str) -> str | None:
    value: str | None = element.get(key)
    return value


def _need(element: Element, key: str) -> str:
    value: str | None = element.get(key)
    if value is None:
        raise ValueError(f"the record's {element.tag.rpartition('}')[2]} has no {key}")
    return value


def _number(element: Element, key: str) -> int:
    text = _need(element, key)
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"the record's {key} '{text}' is not a number")
    return int(text)
