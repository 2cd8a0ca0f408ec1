# SPDX-License-Identifier: Apache-2.0
"""What libvirt's domain capabilities say (docs, formatdomaincaps), as far as new VMs depend on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.host.virt import documents
from vgpuctl.model.records import HypervisorCapabilities

if TYPE_CHECKING:
    from lxml.etree import _Element


def capabilities_of(root: _Element, *, kvm: bool) -> HypervisorCapabilities:
    """Read a `<domainCapabilities>`.

    The emulator among a TPM's backends means that libvirt found swtpm; `secure` loaders, that a firmware with
    secure boot is installed.
    """
    uefi = _offers(root, "os/enum[@name='firmware']", "efi")
    crb = _offers(root, "devices/tpm[@supported='yes']/enum[@name='model']", "tpm-crb")
    emulated = _offers(root, "devices/tpm[@supported='yes']/enum[@name='backendModel']", "emulator")
    return HypervisorCapabilities(
        kvm=kvm,
        uefi=uefi,
        emulator=documents.text_at(root, "path") or "",
        secure_boot=uefi and _offers(root, "os/loader/enum[@name='secure']", "yes"),
        tpm=crb and emulated,
    )


def _offers(root: _Element, path: str, word: str) -> bool:
    return any(value.text == word for value in root.findall(f"{path}/value"))
