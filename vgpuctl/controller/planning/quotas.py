# SPDX-License-Identifier: Apache-2.0
"""How much a person may have in all pools together: the rules.

The most specific quota decides: his own; else those of his groups, of each limit the largest; else everybody's. What
the deciding quota does not name is not limited.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from vgpuctl.controller.model import EVERYBODY, GROUP_MARK, Desktop, PoolSpec, Quota, QuotaLimit, QuotaUse
from vgpuctl.controller.planning.fleet_room import WHOLE_GPU, demand_of, matches_profile
from vgpuctl.errors import Refused
from vgpuctl.model.host_room import HostRoom
from vgpuctl.model.numbers import format_mib
from vgpuctl.model.quota_text import limit_text
from vgpuctl.value import replace

LIMITS = ("desktops", "running", "gpu_mib")
"""The limits of a quota, by the names of its fields."""


class QuotaReached(Refused):
    """A person would have more than his quota allows."""

    code = "quota-reached"


def limits_of(quotas: Iterable[Quota], person: str) -> Mapping[str, QuotaLimit]:
    """Return what limits a person, by the names of `LIMITS`. `quotas`: his, those of his groups, and everybody's."""
    given = tuple(quotas)
    levels = (
        [one for one in given if one.who == person],
        [one for one in given if one.who.startswith(GROUP_MARK)],
        [one for one in given if one.who == EVERYBODY],
    )
    level = next(filter(None, levels), [])
    limits: dict[str, QuotaLimit] = {}
    for name in LIMITS if level else ():
        numbers = {one: getattr(one, name) for one in level}
        if None not in numbers.values():
            largest = max(level, key=lambda one: (numbers[one], one.who))
            limits[name] = QuotaLimit(numbers[largest], largest)
    return limits


def refuse_more(person: str, used: QuotaUse, more: QuotaUse, limits: Mapping[str, QuotaLimit]) -> None:
    """Refuse that a person gets so much more.

    Raises:
        QuotaReached: it is more than he may have.
    """
    for name, limit in limits.items():
        has, gets = getattr(used, name), getattr(more, name)
        if gets and has + gets > limit.most:
            text, each = limit_text(name, has, limit.most), f", and {format_mib(gets)} more are asked for"
            raise QuotaReached(
                f"{person} has {text}{each if name == 'gpu_mib' else ''}: the quota of {limit.quota.who}, which "
                f"{limit.quota.set_by} set",
                hint=f"{'shut one down' if name == 'running' else 'release one'}, or an admin raises it: "
                f"{_raising(replace(limit.quota, who=person), name, has + gets)}",
                person=person, limit=name, used=has, more=gets, most=limit.most, who=limit.quota.who,
                set_by=limit.quota.set_by,
            )  # fmt: skip


def gpu_mib_of(desktop: Desktop, spec: PoolSpec, room: HostRoom | None) -> int:
    """Return the GPU memory of a desktop's vGPUs, also of those that it gets only when it runs; 0: it is not known.

    `room`: of its host.
    """
    if desktop.report is not None and desktop.report.vgpus:
        return held_gpu_mib(desktop, room)
    demand = demand_of(spec, desktop.name, desktop.profile)
    if room is None or not demand.profiles:
        return 0
    if demand.profiles[0] == WHOLE_GPU:
        return demand.count * max((_gpu_mib(room, one.address) for one in room.gpus if one.whole), default=0)
    sizes = (
        one.framebuffer_mib
        for rule in room.rules
        for one in rule.profiles
        if any(matches_profile(one.profile, wanted) for wanted in demand.profiles)
    )
    return demand.count * max(sizes, default=0)


def held_gpu_mib(desktop: Desktop, room: HostRoom | None) -> int:
    """Return the GPU memory of the vGPUs that a desktop has now."""
    vgpus = () if desktop.report is None else desktop.report.vgpus
    return sum(one.framebuffer_mib or _gpu_mib(room, one.gpu) for one in vgpus)


def _gpu_mib(room: HostRoom | None, address: str | None) -> int:
    """Return the memory of a whole GPU, as its host says; an older agent says only that of GPUs that are divided."""
    if room is None:
        return 0
    gpus = [one for one in room.gpus if one.address == address]
    rules = [room.rules[one.rule] for one in gpus if one.rule is not None and 0 <= one.rule < len(room.rules)]
    return max((*(one.framebuffer_mib or 0 for one in gpus), *(one.framebuffer_mib for one in rules)), default=0)


def _raising(quota: Quota, name: str, least: int) -> str:
    """Return the command that raises one limit of a quota, and keeps the others."""
    numbers = {each: least if each == name else getattr(quota, each) for each in LIMITS}
    options = {"desktops": "--desktops {}", "running": "--running {}", "gpu_mib": "--gpu {}MiB"}
    given = " ".join(options[each].format(number) for each, number in numbers.items() if number is not None)
    return f"vgpuctl controller ensure-quota {shlex.quote(quota.who)} {given}"
