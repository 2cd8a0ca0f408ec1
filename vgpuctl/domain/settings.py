# SPDX-License-Identifier: Apache-2.0
"""Settings of a domain: fields of a VM that are one element each, and depend on no other.

A field in `SETTINGS` is read and written here. From that follow what a new VM gets, also from a template that does not
know the field, what `set-vm` changes, what is compared with a spec, and the check of what libvirt stored. The value is
the field's text, as a spec has it; "none" without the element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from vgpuctl.config.arguments import HUGEPAGES_KIB, NONE
from vgpuctl.model.numbers import parse_integer
from vgpuctl.value import Value

if TYPE_CHECKING:
    from lxml import etree

_UNIT_BYTES = {
    "b": 1, "bytes": 1,
    "kb": 1000, "k": 1024, "kib": 1024,
    "mb": 1000**2, "m": 1024**2, "mib": 1024**2,
    "gb": 1000**3, "g": 1024**3, "gib": 1024**3,
    "tb": 1000**4, "t": 1024**4, "tib": 1024**4,
    "pb": 1000**5, "p": 1024**5, "pib": 1024**5,
    "eb": 1000**6, "e": 1024**6, "eib": 1024**6,
}  # fmt: skip
"""libvirt's scaled integers (docs, formatdomain, "memory"): KiB without a unit, KB is 1000 bytes."""


class Setting(Value):
    """How a domain has a field. `label`: what an error calls it.

    `read` gets the first child of `<domain>` by tag, and returns the field's text. `write` gets `<domain>`, and makes
    the text true; "none" removes the element.
    """

    label: str
    read: Callable[[Mapping[str, etree._Element]], str]
    write: Callable[[etree._Element, str], None]


def _read_hugepages(top: Mapping[str, etree._Element]) -> str:
    """Return the size of a VM's huge pages; "default" for the host's default size."""
    pages = top["memoryBacking"].find("hugepages") if "memoryBacking" in top else None
    if pages is None:
        return NONE
    page = pages.find("page")
    size_kib = 0 if page is None else scaled_bytes(page.get("size"), page.get("unit")) >> 10
    if not size_kib:
        return "default"
    return next((text for text, kib in HUGEPAGES_KIB.items() if kib == size_kib), f"{size_kib}KiB")


def _write_hugepages(root: etree._Element, size: str) -> None:
    from lxml import etree

    backing = child(root, "memoryBacking")
    for old in backing.findall("hugepages"):
        backing.remove(old)
    if size != NONE:
        page = etree.SubElement(etree.SubElement(backing, "hugepages"), "page")
        page.set("size", str(HUGEPAGES_KIB[size]))
        page.set("unit", "KiB")
    elif len(backing) == 0:
        root.remove(backing)


SETTINGS: Mapping[str, Setting] = {
    "hugepages": Setting("the size of huge pages", _read_hugepages, _write_hugepages),
}
"""By field."""


def scaled_bytes(number: str | None, unit: str | None) -> int:
    """Return a scaled integer of libvirt in bytes; 0 for what is no number."""
    return max(parse_integer(number or "") or 0, 0) * _UNIT_BYTES.get((unit or "KiB").lower(), 1024)


def child(element: etree._Element, tag: str) -> etree._Element:
    """Return an element's first child of that name; it is added where there is none."""
    from lxml import etree

    existing = element.find(tag)
    return etree.SubElement(element, tag) if existing is None else existing
