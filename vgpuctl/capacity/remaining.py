# SPDX-License-Identifier: Apache-2.0
"""The answer of each way to divide a GPU: how many more vGPUs of a type fit, and who holds the rest."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.model.gpu import Gpu, Vgpu, VgpuType
from vgpuctl.value import Value

MAX_TIME_SLICED = 32
"""The most vGPUs on a GPU without MIG, of any size (kernel_vgpu_mgr.c, MAX_VGPU_DEVICES_PER_PGPU)."""


class Remaining(Value):
    """`free`: how many more fit by the rule, ignoring the number of VFs; None when the driver does not report it.

    `reason`: the blocker when none fits. `is_lower_bound`: the place of some vGPU on the GPU is unknown, so `free`
    assumes the worst place; if the driver still offers the type, the driver knows better.
    """

    free: int | None
    reason: str = ""
    is_lower_bound: bool = False


def name_holders(taken: Sequence[Vgpu]) -> str:
    """Name the holders, shortened in the middle: vdi-001 … vdi-010."""
    names = sorted({v.holder_text for v in taken})
    if not names:
        return "nobody"
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]} … {names[-1]} ({len(names)})"


def find_type(gpu: Gpu, vgpu: Vgpu) -> VgpuType | None:
    """Return the type of a vGPU on a GPU, by its device or else by its record; None where neither has it."""
    by_id = gpu.find_type(vgpu.type_id) if vgpu.type_id is not None else None
    return by_id or next((t for t in gpu.types if t.profile == vgpu.profile), None)
