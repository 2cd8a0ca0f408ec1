# SPDX-License-Identifier: Apache-2.0
"""The parts of an NVIDIA profile's name: `A100-4C`, `A100-1-5CME`, and `4C`, which leaves the model open."""

from __future__ import annotations

import re

from vgpuctl.value import Value

_NVIDIA = re.compile(
    r"(?:(?P<board>[A-Za-z].*?|\d+[A-Za-z].*?)-)?(?P<rest>(?:(?P<slices>[1-7])-)?\d+(?P<series>[ABCQ])(?P<suffix>4|ME)?)",
    re.IGNORECASE,
)


_SHORT = re.compile(r"\w.*-\d\w*")


class ProfileName(Value):
    """The parts of a name. `board`: "" when it is left open; `rest`: what is behind it; `slices`: of MIG, 0 without.

    Exclusive types (A and B series, ...ME) may not be combined with another vGPU in a VM: NVIDIA AI Enterprise
    documentation, multiple vGPUs; NVML capability NVML_VGPU_CAP_MULTI_VGPU_EXCLUSIVE.
    """

    board: str
    rest: str
    slices: int
    series: str
    exclusive: bool


def parse_name(profile: str) -> ProfileName | None:
    """Return the parts of an NVIDIA profile's name, or None for another maker's."""
    match = _NVIDIA.fullmatch(profile)
    if match is None:
        return None
    series, suffix = match["series"].upper(), (match["suffix"] or "").upper()
    exclusive = series in "AB" or suffix == "ME"
    return ProfileName(match["board"] or "", match["rest"], int(match["slices"] or 0), series, exclusive)


def profile_of(name: str) -> str:
    """Return the profile of an NVIDIA type by the driver's name of it: the last word, where that names a board.

    Else it is the whole name: "NVIDIA GeForce RTX 3050", a type of RTX PRO 6000 (ids 1604, 1605, 2266 and 2267 of
    NVIDIA's driver 595), ends in a word that says neither board nor size.
    """
    last = name.rpartition(" ")[2]
    return last if _SHORT.fullmatch(last) else name


def without_model(profile: str) -> str:
    """Return what is behind the model in an NVIDIA profile's name: `2B`, `1-10C`; another's whole name."""
    name = parse_name(profile)
    return name.rest if name is not None else profile
