# SPDX-License-Identifier: Apache-2.0
"""AMD: plain VFs, whose number its driver gim reads from a file of its own when it is loaded.

Source: amd/MxGPU-Virtualization, gim_shim: gim has no sriov_configure, so a write of sriov_numvfs fails (ENOENT). For
the PCI ids of cards that a reset breaks: its issue 25 (July 2026, open), where the configuration space of an MI300X or
MI355X reads as all ones after one reset by VFIO, until the host boots; its VFs are not affected. For those of
amd-vfio-pci: the table in its source (gim/amd-vfio-pci/amd-vfio.c), which needs Linux 6.8.
"""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.makers import gim
from vgpuctl.makers.maker import Maker
from vgpuctl.model.usage import SYSFS_SOURCE


class Amd(Maker):
    """AMD."""

    name = "AMD"
    vendor_id = "1002"
    vgpu_driver = "gim"
    sets_vfs_at_load = True
    max_plain_vfs = gim.MAX_VFS
    usage_tool = "amd-smi"
    movable_vf_drivers = ("amd-vfio-pci",)
    movable_vf_hint = "modprobe amd-vfio-pci, which AMD ships with newer gim; then stop and start the VMs"
    breaks_at_reset = ("74a1", "75a3")

    def partition_choices(self, device_id: str | None) -> Mapping[int, tuple[tuple[str, str], ...]]:
        """Return those of MI300 and later."""
        return gim.PARTITION_CHOICES.get(device_id or "", {})

    def usage_source(self, driver: str) -> str | None:
        """Return amd-smi of the virtualisation build for gim, whose cards have no use in sysfs as amdgpu's have."""
        return self.usage_tool if driver == self.vgpu_driver else SYSFS_SOURCE
