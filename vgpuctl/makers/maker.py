# SPDX-License-Identifier: Apache-2.0
"""What differs by the maker of a GPU: `Maker` states it for a maker of which nothing is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.model.gpu import Gpu, VgpuType
from vgpuctl.value import Value


class SaveHandshake(Value):
    """What a driver is told before a VM is saved: a `word` in a `file` of each vGPU, which then contains `answer`.

    `seconds`: how long that takes at most.
    """

    file: str
    word: str
    answer: str
    seconds: float


if TYPE_CHECKING:
    from vgpuctl.model.results.migration import MigrationHostResult


class Maker:
    """The facts and rules of one maker's GPUs and drivers; a subclass states what is different.

    `vendor_id`: of its PCI functions. `type_prefix`: how the directories of its mdev types begin. `has_numbered_types`:
    numbers follow, which people do not use. `vgpu_driver`: its host driver for vGPUs. `has_nvml`: NVML knows its GPUs;
    then they may have MIG, mixed sizes and a scheduler, and doctor looks at the services and logs of NVIDIA's driver.
    `has_vgpu_params`: a vGPU takes the parameters of NVIDIA's plugin. `vfs_are_for_vgpus`: a command of its driver
    turns all VFs on, and they carry nothing but vGPUs. `sets_vfs_at_load`: `vgpu_driver` reads the numbers of VFs of
    all its GPUs from a file of its own when it is loaded, accepts them from nobody else, and turns on at least one;
    `max_plain_vfs`: its driver takes at most so many, whatever the GPU could have. `breaks_at_reset`: the device ids of
    GPUs that are lost until the host boots once a VM had the whole GPU, which VFIO then resets. `mdev_technique`: what
    people call its mdevs. `no_room_errnos`: what its driver returns for an mdev without room, beside what is usual.
    `has_displays`: its vGPUs have screens that QEMU can show; `display_needs_gl`: as dma-bufs, which need OpenGL.
    `pool_rule`: how a parent of its mdevs is divided, for people. `has_network_cards`: it makes more of these than
    GPUs. `usage_tool`: the maker's program that tells the use of its cards (`host.usage.maker_tools`), from where no
    other source has it. `drawing_problem`: why QEMU may not be able to draw for guests with `vgpu_driver`, None for no
    reason. `scheduler_hint`: with what drivers vgpuctl can set how its GPUs' time is divided; None: its vGPU driver.
    `slicing`: why its cards have no profiles for VMs, as a sentence without its end; None where they may have some.
    `vgpus_take_vfs`: each mdev on the card's own function takes one of its VFs, and `sriov_numvfs` turns on as many as
    an administrator likes while there is no mdev.
    `vgpus_can_move`: whether its driver reads the state of a vGPU that runs, so that its VM can be saved, or moved to
    another host alive; None: not known. `movable_vf_drivers`: the VFIO drivers that do that for its plain VFs;
    `movable_vf_hint`: what gives a host one of them.
    `save_handshake`: what its driver must be told before a VM is saved. `save_switches`: files in which Y or 1 says
    that no VM can be saved, each with the reason as a clause. `saved_note`: what people must know of a VM that is
    saved, as a sentence without its end.
    """

    name = "another maker"
    vendor_id: str | None = None
    type_prefix: str | None = None
    has_numbered_types = False
    vgpu_driver: str | None = None
    has_nvml = False
    has_vgpu_params = False
    vfs_are_for_vgpus = False
    sets_vfs_at_load = False
    max_plain_vfs = 256
    breaks_at_reset: tuple[str, ...] = ()
    mdev_technique = "vGPU"
    no_room_errnos: tuple[int, ...] = ()
    has_displays = True
    display_needs_gl = False
    pool_rule = "its types share one pool"
    has_network_cards = False
    slicing: str | None = None
    vgpus_take_vfs = False
    drawing_problem: str | None = None
    scheduler_hint: str | None = "vgpuctl sets it on NVIDIA's GPUs, and on Intel's with the driver xe"
    usage_tool: str | None = None
    vgpus_can_move: bool | None = None
    movable_vf_drivers: tuple[str, ...] = ()
    movable_vf_hint: str | None = None
    save_handshake: SaveHandshake | None = None
    save_switches: tuple[tuple[str, str], ...] = ()
    saved_note: str | None = None

    def usage_source(self, driver: str) -> str | None:
        """Return who tells the use of a card with this driver; None if nothing does."""
        return self.usage_tool

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

    def move_problems(self, source: MigrationHostResult, target: MigrationHostResult) -> tuple[str, ...]:
        """Return why a vGPU cannot move from a host to another while its VM runs, as sentences without their ends."""
        return ()

    def move_doubts(self, source: MigrationHostResult, target: MigrationHostResult) -> tuple[str, ...]:
        """Return what the maker does not support of such a move, or what is not known, in the same form."""
        return ()

    def params_against_moves(self, params: str) -> tuple[str, ...]:
        """Return those of a vGPU's parameters with which its driver does not let it be saved or moved."""
        return ()

    def move_rule(self, distribution: str, version: str) -> str | None:
        """Return what the maker says of moves between hosts with this system (`ubuntu`, `24.04`); None: nothing."""
        return None

    def partition_choices(self, device_id: str | None) -> Mapping[int, tuple[tuple[str, str], ...]]:
        """Return, for each number of VFs that a GPU can have, its possible compute and memory partition modes.

        Empty: GPUs with this device id have no such modes, and any number of VFs.
        """
        return {}
