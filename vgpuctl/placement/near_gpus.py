# SPDX-License-Identifier: Apache-2.0
"""Choose whole GPUs for one VM that are near each other: the smallest group of GPUs that has enough free ones.

The groups, from the nearest: GPUs behind one PCIe switch, GPUs below one host bridge, GPUs of one NUMA node, all. These
are the steps of `nvidia-smi topo -m`: PIX and PXB, PHB, NODE, SYS. What the kernel shows of them: the bridges above a
device are its path in /sys/devices, and `numa_node` is a file of it (Documentation/ABI/testing/sysfs-bus-pci). Where
NVML reports NVLinks, GPUs that these connect are a group before all others.

Among groups that are equally near, the one with the fewest free GPUs is used, so that larger groups stay whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.model.gpu import Gpu

_Group = tuple[Gpu, ...]


def choose_near(gpus: Sequence[Gpu], count: int, beside: Sequence[Gpu] = ()) -> tuple[Gpu, ...] | None:
    """Return `count` of these GPUs that are near each other, in their order; None if there are fewer.

    `beside`: GPUs that the VM has already: the new ones are near these too.
    """
    if count > len(gpus):
        return None
    groups = _smallest_groups(tuple(gpus), count, 0)
    choices = [(_pick(group, count, 0), len(group)) for group in groups]
    best = min(choices, key=lambda choice: (*distance((*choice[0], *beside)), choice[1], choice[0][0].address))[0]
    return tuple(gpu for gpu in gpus if gpu in best)


def distance(gpus: Sequence[Gpu]) -> tuple[int, int, int]:
    """Return how far apart GPUs are: how many NVLink groups, NUMA nodes and PCIe switches they are spread over."""
    levels = [_levels(gpu) for gpu in gpus]
    return len({keys[0] for keys in levels}), len({keys[1] for keys in levels}), len({keys[1:] for keys in levels})


def _levels(gpu: Gpu) -> tuple[object, ...]:
    """Return the groups that a GPU is in, from the largest to the smallest; its own port is none."""
    island = min((gpu.address, *gpu.nvlink_peers)) if gpu.nvlink_peers else None
    return (island, gpu.numa_node, *gpu.pci_path[:-1])


def _subgroups(group: _Group, level: int) -> list[_Group]:
    members: dict[object, list[Gpu]] = {}
    for gpu in group:
        keys = _levels(gpu)
        members.setdefault(keys[level] if level < len(keys) else None, []).append(gpu)
    return [tuple(gpus) for gpus in members.values()]


def _is_smallest(group: _Group, level: int) -> bool:
    return all(level >= len(_levels(gpu)) for gpu in group)


def _smallest_groups(group: _Group, count: int, level: int) -> list[_Group]:
    """Return the groups with at least `count` GPUs of which no part has as many."""
    if _is_smallest(group, level):
        return [group]
    enough = [part for part in _subgroups(group, level) if len(part) >= count]
    return [small for part in enough for small in _smallest_groups(part, count, level + 1)] or [group]


def _pick(group: _Group, count: int, level: int) -> _Group:
    """Return `count` GPUs of a group: from the smallest part that has enough, else the largest parts first."""
    if count == len(group) or _is_smallest(group, level):
        return group[:count]
    parts = _subgroups(group, level)
    enough = [part for part in parts if len(part) >= count]
    if enough:
        return _pick(min(enough, key=len), count, level + 1)
    largest = max(parts, key=len)
    rest = tuple(gpu for gpu in group if gpu not in largest)
    return (*largest, *_pick(rest, count - len(largest), level))
