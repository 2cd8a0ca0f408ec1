# SPDX-License-Identifier: Apache-2.0
"""What pages show of a GPU that is divided by MIG or takes mixed sizes, and where a vGPU is on it."""

from __future__ import annotations

from vgpuctl.model.results.gpus import GpuDetailsResult
from vgpuctl.model.results.vgpus import VgpuResult


def pairs(gpu: GpuDetailsResult) -> tuple[tuple[str, str], ...]:
    """Return the lines of show-gpu; none for a GPU without MIG that takes vGPUs of one size."""
    mig = gpu.mig
    lines: list[tuple[str, str]] = []
    if mig is not None and (mig.enabled or mig.pending):
        pending_note = "" if mig.enabled == mig.pending else f", {_on_or_off(mig.pending)} after a reset of the GPU"
        lines.append(("mig", _on_or_off(mig.enabled) + pending_note))
        lines += [
            (
                "gpu instance",
                f"{instance.id}: {instance.profile}, memory slices {instance.start}:{instance.size}",
            )
            for instance in mig.instances
        ]
    if gpu.mixed_size:
        lines.append(("sizes", "mixed"))
    return tuple(lines)


def _on_or_off(enabled: bool) -> str:
    return "on" if enabled else "off"


def location(vgpu: VgpuResult) -> str:
    """Return where a vGPU is on its GPU, "" if there is nothing to show: `placement 24`, `GPU instance 3`."""
    if vgpu.placement_id is not None:
        return f"placement {vgpu.placement_id}"
    if vgpu.gpu_instance_id is not None:
        return f"GPU instance {vgpu.gpu_instance_id}"
    return ""
