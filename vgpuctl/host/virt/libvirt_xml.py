# SPDX-License-Identifier: Apache-2.0
"""Parses libvirt's XML and builds the small documents for pools and volumes, always with lxml.

Of libvirt's domain capabilities (docs, formatdomaincaps) it reads what new VMs depend on.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vgpuctl.errors import LibvirtFailed
from vgpuctl.model.json_yaml import parse_json
from vgpuctl.model.port_values import MACHINES, X86_64, HypervisorCapabilities
from vgpuctl.regular_file import read_regular_file

if TYPE_CHECKING:
    from lxml.etree import _Element

RECORD_NAMESPACE = "urn:vgpuctl:1"
RECORD_PREFIX = "vgpuctl"

_FIRMWARE_DIRECTORIES = ("/usr/share/qemu/firmware", "/etc/qemu/firmware")
"""Where QEMU firmware is described (QEMU, docs/interop/firmware.json). A later file hides one of the same name."""
_MAX_BYTES = 1 << 20


def parse_xml(text: str) -> _Element:
    """Parse XML without entities and without network access.

    Raises:
        LibvirtFailed: the text is not XML.
    """
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_blank_text=True)
    try:
        return etree.fromstring(text.encode(), parser)
    except (etree.XMLSyntaxError, ValueError) as exc:
        raise LibvirtFailed(f"libvirt's XML cannot be read: {exc}") from exc


def find_text(root: _Element, path: str) -> str | None:
    """Return the text of the first element at a path, without surrounding whitespace; None if it is empty."""
    element = root.find(path)
    return None if element is None or not (element.text or "").strip() else (element.text or "").strip()


def find_attribute(root: _Element, path: str, name: str) -> str | None:
    """Return an attribute of the first element at a path."""
    element = root.find(path)
    return None if element is None else element.get(name)


def strip_namespace(text: str) -> str:
    """Return a VM record's element without its namespace.

    virDomainSetMetadata adds its own prefix and namespace to every element that has none, and fails with
    "failed to create a new XML namespace" on an element that already has the same prefix (observed with 9.0).
    """
    from lxml import etree

    root = parse_xml(text)
    for element in root.iter(f"{{{RECORD_NAMESPACE}}}*"):
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
    """Return the definition of a raw volume that only root can read, until libvirt makes QEMU's user its owner."""
    from lxml import etree

    root = etree.Element("volume")
    etree.SubElement(root, "name").text = name
    etree.SubElement(root, "capacity", {"unit": "bytes"}).text = str(size_bytes)
    target = etree.SubElement(root, "target")
    etree.SubElement(target, "format", {"type": "raw"})
    etree.SubElement(etree.SubElement(target, "permissions"), "mode").text = "0600"
    return etree.tostring(root, encoding="unicode")


def logical_volume_xml(name: str, capacity_bytes: int) -> str:
    """Return the definition of a logical volume of full size: with an allocation libvirt makes a sparse one."""
    from lxml import etree

    root = etree.Element("volume")
    etree.SubElement(root, "name").text = name
    etree.SubElement(root, "capacity", {"unit": "bytes"}).text = str(capacity_bytes)
    return etree.tostring(root, encoding="unicode")


def volume_xml(name: str, capacity_bytes: int, base: str | None, base_format: str | None) -> str:
    """Return the definition of a thin qcow2 volume, a linked clone if `base` is given.

    Without `compat` libvirt makes qemu-img use version 2 of the format, which QEMU itself abandoned in 2013.
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


def parse_capabilities(root: _Element, *, kvm: bool, enrolled_keys: bool) -> HypervisorCapabilities:
    """Parse a `<domainCapabilities>`; `enrolled_keys` comes from `has_enrolled_keys`.

    The emulator among a TPM's backends means that libvirt found swtpm. A `secure` loader means that a firmware with
    secure boot is installed, with or without keys: libvirt 11.3 does not report which.
    """
    uefi = _offers(root, "os/enum[@name='firmware']", "efi")
    graphics = "devices/graphics[@supported='yes']/enum[@name='type']"
    has_crb = _offers(root, "devices/tpm[@supported='yes']/enum[@name='model']", "tpm-crb")
    has_emulator = _offers(root, "devices/tpm[@supported='yes']/enum[@name='backendModel']", "emulator")
    return HypervisorCapabilities(
        kvm=kvm,
        uefi=uefi,
        emulator=find_text(root, "path") or "",
        secure_boot=uefi and enrolled_keys and _offers(root, "os/loader/enum[@name='secure']", "yes"),
        tpm=has_crb and has_emulator,
        arch=find_text(root, "arch") or X86_64,
        machine=find_text(root, "machine") or MACHINES[X86_64],
        has_opengl=_offers(root, graphics, "egl-headless") if root.find(graphics) is not None else None,
    )


def has_enrolled_keys(directories: tuple[str, ...] = _FIRMWARE_DIRECTORIES) -> bool:
    """Return whether a firmware has enrolled keys. True where none is described, as libvirt then searches elsewhere."""
    files: dict[str, str] = {}
    for directory in directories:
        try:
            names = [name for name in os.listdir(directory) if name.endswith(".json")]
        except OSError:
            continue
        files |= {name: os.path.join(directory, name) for name in names}
    feature_lists = [_read_features(path) for path in files.values()]
    return not feature_lists or any(firmware is None or "enrolled-keys" in firmware for firmware in feature_lists)


def _read_features(path: str) -> list[object] | None:
    """Return a described firmware's features, or None when they cannot be read; an empty file only hides another."""
    try:
        text = read_regular_file(path, _MAX_BYTES).decode("utf-8")
        description: Any = parse_json(text)
        features = description["features"] if text.strip() else []
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return features if isinstance(features, list) else None


def _offers(root: _Element, path: str, value: str) -> bool:
    return any(element.text == value for element in root.findall(f"{path}/value"))
