# SPDX-License-Identifier: Apache-2.0
"""The GPUs of the benchmark, as kinds that the placement code uses, with every profile of their model.

Sizes and maxima are those of the simulated models (NVIDIA's vGPU type tables). Placements of mixed sizes follow
NVIDIA's open kernel modules, kernel_vgpu_mgr.c; those of GPU instances follow the MIG user guide.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.gpu.gpu_kind import GpuKind, State
from vgpuctl.gpu.slice_kind import Footprint, SliceKind
from vgpuctl.model.names import strip_board

GIB = 1024
_TIME_SLICED = re.compile("[0-9]+[ABCQ]")
ADA_MOST = {
    "2Q": 24, "3Q": 16, "4Q": 12, "6Q": 8, "8Q": 6, "12Q": 4, "16Q": 3, "24Q": 2, "48Q": 1,
}  # fmt: skip
"""RTX 6000 Ada and L40S with mixed sizes, 48 GiB."""
BLACKWELL_MOST = {
    "2Q": 32, "3Q": 32, "4Q": 24, "6Q": 16, "8Q": 12, "12Q": 8, "16Q": 6, "24Q": 4, "32Q": 3, "48Q": 2, "96Q": 1,
}  # fmt: skip
"""RTX PRO 6000 with mixed sizes, 96 GiB. At most 32 vGPUs share its time, so 2 GiB take a place of 3."""
MIG_PLACES = {
    "1g": (10, (0, 1, 2, 3, 4, 5, 6), 1),
    "1g.20gb": (20, (0, 2, 4, 6), 2),
    "2g": (20, (0, 2, 4), 2),
    "3g": (40, (0, 4), 4),
    "4g": (40, (0,), 4),
    "7g": (80, (0,), 8),
}
"""H100 80GB: the GiB of a GPU instance, the slices where it may start, and how many it covers."""


def gib(profile: str) -> int:
    """Return the framebuffer in GiB that a profile's name begins with."""
    return int(profile.rstrip("ABCQ"))


@cache
def card(name: str) -> GpuKind:
    """Return a GPU: a simulated model with one size at a time, or one of those with slices below."""
    if name == "RTX 6000 Ada mixed":
        return _mixed(name, 48, {p: (_halved(48, gib(p), n), gib(p)) for p, n in ADA_MOST.items()})
    if name == "RTX PRO 6000 mixed":
        places = {p: (_divided(96, n), max(gib(p), 96 // n)) for p, n in BLACKWELL_MOST.items()}
        return _mixed(name, 96, places)
    if name == "H100 MIG":
        sizes = {p: size * GIB for p, (size, _, _) in MIG_PLACES.items()}
        takes = {p: Footprint(starts, slices) for p, (_, starts, slices) in MIG_PLACES.items()}
        return SliceKind(name, 80 * GIB, sizes, takes, slices=8)
    model = _models()[name]
    named = ((strip_board(p["name"].split()[-1]), p) for p in model["profiles"])
    profiles = {profile: p for profile, p in named if _TIME_SLICED.fullmatch(profile)}
    sizes = {profile: p["framebuffer_mib"] for profile, p in profiles.items()}
    return EqualSizeKind(name, model["framebuffer_mib"], sizes, {profile: p["max"] for profile, p in profiles.items()})


def used_mib(kind: GpuKind, state: State) -> int:
    """Return the framebuffer in use on a GPU; covered slices count in full."""
    if isinstance(kind, EqualSizeKind):
        size, number = state
        return int(size * number)
    slices = 8 if kind.name == "H100 MIG" else kind.framebuffer_mib // GIB
    return int(state.bit_count() * kind.framebuffer_mib // slices)


def _models() -> dict[str, Any]:
    return dict(json.loads((files("vgpuctl.sim") / "data/models.json").read_text(encoding="utf-8")))


def _mixed(name: str, region_gib: int, places: dict[str, tuple[tuple[int, ...], int]]) -> SliceKind:
    sizes = {p: gib(p) * GIB for p in places}
    takes = {p: Footprint(starts, size) for p, (starts, size) in places.items()}
    return SliceKind(name, region_gib * GIB, sizes, takes, slices=region_gib)


def _divided(region: int, most: int) -> tuple[int, ...]:
    """Return the placement IDs on Blackwell: one for each vGPU if all have this size."""
    return tuple(region * j // most for j in range(most))


def _halved(region: int, size: int, most: int) -> tuple[int, ...]:
    """Return the placement IDs on Ampere, Ada and Hopper: the driver halves the region repeatedly.

    The number of parts is the greatest power of two up to `most`. A left part is used from its beginning, a right part
    to its end.
    """
    parts = 1 << (most.bit_length() - 1)
    part = region // parts
    return tuple(part * j if j % 2 == 0 else part * (j + 1) - size for j in range(parts))
