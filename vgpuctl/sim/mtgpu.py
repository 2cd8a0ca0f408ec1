# SPDX-License-Identifier: Apache-2.0
"""Moore Threads' module mtgpu on a simulated host: its parameters, which modprobe's files set when it is loaded.

The simulator states the defaults itself, from mtgpu_module_param.c of the driver and docs.mthreads.com (MT vGPU 2.9.2).
A boolean parameter is shown as Y or N (kernel/params.c).
"""

from __future__ import annotations

from collections.abc import Iterable

from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.state import State
from vgpuctl.sim.tree import Node, fixed_directory, text_file

MODULE = "mtgpu"
_DEFAULTS = {
    "mtgpu_vgpu_scheduling_policy": "0",
    "mtgpu_vgpu_time_sliced_value": "20",
    "vgpu_overcommit_enable": "N",
    "vgpu_overcommit_num": "1",
}


def module_records(texts: Iterable[str]) -> list[JournalRecord]:
    """Return the records of loading the module with the options in these files. The last value of a parameter wins."""
    records: list[JournalRecord] = []
    for text in texts:
        for line in text.replace("\\\n", " ").splitlines():
            words = line.split()
            if words[:2] == ["options", MODULE]:
                pairs = (word.partition("=") for word in words[2:])
                records += [["parameter", MODULE, name, _shown(name, value)] for name, _, value in pairs]
    return records


def nodes(state: State) -> dict[str, Node]:
    """Return the directory of the module in /sys/module."""
    values = {**_DEFAULTS, **state.module_parameters.get(MODULE, {})}
    files: dict[str, Node] = {name: text_file(value) for name, value in values.items() if name in _DEFAULTS}
    return {"parameters": fixed_directory(files)}


def _shown(name: str, value: str) -> str:
    value = value.strip('"')
    return value if _DEFAULTS.get(name) != "N" else "Y" if value.lower() in ("1", "y", "on") else "N"
