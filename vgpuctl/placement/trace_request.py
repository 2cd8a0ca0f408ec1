# SPDX-License-Identifier: Apache-2.0
"""Requests for vGPUs with their times: the input of `simulate`."""

from __future__ import annotations

from vgpuctl.value import Value

WHOLE_GPU = 1000
"""A whole GPU in thousandths."""


class ProfileSelector(Value):
    """The acceptable profiles for each vGPU of a request; equal selectors get equal results.

    `profile`: names of profiles separated by `|`; a GPU provides the first that it has. A name is a profile's own
    (`A16-2B`) or its part without the model (`2B`), which any model may provide. None: the smallest profile that covers
    `gpu_milli`, a share of the GPU's framebuffer in thousandths. `models`: the only acceptable models; empty for any.
    """

    profile: str | None = None
    gpu_milli: int = 0
    models: tuple[str, ...] = ()


class TraceRequest(Value):
    """One VM's vGPUs: `vgpu_count` of them, all or none. `line` is its line in the file, 0 when it was generated.

    Times are seconds from the beginning. `departure_seconds` None: it stays until the end.
    """

    arrival_seconds: float
    departure_seconds: float | None
    selector: ProfileSelector
    vgpu_count: int = 1
    name: str = ""
    line: int = 0


class Trace(Value):
    """Requests in the order of their file. `skipped_count`: tasks of the file that need no GPU and are skipped."""

    requests: tuple[TraceRequest, ...]
    skipped_count: int = 0
