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
from vgpuctl.value import Value


class _Member(Value):
    """A GPU with the groups that it is in, from the largest to the smallest; its own port is none of them."""

    gpu: Gpu
    groups: tuple[object, ...]


_Group = tuple[_Member, ...]


def choose_near(gpus: Sequence[Gpu], count: int, beside: Sequence[Gpu] = ()) -> tuple[Gpu, ...] | None:
    """Return `count` of these GPUs that are near each other, in their order; None if there are fewer.

    `beside`: GPUs that the VM has already: the new ones are near these too.
    """
    if count > len(gpus):
        return None
    members = _members((*gpus, *beside))
    free, own = members[: len(gpus)], members[len(gpus) :]
    choices = [(_pick(group, count, 0), len(group)) for group in _smallest_groups(free, count, 0)]
    best = min(choices, key=lambda choice: (*_spread((*choice[0], *own)), choice[1], choice[0][0].gpu.address))[0]
    chosen = {member.gpu.address for member in best}
    return tuple(gpu for gpu in gpus if gpu.address in chosen)


def distance(gpus: Sequence[Gpu]) -> tuple[int, int, int]:
    """Return how far apart GPUs are: how many NVLink groups, NUMA nodes and PCIe switches they are spread over."""
    return _spread(_members(gpus))


def _spread(group: _Group) -> tuple[int, int, int]:
    keys = [member.groups for member in group]
    return len({k[0] for k in keys}), len({k[1] for k in keys}), len({k[1:] for k in keys})


def _members(gpus: Sequence[Gpu]) -> _Group:
    islands = _nvlink_groups(gpus)
    return tuple(_Member(g, (islands.get(g.address), g.numa_node, *g.pci_path[:-1])) for g in gpus)


def _nvlink_groups(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return a name for the group of each GPU that NVLink connects with others, directly or over others."""
    names = {a: min(g.address, *g.nvlink_peers) for g in gpus if g.nvlink_peers for a in (g.address, *g.nvlink_peers)}
    changed = True
    while changed:
        changed = False
        for gpu in gpus:
            linked = (gpu.address, *(gpu.nvlink_peers or ()))
            lowest = min((names[a] for a in linked if a in names), default=None)
            for address in linked if lowest is not None else ():
                if names.get(address) != lowest:
                    names[address], changed = str(lowest), True
    return names


def _subgroups(group: _Group, level: int) -> list[_Group]:
    parts: dict[object, list[_Member]] = {}
    for member in group:
        key = member.groups[level] if level < len(member.groups) else None
        parts.setdefault(key, []).append(member)
    return [tuple(part) for part in parts.values()]


def _is_smallest(group: _Group, level: int) -> bool:
    return all(level >= len(member.groups) for member in group)


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
    taken = {member.gpu.address for member in largest}
    rest = tuple(member for member in group if member.gpu.address not in taken)
    return (*largest, *_pick(rest, count - len(largest), level))
