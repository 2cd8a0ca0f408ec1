# SPDX-License-Identifier: Apache-2.0
"""The kernel's sample driver mtty, a parent of mdevs that is no PCI device: type N takes N of its ports.

Source: samples/vfio-mdev/mtty.c (mdev_avail_ports).
"""

from __future__ import annotations

from vgpuctl.makers.maker import Maker
from vgpuctl.model.gpu import VgpuType
from vgpuctl.model.numbers import parse_integer
from vgpuctl.value import replace


class KernelSamples(Maker):
    """The kernel's sample drivers."""

    name = "the kernel's samples"
    type_prefix = "mtty-"
    vgpus_can_move = True  # mtty_precopy_ioctl and its neighbours, from Linux 6.7 on

    def read_type(self, type_id: str, name: str, description: str) -> VgpuType:
        """Count the type's ports."""
        ports = parse_integer(type_id.removeprefix("mtty-"))
        return replace(super().read_type(type_id, name, description), pool_units=ports or None)
