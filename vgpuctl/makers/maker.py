# SPDX-License-Identifier: Apache-2.0
"""What differs by the maker of a GPU: `Maker` states it for a maker of which nothing is known."""

from __future__ import annotations

from vgpuctl.model.gpu import Gpu, VgpuType


class Maker:
    """The facts and rules of one maker's GPUs and drivers; a subclass states what is different.

    `vendor_id`: of its PCI functions. `type_prefix`: how the directories of its mdev types begin. `has_numbered_types`:
    numbers follow, which people do not use. `vgpu_driver`: its host driver for vGPUs. `has_nvml`: NVML knows its GPUs;
    then they may have MIG, mixed sizes and a scheduler, and doctor looks at the services and logs of NVIDIA's driver.
    `has_vgpu_params`: a vGPU takes the parameters of NVIDIA's plugin. `vfs_are_for_vgpus`: a command of its driver
    turns all VFs on, and they carry nothing but vGPUs. `own_vf_setting`: how an administrator sets the number of VFs
    where `vgpu_driver` accepts it from nobody else. `mdev_technique`: what people call its mdevs. `no_room_errnos`:
    what its driver returns for an mdev without room, beside what is usual. `has_displays`: its vGPUs have screens that
    QEMU can show; `display_needs_gl`: as dma-bufs, which need OpenGL. `pool_rule`: how a parent of its mdevs is
    divided, for people. `has_network_cards`: it makes more of these than GPUs. `slicing`: why its cards have no
    profiles for VMs, as a sentence without its end; None where they may have some. `vgpus_take_vfs`: each mdev on the
    card's own function takes one of its VFs, and `sriov_numvfs` turns on as many as an administrator likes while there
    is no mdev.
    """

    name = "another maker"
    vendor_id: str | None = None
    type_prefix: str | None = None
    has_numbered_types = False
    vgpu_driver: str | None = None
    has_nvml = False
    has_vgpu_params = False
    vfs_are_for_vgpus = False
    own_vf_setting: str | None = None
    mdev_technique = "vGPU"
    no_room_errnos: tuple[int, ...] = ()
    has_displays = True
    display_needs_gl = False
    pool_rule = "its types share one pool"
    has_network_cards = False
    slicing: str | None = None
    vgpus_take_vfs = False

    def read_type(self, type_id: str, name: str, description: str) -> VgpuType:
        """Return an mdev type from the name of its directory and the texts of its files `name` and `description`."""
        return VgpuType(type_id=type_id, name=name, profile=type_id)

    def offers_nothing_fix(self, gpu: Gpu) -> str | None:
        """Return what makes a GPU with its own driver offer vGPUs, while it has none and offers none; None: nothing."""
        return None

    def support_warning(self, gpu: Gpu) -> str | None:
        """Return what people must know before they use the vGPUs of this GPU, as a sentence without its end."""
        return None

    def type_warning(self, type_id: str) -> str | None:
        """Return what people must know before a VM gets an mdev of this type, as a sentence without its end."""
        return None
