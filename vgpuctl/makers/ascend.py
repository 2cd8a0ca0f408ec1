# SPDX-License-Identifier: Apache-2.0
"""Huawei Ascend: each vNPU is an mdev of a template such as `vnpu-vir02`.

A type's description has a line for each resource, among them `memory size: 6GB`; 0GB means that memory is not divided
(Ascend 910). What the driver offers more of a type is the least of what is left of AI cores, AI CPUs, JPEG decoders and
memory, with at most 16 vNPUs on a die. A type's share of one pool would not tell that, so no `pool_units` are given:
`gpu` then assumes the worst of vNPUs that are recorded and not made yet. On a card with two dies the types of the
second begin with `vnpu-p1_`.

The mdevs stand on the card's own function, also on cards that give each a VF (Ascend 910B, 910_93, 950). There
`sriov_numvfs` takes at most 12, and another number is refused (EINVAL) while the card has a vNPU. In the mode for
containers, and without VFs on these cards, the driver offers 0 of each type.

A type has a file `vfg_id`, and a vNPU `hw_vdavinci/vfg_id`: its group of virtual functions, 0 to 3, of Ascend 310P. In
vascend nothing but the files that show it reads the number, and DCMI's documents say of groups "not supported
currently". So vgpuctl does not set it.

Source: dvt.c, dvt_sriov.c, dvt_sysfs.c, kvmdt.c and vfio_ops.c in src/sdk_driver/vascend of Huawei's CANN driver
(verylucky01/driver at e29d066). Nobody has tried this on such a card.
"""

from __future__ import annotations

import errno
import re

from vgpuctl.makers.maker import Maker
from vgpuctl.model.gpu import Gpu, GpuMode, VgpuType

_MEMORY = re.compile(r"^memory size: ([0-9]{1,6})GB$", re.MULTILINE)


class Ascend(Maker):
    """Huawei Ascend."""

    name = "Huawei Ascend"
    vendor_id = "19e5"
    type_prefix = "vnpu-"
    has_displays = False
    vgpus_take_vfs = True
    max_plain_vfs = 12  # VDAVINCI_VF_MAX in dvt.h
    pool_rule = (
        "its types share AI cores, AI CPUs, JPEG decoders and memory, at most 16 on a die; if nothing fits on an "
        "empty card: npu-smi set -t vnpu-mode -d 1"
    )
    usage_tool = "npu-smi"
    no_room_errnos = (errno.EINVAL,)  # vfio_ops.c: whatever the reason is

    def read_type(self, type_id: str, name: str, description: str) -> VgpuType:
        """Read the type's memory."""
        match = _MEMORY.search(description)
        size = int(match[1]) * 1024 if match else 0
        return VgpuType(type_id=type_id, name=name, profile=type_id, framebuffer_mib=size or None)

    def offers_nothing_fix(self, gpu: Gpu) -> str | None:
        """Return the command for the card's VFs, where vNPUs need them, or the one for the driver's mode."""
        if gpu.mode is not GpuMode.VGPU:
            return None  # without mdev types: a card for the host's own use, or a driver without vascend
        if gpu.vfs_total and not gpu.vfs_enabled:
            return f"each vNPU takes a VF: vgpuctl set-mode {gpu.address} vgpu"
        return "set the driver's mode for VMs: npu-smi set -t vnpu-mode -d 1"
