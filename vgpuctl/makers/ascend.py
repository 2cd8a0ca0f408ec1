# SPDX-License-Identifier: Apache-2.0
"""Huawei Ascend: each vNPU is an mdev of a template such as `vnpu-vir02`.

A type's description has a line for each resource, among them `memory size: 6GB`; 0GB means that memory is not divided
(Ascend 910). What the driver offers more of a type is the least of what is left of AI cores, AI CPUs, JPEG decoders and
memory, with at most 16 vNPUs on a die. A type's share of one pool would not tell that, so no `pool_units` are given:
`gpu` then assumes the worst of vNPUs that are recorded and not made yet. On a card with two dies the types of the
second begin with `vnpu-p1_`.

The mdevs stand on the card's own function, also on cards that give each a VF (from Ascend 910B on). In the mode for
containers, and there without VFs, the driver offers 0 of each type.

Source: dvt.c, dvt_sysfs.c, kvmdt.c and vfio_ops.c in src/sdk_driver/vascend of Huawei's CANN driver. Nobody has tried
this on such a card.
"""

from __future__ import annotations

import errno
import re

from vgpuctl.makers.maker import Maker
from vgpuctl.model.gpu import VgpuType

_MEMORY = re.compile(r"^memory size: ([0-9]{1,6})GB$", re.MULTILINE)


class Ascend(Maker):
    """Huawei Ascend."""

    name = "Huawei Ascend"
    vendor_id = "19e5"
    type_prefix = "vnpu-"
    has_displays = False
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
