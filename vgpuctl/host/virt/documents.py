# SPDX-License-Identifier: Apache-2.0
"""Reading libvirt's XML and writing the small documents for pools and volumes, always through lxml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import LibvirtFailed

if TYPE_CHECKING:
    from lxml.etree import _Element

PROMISE_NAMESPACE = "urn:vgpuctl:1"
PROMISE_PREFIX = "vgpuctl"


def parsed(text: str) -> _Element:
    """Parse XML without entities and without looking anything up.

    Raises:
        LibvirtFailed: it is not XML.
    """
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_blank_text=True)
    try:
        return etree.fromstring(text.encode(), parser)
    except (etree.XMLSyntaxError, ValueError) as exc:
        raise LibvirtFailed(f"libvirt's XML cannot be read: {exc}") from exc


def text_at(root: _Element, path: str) -> str | None:
    """Return the text of the first element at a path, without the space around it."""
    found = root.find(path)
    return None if found is None or not (found.text or "").strip() else (found.text or "").strip()


def attribute_at(root: _Element, path: str, name: str) -> str | None:
    """Return an attribute of the first element at a path."""
    found = root.find(path)
    return None if found is None else found.get(name)


def without_namespace(text: str) -> str:
    """Return a promise element with its namespace taken off.

    virDomainSetMetadata puts its own prefix and namespace on every element that has none, and fails with
    "failed to create a new XML namespace" on one that brings the same prefix along (seen with 9.0).
    """
    from lxml import etree

    root = parsed(text)
    for element in root.iter(f"{{{PROMISE_NAMESPACE}}}*"):
        element.tag = etree.QName(element).localname
    etree.cleanup_namespaces(root)
    return etree.tostring(root, encoding="unicode")


def pool_xml(name: str, path: str) -> str:
    """Return the definition of a directory pool."""
    from lxml import etree

    root = etree.Element("pool", {"type": "dir"})
    etree.SubElement(root, "name").text = name
    etree.SubElement(etree.SubElement(root, "target"), "path").text = path
    return etree.tostring(root, encoding="unicode")


def private_volume_xml(name: str, size_bytes: int) -> str:
    """Return the definition of a raw volume that root alone may read, until libvirt gives it to QEMU's user."""
    from lxml import etree

    root = etree.Element("volume")
    etree.SubElement(root, "name").text = name
    etree.SubElement(root, "capacity", {"unit": "bytes"}).text = str(size_bytes)
    target = etree.SubElement(root, "target")
    etree.SubElement(target, "format", {"type": "raw"})
    etree.SubElement(etree.SubElement(target, "permissions"), "mode").text = "0600"
    return etree.tostring(root, encoding="unicode")


def volume_xml(name: str, capacity_bytes: int, base: str | None, base_format: str | None) -> str:
    """Return the definition of a thin qcow2 volume, a linked clone when there is a base.

    Without `compat` libvirt asks qemu-img for version 2 of the format, which QEMU itself left in 2013.
    """
    from lxml import etree

    root = etree.Element("volume")
    etree.SubElement(root, "name").text = name
    etree.SubElement(root, "capacity", {"unit": "bytes"}).text = str(capacity_bytes)
    etree.SubElement(root, "allocation", {"unit": "bytes"}).text = "0"
    target = etree.SubElement(root, "target")
    etree.SubElement(target, "format", {"type": "qcow2"})
    etree.SubElement(target, "compat").text = "1.1"
    if base is not None:
        backing = etree.SubElement(root, "backingStore")
        etree.SubElement(backing, "path").text = base
        if base_format is not None:
            etree.SubElement(backing, "format", {"type": base_format})
    return etree.tostring(root, encoding="unicode")
