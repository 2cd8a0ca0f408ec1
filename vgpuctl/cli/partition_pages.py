# SPDX-License-Identifier: Apache-2.0
"""What pages say of a GPU that is divided by MIG or takes mixed sizes, and where a vGPU is on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Data = Mapping[str, Any]


def pairs(gpu: Data) -> tuple[tuple[str, str], ...]:
    """Return the lines of show-gpu; none for a GPU without MIG that takes one size."""
    mig = gpu.get("mig")
    lines: list[tuple[str, str]] = []
    if mig is not None and (mig["enabled"] or mig["pending"]):
        waits = "" if mig["enabled"] == mig["pending"] else f", {_word(mig['pending'])} after a reset of the GPU"
        lines.append(("mig", _word(mig["enabled"]) + waits))
        lines += [
            ("gpu instance", f"{one['id']}: {one['profile']}, memory slices {one['start']}:{one['size']}")
            for one in mig["instances"]
        ]
    if gpu.get("mixed_size"):
        lines.append(("sizes", "mixed"))
    return tuple(lines)


def _word(enabled: bool) -> str:
    return "on" if enabled else "off"


def place(vgpu: Data) -> str:
    """Return where a vGPU is on its GPU, "" where that is nothing to tell: `placement 24`, `GPU instance 3`."""
    if vgpu.get("placement_id") is not None:
        return f"placement {vgpu['placement_id']}"
    if vgpu.get("gpu_instance_id") is not None:
        return f"GPU instance {vgpu['gpu_instance_id']}"
    return ""
