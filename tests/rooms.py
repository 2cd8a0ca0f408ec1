# SPDX-License-Identifier: Apache-2.0
"""Rooms of hosts, as their agents tell them, with GPUs that take a number of vGPUs of each profile."""

from __future__ import annotations

from typing import Any

from vgpuctl.gpu.gpu_kind import GpuKind, State
from vgpuctl.gpu.kind_rules import data_of_state, rule_of
from vgpuctl.gpu.slice_kind import Footprint, SliceKind
from vgpuctl.model.host_room import GpuRoom, HostRoom

MIB_OF_GPU = 16384


def counted_gpu(model: str = "A16", **profiles: tuple[int, int]) -> tuple[GpuKind, State]:
    """Return a GPU that takes so many of each profile, (free, total), whatever it has of the others.

    `_` in a name is `-`.
    """
    counts = {name.replace("_", "-"): numbers for name, numbers in profiles.items()}
    sizes = {name: MIB_OF_GPU // max(total, 1) for name, (_, total) in counts.items()}
    footprints = {name: Footprint(units=((number, 1),)) for number, name in enumerate(counts)}
    kind = SliceKind(model, MIB_OF_GPU, sizes, footprints, pools=[total for _, total in counts.values()])
    return kind, sum((total - free) << (16 * number) for number, (free, total) in enumerate(counts.values()))


def room_of(*gpus: tuple[GpuKind, State], **more: Any) -> HostRoom:
    """Return the room of a host with these GPUs, and with those of `whole`."""
    values: dict[str, Any] = {"memory_mib": None, "cpus": None, "storage_mib": {}, **more}
    kinds = list(dict.fromkeys(kind for kind, _ in gpus))
    rooms = []
    for kind, state in gpus:
        data = data_of_state(kind, state)
        rooms.append(GpuRoom(kind.name, None, kinds.index(kind), data, int(bool(state)), whole=False, free=False))
    return HostRoom(tuple(map(rule_of, kinds)), (*rooms, *values.pop("whole", ())), **values)


def whole_gpu(model: str = "A100", *, free: bool = True, **more: Any) -> GpuRoom:
    """Return a GPU that VMs get as a whole."""
    return GpuRoom(model, None, None, (), 0, whole=True, free=free, **more)
