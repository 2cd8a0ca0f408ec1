# SPDX-License-Identifier: Apache-2.0
"""Moore Threads' module mtgpu on a simulated host: its parameters, which modprobe's files set when it is loaded.

The simulator states the defaults itself, from mtgpu_module_param.c of the driver and docs.mthreads.com (MT vGPU 2.9.2).
A boolean parameter is shown as Y or N (kernel/params.c).

A vGPU has the file `common`. The word `vgpu_save_running` has the guest's driver get ready to be saved; then the file
says so until the VM is off. How the driver refuses is not published: an overcommitted card and a VM that is off give
EINVAL here. Which run of the VM is ready is kept where NVIDIA's vGPUs have their parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.objects import RunningDomain, SimMdev
from vgpuctl.sim.refusals import KernelRefusal, raise_refusal
from vgpuctl.sim.state import State
from vgpuctl.sim.tree import FileNode, Node, fixed_directory, text_file

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


def vgpu_nodes(state: State, mdev: SimMdev) -> dict[str, Node]:
    """Return what the driver adds to a vGPU's directory."""
    return {"common": FileNode(show=partial(_common_text, state, mdev), store=partial(_write_common, state, mdev))}


def is_ready_to_be_saved(state: State, mdev: SimMdev) -> bool:
    """Return whether the guest's driver was asked to get ready, in this run of the VM."""
    running = _user(state, mdev)
    return running is not None and mdev.params == str(running.pid)


def _user(state: State, mdev: SimMdev) -> RunningDomain | None:
    return state.running.get(state.carrier_users.get(mdev.uuid, ""))


def _common_text(state: State, mdev: SimMdev) -> str:
    return "GUEST_SAVE_FINISHED\n" if is_ready_to_be_saved(state, mdev) else "\n"


def _write_common(state: State, mdev: SimMdev, written: str) -> list[JournalRecord]:
    running = _user(state, mdev)
    overcommit = {**_DEFAULTS, **state.module_parameters.get(MODULE, {})}["vgpu_overcommit_enable"]
    if written.strip() != "vgpu_save_running" or running is None or overcommit == "Y":
        raise_refusal(KernelRefusal.MTGPU_NO_SAVE)
    return [["params", mdev.uuid, str(running.pid)]]


def _shown(name: str, value: str) -> str:
    value = value.strip('"')
    return value if _DEFAULTS.get(name) != "N" else "Y" if value.lower() in ("1", "y", "on") else "N"
