# SPDX-License-Identifier: Apache-2.0
"""Intel: GVT-g's mdevs on graphics of generation 8 to 10, plain VFs on newer cards.

A GVT-g type's description has a line `high_gm_size: 512MB`; all types draw on that memory
(drivers/gpu/drm/i915/gvt/vgpu.c). GVT-g's driver for VFIO has no migration (gvt/kvmgt.c); for VFs of xe it is
xe-vfio-pci (drivers/vfio/pci/xe, from Linux 6.19 on), which libvirt 10.0 and newer choose.
"""

from __future__ import annotations

import re

from vgpuctl.makers.maker import Maker
from vgpuctl.model.gpu import VgpuType
from vgpuctl.model.usage import SYSFS_SOURCE

_GRAPHICS_MEMORY = re.compile(r"^high_gm_size: ([0-9]{1,9})MB$", re.MULTILINE)


class Intel(Maker):
    """Intel."""

    name = "Intel"
    vendor_id = "8086"
    type_prefix = "i915-GVTg_"
    mdev_technique = "GVT-g"
    display_needs_gl = True
    has_network_cards = True
    vgpus_can_move = False
    movable_vf_drivers = ("xe-vfio-pci",)
    movable_vf_hint = "modprobe xe-vfio-pci, with the driver xe of Linux 6.19 or newer; then stop and start the VMs"
    scheduler_hint = "the driver xe has it from Linux 6.19 on, on cards with SR-IOV (sriov_admin); uname -r; lspci -k"

    def usage_source(self, driver: str) -> str | None:
        """Return sysfs: xpu-smi has more, but a public repository suspects its telemetry of freezing hosts."""
        return SYSFS_SOURCE

    def read_type(self, type_id: str, name: str, description: str) -> VgpuType:
        """Read the type's graphics memory, which is also what it takes from the pool."""
        match = _GRAPHICS_MEMORY.search(description)
        size = int(match[1]) if match else None
        return VgpuType(type_id=type_id, name=name, profile=type_id, framebuffer_mib=size, pool_units=size)
