# SPDX-License-Identifier: Apache-2.0
"""Render nodes: the devices through which programs draw and compute on a GPU without its screens (/dev/dri/renderD*).

A GPU's driver has one where it is a DRM driver: amdgpu, i915, xe, nouveau, NVIDIA's. vfio-pci and the vGPU drivers for
virtualization have none. GPUs that are no PCI devices have one too: those of Arm chips, and the kernel's vgem, which
draws on the CPU. Sources: Documentation/gpu/drm-uapi.rst, drivers/gpu/drm/drm_drv.c (minors from 128 on).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vgpuctl.model.gpu import DRI, Gpu, GpuMode
from vgpuctl.model.names import normalize_pci

if TYPE_CHECKING:
    from vgpuctl.ports.devices import Sysfs

_DRM_CLASS = "/sys/class/drm"
_NODE = re.compile(r"renderD[0-9]{1,5}", re.ASCII)


def read_node(sysfs: Sysfs, path: str) -> str | None:
    """Return the render node of a device in sysfs that has a directory `drm`; None if its driver has none."""
    name = next((name for name in sysfs.listdir(f"{path}/drm") if _NODE.fullmatch(name)), None)
    return name and f"{DRI}/{name}"


def read_other_gpus(sysfs: Sysfs) -> list[Gpu]:
    """Return the GPUs with a render node that are no PCI functions, named after their devices; most hosts have none."""
    gpus: list[Gpu] = []
    try:
        nodes = [name for name in sysfs.listdir(_DRM_CLASS) if _NODE.fullmatch(name)]
    except OSError:
        return []
    for node in nodes:
        try:  # ../../devices/platform/vgem/drm/renderD128
            path = sysfs.readlink(f"{_DRM_CLASS}/{node}").rpartition("/drm/")[0]
        except OSError:
            continue  # its driver was unloaded meanwhile
        name = path.rpartition("/")[2]
        if name and normalize_pci(name) is None:
            gpus.append(_gpu(name, f"/sys/{path.lstrip('./').removeprefix('sys/')}", f"{DRI}/{node}"))
    return gpus


def _gpu(name: str, path: str, node: str) -> Gpu:
    return Gpu(address=name, path=path, model=name, driver=name, backend=None, mode=GpuMode.UNMANAGED, render_node=node)
