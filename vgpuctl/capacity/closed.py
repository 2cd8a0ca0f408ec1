# SPDX-License-Identifier: Apache-2.0
"""Whether host.yaml keeps a GPU from new vGPUs and VMs. What is on it already stays, and may start and stop."""

from __future__ import annotations

from vgpuctl.model.gpu import Gpu, Mode


def why_closed(gpu: Gpu, mode: str) -> str | None:
    """Say why nothing new of a mode (`vgpu`, `sriov`, `passthrough`) is placed on a GPU; None when it may be."""
    if gpu.cordoned:
        return f"it is cordoned; vgpuctl uncordon {gpu.address} opens it"
    if gpu.desired is Mode.UNMANAGED:
        return "host.yaml says that vgpuctl leaves it alone (mode: unmanaged)"
    if gpu.desired is not None and gpu.desired != mode:
        return f"host.yaml keeps it for mode {gpu.desired}"
    return None
