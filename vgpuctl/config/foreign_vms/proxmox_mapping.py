# SPDX-License-Identifier: Apache-2.0
"""Read Proxmox VE's /etc/pve/mapping/pci.cfg: which devices of which nodes the name of a mapping means.

A section is a line with the mapping's name; indented lines follow, `KEY VALUE`, and of these a `map` for each device or
group of devices of a node. Source: Proxmox VE, pve-guest-common, src/PVE/Mapping/PCI.pm.
"""

from __future__ import annotations

import re

from vgpuctl.config.foreign_vms.imported import ForeignFile, ImportedMapping, MappedDevice, Source

FORMAT = "Proxmox VE's mappings"
_MARK = re.compile(r"^[ \t]+map (?=[^\n]*\bnode=)", re.MULTILINE)


def is_format(text: str) -> bool:
    """Return whether a text is probably a file of mappings."""
    return _MARK.search(text) is not None


def parse_text(source: Source, text: str) -> ForeignFile:
    """Read the mappings.

    Raises:
        InvalidInput: a line is before the first name, or a `map` has no node or no path.
    """
    names: dict[str, int] = {}
    devices: dict[str, list[MappedDevice]] = {}
    name = None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith((" ", "\t")):
            name = source.text(number, "the mapping", line.rstrip())
            if name in names:
                raise source.error(number, f"the mapping {name} is given twice, first in line {names[name]}")
            names[name] = number
        elif name is None:
            raise source.error(number, f"{line.strip()[:60]!a} belongs to no mapping: its name comes before it")
        elif line.split()[0] == "map":
            devices.setdefault(name, []).append(_device(source, number, line.strip().removeprefix("map")))
    mappings = tuple(ImportedMapping(one, source.at(names[one]), tuple(devices.get(one, ()))) for one in names)
    return ForeignFile(source.name, FORMAT, mappings=mappings)


def _device(source: Source, number: int, text: str) -> MappedDevice:
    values = {}
    for part in text.strip().split(","):
        key, _, value = part.partition("=")
        values[key.strip()] = source.text(number, f"map {key.strip()[:40]}", value)
    missing = next((key for key in ("node", "path") if not values.get(key)), None)
    if missing is not None:
        raise source.error(number, f"this map has no {missing}=")
    return MappedDevice(values["node"], values["path"], values.get("id", ""))
