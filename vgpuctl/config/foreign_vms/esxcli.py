# SPDX-License-Identifier: Apache-2.0
"""Read what ESXi's esxcli prints about GPUs: `graphics host get`, `graphics device list`, the driver's parameters.

`Default Graphics Type: SharedPassthru` is vGPU, `Shared` is VMware's own sharing without one. The policy Performance
spreads VMs over the GPUs, Consolidation fills one first. `RmPVMRL` in NVreg_RegistryDwords is the scheduler of NVIDIA's
driver. Sources: Broadcom's esxcli reference, NVIDIA's vGPU documentation for VMware vSphere.
"""

from __future__ import annotations

import re

from vgpuctl.config.arguments import placement_policy_of
from vgpuctl.config.foreign_vms.imported import ForeignFile, ImportedHostSettings, Source
from vgpuctl.model.numbers import parse_integer

FORMAT = "ESXi esxcli"
_FIELD = re.compile(r"[ \t]*(Default Graphics Type|Shared Passthru Assignment Policy|Graphics Type|"
                    r"(?:VGPU|vGPU) Mode)[ \t]*:[ \t]*(.*)", re.IGNORECASE)  # fmt: skip
_MARK = re.compile(
    r"^[ \t]*(Default Graphics Type|Shared Passthru Assignment Policy|Graphics Type)[ \t]*:|NVreg_RegistryDwords",
    re.IGNORECASE | re.MULTILINE,
)
_DWORD = re.compile(r"\bRmPVMRL[ \t]*=[ \t]*([0-9A-Za-z]{1,20})", re.IGNORECASE)
_MODES = {"sharedpassthru": "vgpu"}
_MIXED = {"mixedsize": True, "samesize": False}


def is_format(text: str) -> bool:
    """Return whether a text is probably one that esxcli printed about GPUs."""
    return _MARK.search(text) is not None


def parse_text(source: Source, text: str) -> ForeignFile:
    """Read one or more outputs of esxcli.

    Raises:
        InvalidInput: a value is none that ESXi has.
    """
    settings: list[ImportedHostSettings] = []
    left_out: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        match = _FIELD.fullmatch(line)
        if match is not None:
            key, value = match[1].lower(), source.text(number, match[1], match[2])
            _add_field(source, number, key, value, settings, left_out)
        for dword in _DWORD.finditer(line):
            word = parse_integer(dword[1])
            if word is None or not 0 <= word <= 0xFFFFFFFF:
                raise source.error(number, f"RmPVMRL is {dword[1]!a}, not a number of 32 bits")
            settings.append(ImportedHostSettings(source.at(number), scheduler_dword=word))
    return ForeignFile(source.name, FORMAT, settings=tuple(settings), left_out=tuple(left_out))


def _add_field(
    source: Source,
    number: int,
    key: str,
    value: str,
    settings: list[ImportedHostSettings],
    left_out: list[str],
) -> None:
    position, word = source.at(number), value.lower().replace(" ", "")
    if key == "shared passthru assignment policy":
        policy = placement_policy_of(value)
        if policy is None:
            raise source.error(number, f"the policy is {value!a}, not Performance or Consolidation")
        settings.append(ImportedHostSettings(position, placement=policy))
    elif word in _MIXED:
        settings.append(ImportedHostSettings(position, mixed_size=_MIXED[word]))
    elif word in _MODES:
        settings.append(ImportedHostSettings(position, mode=_MODES[word]))
    elif word == "shared":
        left_out.append(f"{position}: Shared is VMware's own sharing of a GPU without vGPUs (vSGA): KVM has none")
