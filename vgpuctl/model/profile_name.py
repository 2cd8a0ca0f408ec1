# SPDX-License-Identifier: Apache-2.0
"""The parts of an NVIDIA profile's name: `A100-4C`, `A100-1-5CME`, and `4C`, which omits the board.

vgpu-device-manager writes the GPU instance's attribute after it: ME, NOME, MEALL or GFX (pkg/types/vgpu_type.go).
"""

from __future__ import annotations

import re

from vgpuctl.value import Value

_NVIDIA = re.compile(
    r"(?:(?P<board>[A-Za-z].*?|\d+[A-Za-z].*?)-)?(?P<rest>(?:(?P<slices>[1-7])-)?\d+(?P<series>[ABCQ])(?P<suffix>4|ME|NOME|MEALL|GFX)?)",
    re.IGNORECASE,
)


_SHORT_NAME = re.compile(r"\w.*-\d\w*")


class ProfileName(Value):
    """The parts of a name. `board`: "" when omitted; `without_board`: the rest; `mig_slices`: 0 without MIG.

    Exclusive types (A and B series, ...ME) cannot be combined with another vGPU in a VM: NVIDIA AI Enterprise
    documentation, multiple vGPUs; NVML capability NVML_VGPU_CAP_MULTI_VGPU_EXCLUSIVE.
    """

    board: str
    without_board: str
    mig_slices: int
    series: str
    exclusive: bool


def parse_profile_name(profile: str) -> ProfileName | None:
    """Return the parts of an NVIDIA profile's name, or None for another vendor's."""
    match = _NVIDIA.fullmatch(profile)
    if match is None:
        return None
    series, suffix = match["series"].upper(), (match["suffix"] or "").upper()
    exclusive = series in "AB" or suffix in ("ME", "MEALL")
    return ProfileName(match["board"] or "", match["rest"], int(match["slices"] or 0), series, exclusive)


def profile_of_type(type_name: str) -> str:
    """Return the profile of an NVIDIA type from the driver's name of the type: the last word, if it names a board.

    Otherwise the whole name: "NVIDIA GeForce RTX 3050", a type of RTX PRO 6000 (ids 1604, 1605, 2266 and 2267 of
    NVIDIA's driver 595), ends in a word that names neither board nor size.
    """
    last_word = type_name.rpartition(" ")[2]
    return last_word if _SHORT_NAME.fullmatch(last_word) else type_name


def strip_board(profile: str) -> str:
    """Return an NVIDIA profile's name without the board: `2B`, `1-10C`; another vendor's name stays whole."""
    parsed = parse_profile_name(profile)
    return parsed.without_board if parsed is not None else profile
