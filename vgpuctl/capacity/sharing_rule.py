# SPDX-License-Identifier: Apache-2.0
"""The rule by which a GPU takes vGPUs, in a few words."""

from __future__ import annotations

from vgpuctl.model.gpu import NVIDIA_VENDOR_ID, WHOLE_DEVICE_BACKENDS, Gpu


def describe_sharing_rule(gpu: Gpu) -> str | None:
    """Return how a GPU is divided; None when it offers no vGPUs now. The rules themselves are in `room`."""
    if gpu.backend is None or gpu.backend in WHOLE_DEVICE_BACKENDS:
        return None
    if gpu.vendor_id != NVIDIA_VENDOR_ID:
        return "its types draw from one pool"
    if gpu.mig is not None and gpu.mig.enabled:
        return "each vGPU runs in a GPU instance of its profile (MIG)"
    if gpu.mixed_size:
        return "vGPUs of several sizes, each at one of its placements, and no two of them overlap"
    if gpu.has_single_type:
        return "all vGPUs on it are of one type, for its driver is older than 550"
    return "all vGPUs on it have the same framebuffer size"
