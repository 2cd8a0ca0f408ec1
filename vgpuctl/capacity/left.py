# SPDX-License-Identifier: Apache-2.0
"""What each way of dividing a GPU answers: how many more of a type it leaves room for, and who has the rest."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.model.gpu import Gpu, Vgpu, VgpuType
from vgpuctl.value import Value

MAX_TIME_SLICED = 32
"""The most vGPUs on a GPU without MIG, of whatever sizes (kernel_vgpu_mgr.c, MAX_VGPU_DEVICES_PER_PGPU)."""


class Left(Value):
    """`free`: how many more fit by the rule, whatever VFs there are; None when the driver keeps that to itself.

    `why`: what stands in the way when none fits. `least`: where something on the GPU is, is not known, so `free` is
    for the worst place; the driver, when it offers the type all the same, knows better.
    """

    free: int | None
    why: str = ""
    least: bool = False


def who(taken: Sequence[Vgpu]) -> str:
    """Name the holders, shortened in the middle: vdi-001 … vdi-010."""
    names = sorted({v.holder for v in taken})
    if not names:
        return "nobody"
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]} … {names[-1]} ({len(names)})"


def type_on(gpu: Gpu, vgpu: Vgpu) -> VgpuType | None:
    """Return the type of what is on a GPU, by its device or else by its record; None where neither tells."""
    by_id = gpu.type_of(vgpu.type_id) if vgpu.type_id is not None else None
    return by_id or next((t for t in gpu.types if t.profile == vgpu.profile), None)
