# SPDX-License-Identifier: Apache-2.0
"""Moore Threads: mdevs on the card's own function, of types such as `mtgpu-1104`, in any mix on a card.

A type's last two digits are its memory in GiB, as its number is published for cards with 32 GiB (`_SIZES_GIB`, of MT
vGPU 2.9.2, 2026-07-24). How the driver writes a type's `name` and `description` is not known; a name such as mtgpu-8g,
which MTML's header has as an example, is believed first. A card has 28 of mtgpu-1101 and 32 of mtgpu-1100, both with
1 GiB: what a type takes is not its memory alone, so no `pool_units` are given, and the driver's numbers count.

QEMU cannot show the screen of its vGPUs: the guest's own virtual display or a remote desktop does.

Before a VM is saved (`virsh save`, `managedsave`), its guest's driver must stop its work: the word `vgpu_save_running`
is written to /sys/bus/mdev/devices/UUID/common, and that file has GUEST_SAVE_FINISHED within 5 seconds. Windows guests
only, with QEMU 8.2.0 and libvirt 9.10.0, and not with overcommit.

Source: docs.mthreads.com/vgpu/version-2.9.2 (install_guide, releasenote, faq); mtml_2.2.0.h in
MooreThreads/mthreads-ml-py. Nobody has tried this on such a card.
"""

from __future__ import annotations

import re

from vgpuctl.makers.maker import Maker, SaveHandshake
from vgpuctl.model.gpu import Gpu, VgpuType

_NAMED_SIZE = re.compile(r"mtgpu-([0-9]{1,3})g", re.IGNORECASE)
_SIZES_GIB = {
    "mtgpu-1100": 1,
    "mtgpu-1101": 1,
    "mtgpu-1102": 2,
    "mtgpu-1104": 4,
    "mtgpu-1108": 8,
    "mtgpu-1116": 16,
    "mtgpu-1132": 32,
}


class MooreThreads(Maker):
    """Moore Threads."""

    name = "Moore Threads"
    vendor_id = "1ed5"
    type_prefix = "mtgpu-"
    vgpu_driver = "mtgpu"
    has_displays = False
    usage_tool = "mthreads-gmi"
    scheduler_hint = None
    vgpus_can_move = True
    save_handshake = SaveHandshake("common", "vgpu_save_running", "GUEST_SAVE_FINISHED", 5.0)
    save_switches = (
        (
            "/sys/module/mtgpu/parameters/vgpu_overcommit_enable",
            "memory is overcommitted (vgpu_overcommit_enable), and mtgpu saves no vGPU then",
        ),
    )
    saved_note = "a saved VM starts only with the same versions of mtgpu, QEMU and libvirt: update them later"
    pool_rule = "its types share the card's memory, in any mix; how many more of each fit is what its driver says"

    def read_type(self, type_id: str, name: str, description: str) -> VgpuType:
        """Read the type's memory from its name, or else from the published table."""
        match = _NAMED_SIZE.fullmatch(name.strip())
        size_gib = int(match[1]) if match else _SIZES_GIB.get(type_id)
        size_mib = size_gib * 1024 if size_gib else None
        return VgpuType(type_id=type_id, name=name, profile=type_id, framebuffer_mib=size_mib)

    def offers_nothing_fix(self, gpu: Gpu) -> str | None:
        """Return what MT vGPU's installation guide needs; a card with types needs nothing."""
        if gpu.types:
            return None
        return (
            "install the host driver of MT vGPU (modules mtgpu and mtvgpu_basic), and turn SR-IOV, the IOMMU, ARI and "
            "Above 4G Decoding on in the firmware; journalctl -k -g 'vgpu mm iommu mode' shows ENABLE when it works"
        )

    def type_warning(self, type_id: str) -> str | None:
        """Return the known problem of the type that has the whole card."""
        if type_id != "mtgpu-1132":
            return None
        return (
            "mtgpu-1132 does not work in a Windows guest with IDD displays beside the video card of the machine q35 "
            "(release notes of MT vGPU 2.9.2): use a template with the machine pc-i440fx, or another profile"
        )
