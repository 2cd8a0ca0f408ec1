# SPDX-License-Identifier: Apache-2.0
"""What libvirt's domain capabilities say (docs, formatdomaincaps), as far as new VMs depend on it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vgpuctl.host.virt import documents
from vgpuctl.model.json_text import parsed
from vgpuctl.model.records import HypervisorCapabilities
from vgpuctl.regular_file import read_regular

if TYPE_CHECKING:
    from lxml.etree import _Element

FIRMWARE = ("/usr/share/qemu/firmware", "/etc/qemu/firmware")
"""Where QEMU's firmware is described (QEMU, docs/interop/firmware.json). A file hides one of its name before it."""

_MOST_BYTES = 1 << 20


def capabilities_of(root: _Element, *, kvm: bool, keys: bool) -> HypervisorCapabilities:
    """Read a `<domainCapabilities>`; `keys` as `has_keys` says.

    The emulator among a TPM's backends means that libvirt found swtpm; `secure` loaders, that a firmware with
    secure boot is installed, with keys or without: libvirt 11.3 does not tell which.
    """
    uefi = _offers(root, "os/enum[@name='firmware']", "efi")
    crb = _offers(root, "devices/tpm[@supported='yes']/enum[@name='model']", "tpm-crb")
    emulated = _offers(root, "devices/tpm[@supported='yes']/enum[@name='backendModel']", "emulator")
    return HypervisorCapabilities(
        kvm=kvm,
        uefi=uefi,
        emulator=documents.text_at(root, "path") or "",
        secure_boot=uefi and keys and _offers(root, "os/loader/enum[@name='secure']", "yes"),
        tpm=crb and emulated,
    )


def has_keys(directories: tuple[str, ...] = FIRMWARE) -> bool:
    """Say whether a firmware comes with keys enrolled. Where none is described, libvirt looks elsewhere: maybe."""
    files: dict[str, str] = {}
    for directory in directories:
        try:
            names = [name for name in os.listdir(directory) if name.endswith(".json")]
        except OSError:
            continue
        files |= {name: os.path.join(directory, name) for name in names}
    features = [_features(path) for path in files.values()]
    return not features or any(found is None or "enrolled-keys" in found for found in features)


def _features(path: str) -> list[object] | None:
    """Return the features of a described firmware, or None when they cannot be read; an empty file only hides."""
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8")
        described: Any = parsed(text)
        found = described["features"] if text.strip() else []
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, list) else None


def _offers(root: _Element, path: str, word: str) -> bool:
    return any(value.text == word for value in root.findall(f"{path}/value"))
