# SPDX-License-Identifier: Apache-2.0
"""The figures of the cards in the benchmark, as NVIDIA publishes them.

- Same size: the maximum number of vGPUs per GPU of each size, from the vGPU type tables (vgpuConfig.xml of the 17 host
  driver, and the user guide's tables for Blackwell).
- MIG: the placements of GPU instances from the MIG user guide.
- Mixed size: the rules of NVIDIA's open kernel modules, kernel_vgpu_mgr.c. A driver's own list would take precedence.
  That list agrees with these rules for A40, A100 and H100.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

GIB = 1024


class Card(NamedTuple):
    """A GPU model and how it is divided. `sizes`: the GiB of each profile.

    `most`: the maximum number of each profile, on a card that holds one size at a time. On other cards, `places`: the
    slices where each profile may start, and how many of the card's `slices` it covers.
    """

    name: str
    framebuffer_gib: int
    sizes: Mapping[str, int]
    most: Mapping[str, int] = {}
    places: Mapping[str, tuple[tuple[int, ...], int]] = {}
    slices: int = 0


def same_size(name: str, framebuffer_gib: int, most: Mapping[str, int]) -> Card:
    """Return a card that holds one size at a time. A profile's name begins with its GiB."""
    return Card(name, framebuffer_gib, {profile: gib(profile) for profile in most}, most)


def gib(profile: str) -> int:
    """Return the framebuffer in GiB that a profile's name begins with."""
    return int(profile.rstrip("ABCQ"))


A100_40 = same_size("A100-40", 40, {"4C": 10, "5C": 8, "8C": 5, "10C": 4, "20C": 2, "40C": 1})
A40 = same_size("A40", 48, {"1B": 32, "2B": 24, "4Q": 12, "8Q": 6})
A16 = same_size("A16", 16, {"1B": 16, "2B": 8, "4Q": 4, "8Q": 2})
A10 = same_size("A10", 24, {"1B": 24, "2B": 12, "4Q": 6, "8Q": 3})

H100_MIG = Card(
    "H100 MIG",
    80,
    {"1g": 10, "1g.20gb": 20, "2g": 20, "3g": 40, "4g": 40, "7g": 80},
    places={
        "1g": ((0, 1, 2, 3, 4, 5, 6), 1),
        "1g.20gb": ((0, 2, 4, 6), 2),
        "2g": ((0, 2, 4), 2),
        "3g": ((0, 4), 4),
        "4g": ((0,), 4),
        "7g": ((0,), 8),
    },
    slices=8,
)

ADA_MOST = {"2Q": 24, "3Q": 16, "4Q": 12, "6Q": 8, "8Q": 6, "12Q": 4, "16Q": 3, "24Q": 2}
"""RTX 6000 Ada and L40S, 48 GiB."""
PRO_6000_MOST = {"2Q": 32, "3Q": 32, "4Q": 24, "6Q": 16, "8Q": 12, "12Q": 8, "16Q": 6, "24Q": 4}
"""RTX PRO 6000 Blackwell Server Edition, 96 GiB. At most 32 vGPUs time-share a GPU, so a 2 GiB type gets 3 GiB."""


def ada_mixed(*profiles: str) -> Card:
    """Return a 48 GiB card older than Blackwell, in mixed-size mode."""
    places = {p: (halved(48, gib(p), ADA_MOST[p]), gib(p)) for p in profiles}
    return Card("RTX 6000 Ada mixed", 48, {p: gib(p) for p in profiles}, places=places, slices=48)


def pro_6000_mixed(*profiles: str) -> Card:
    """Return a 96 GiB Blackwell card, in mixed-size mode."""
    places = {p: (divided(96, PRO_6000_MOST[p]), max(gib(p), 96 // PRO_6000_MOST[p])) for p in profiles}
    return Card("RTX PRO 6000 mixed", 96, {p: gib(p) for p in profiles}, places=places, slices=96)


def pro_6000_same(*profiles: str) -> Card:
    """Return the same card in same-size mode."""
    return same_size("RTX PRO 6000", 96, {p: PRO_6000_MOST[p] for p in profiles})


def divided(region: int, most: int) -> tuple[int, ...]:
    """Return the placement IDs on Blackwell: one for each vGPU if all have this size (kernel_vgpu_mgr.c)."""
    return tuple(region * j // most for j in range(most))


def halved(region: int, size: int, most: int) -> tuple[int, ...]:
    """Return the placement IDs on Ampere, Ada and Hopper: the driver halves the region repeatedly (kernel_vgpu_mgr.c).

    The number of parts is the greatest power of two up to `most`. Each left part has a placement that begins where the
    part begins. Each right part has one that ends where the part ends. (If `most` is a power of two, the kernel module
    uses both ends of half as many parts. The result is the same.)
    """
    parts = 1 << (most.bit_length() - 1)
    part = region // parts
    return tuple(part * j if j % 2 == 0 else part * (j + 1) - size for j in range(parts))
