# SPDX-License-Identifier: Apache-2.0
"""Reads libvirt's domain capabilities (docs, formatdomaincaps), as far as new VMs depend on them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vgpuctl.host.virt import libvirt_xml
from vgpuctl.model.json_yaml import parse_json
from vgpuctl.model.port_values import MACHINES, X86_64, HypervisorCapabilities
from vgpuctl.regular_file import read_regular_file

if TYPE_CHECKING:
    from lxml.etree import _Element

FIRMWARE_DIRECTORIES = ("/usr/share/qemu/firmware", "/etc/qemu/firmware")
"""Where QEMU firmware is described (QEMU, docs/interop/firmware.json). A later file hides one of the same name."""

_MAX_BYTES = 1 << 20


def parse_capabilities(root: _Element, *, kvm: bool, enrolled_keys: bool) -> HypervisorCapabilities:
    """Parse a `<domainCapabilities>`; `enrolled_keys` comes from `has_enrolled_keys`.

    The emulator among a TPM's backends means that libvirt found swtpm. A `secure` loader means that a firmware with
    secure boot is installed, with or without keys: libvirt 11.3 does not report which.
    """
    uefi = _offers(root, "os/enum[@name='firmware']", "efi")
    has_crb = _offers(root, "devices/tpm[@supported='yes']/enum[@name='model']", "tpm-crb")
    has_emulator = _offers(root, "devices/tpm[@supported='yes']/enum[@name='backendModel']", "emulator")
    return HypervisorCapabilities(
        kvm=kvm,
        uefi=uefi,
        emulator=libvirt_xml.find_text(root, "path") or "",
        secure_boot=uefi and enrolled_keys and _offers(root, "os/loader/enum[@name='secure']", "yes"),
        tpm=has_crb and has_emulator,
        arch=libvirt_xml.find_text(root, "arch") or X86_64,
        machine=libvirt_xml.find_text(root, "machine") or MACHINES[X86_64],
    )


def has_enrolled_keys(directories: tuple[str, ...] = FIRMWARE_DIRECTORIES) -> bool:
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
