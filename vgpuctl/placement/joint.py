# SPDX-License-Identifier: Apache-2.0
"""Whether vGPUs of several profiles fit on many GPUs together, where each goes, and the fewest that are too many.

What a simple order places, fits; an integer program answers the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import inf

from vgpuctl.placement.fleet import Fleet
from vgpuctl.placement.fleet_program import FleetProgram, ProfileClasses
from vgpuctl.placement.migrations import copy_fleet
from vgpuctl.placement.policy import FirstFit
from vgpuctl.solver import TIME_LIMIT_SECONDS, SolverFailed
from vgpuctl.value import Value, replace


class Joint(Value):
    """The most of the requested vGPUs that fit together.

    `by_gpu`: by the number of the GPU how many of each profile it takes. `excess`: for what no room is left: the fewest
    that are too many, and of equally many those with the least framebuffer. `why_not_proven`: why fewer may be.
    """

    by_gpu: Mapping[int, Mapping[str, int]]
    excess: Mapping[str, int]
    why_not_proven: str | None = None


def fit_together(fleet: Fleet, requested: Mapping[str, int]) -> Joint:
    """Fit as many of the requested vGPUs as possible on the GPUs together."""
    wanted = {profile: count for profile, count in sorted(requested.items()) if count}
    classes = ProfileClasses(fleet, wanted)
    wanted_by_class = classes.count(wanted)
    joint = _in_simple_order(fleet, wanted_by_class)
    if joint.why_not_proven is not None:
        try:
            joint = _solve(fleet, wanted_by_class)
        except SolverFailed as missing:
            joint = replace(joint, why_not_proven=f"{missing}: {missing.hint}")
    return _by_profile(joint, classes, wanted)


def total_left(fleet: Fleet, profile: str) -> int:
    """Return how many more of one profile fit on all GPUs together."""
    return sum(count * fleet.kind_of(group).count_remaining(group.state, profile) for group, count in fleet.groups())


def largest_mib(fleet: Fleet, profile: str) -> int:
    """Return the framebuffer of a profile in MiB, on the GPU on which it is largest; 0 where no GPU has the profile."""
    return max((kind.sizes.get(profile, 0) for kind in fleet.kinds), default=0)


def none_beside(fleet: Fleet, profile: str, others: Sequence[str]) -> tuple[str, ...]:
    """Return of which other profiles not one fits once as many of a profile are there as fit."""
    full = {group: fleet.kind_of(group).count_remaining(group.state, profile) for group, _ in fleet.groups()}

    def fits(other: str) -> bool:
        return any(fleet.kind_of(group).fits(group.state, {profile: n, other: 1}) for group, n in full.items())

    return tuple(other for other in others if other != profile and not fits(other))


def _in_simple_order(fleet: Fleet, wanted: Mapping[str, int]) -> Joint:
    """Place the largest first, each on the first GPU that takes it.

    That proves what fits; and what does not, where there is room for one class at most.
    """
    with_room = sum(1 for profile in wanted if total_left(fleet, profile))
    fleet = copy_fleet(fleet)
    first_fit = FirstFit()
    by_gpu: dict[int, Counter[str]] = {}
    excess = Counter(wanted)
    for profile in sorted(wanted, key=lambda p: (-largest_mib(fleet, p), p)):
        while excess[profile] and (choice := first_fit.choose(fleet, profile)) is not None:
            fleet.add_vgpu(choice.gpu, choice.placement)
            by_gpu.setdefault(choice.gpu, Counter())[profile] += 1
            excess[profile] -= 1
    return Joint(by_gpu, +excess, None if not +excess or with_room < 2 else "another order may place more")


def _solve(fleet: Fleet, wanted: Mapping[str, int], bound: float = inf, apart: Collection[int] = ()) -> Joint:
    """Place as many as possible; of equally many those with the most framebuffer.

    `bound`: no solution is better. `apart`: see `FleetProgram`.
    """
    program = FleetProgram(fleet, (), wanted, apart)
    mib = {profile: largest_mib(fleet, profile) for profile in wanted}
    total_mib = sum(mib[profile] * count for profile, count in wanted.items())
    objective: dict[int, float] = {}
    for profile, count in wanted.items():
        columns = program.columns_of(profile)
        program.add_row(dict.fromkeys(columns, 1), upper=count)
        objective |= dict.fromkeys(columns, 1 + mib[profile] / (2 * total_mib + 1))
    solution = program.maximize(objective, bound)
    placed = program.spread(solution) if solution is not None else None
    if placed is None and solution is not None and not apart:
        return _solve(fleet, wanted, solution.objective if solution.is_proven else inf, range(len(fleet)))
    by_gpu: dict[int, Counter[str]] = {}
    for vgpu in placed or ():
        by_gpu.setdefault(vgpu.gpu, Counter())[vgpu.profile] += 1
    excess = Counter(wanted) - sum(by_gpu.values(), Counter())
    is_proven = placed is not None and solution is not None and solution.is_proven
    return Joint(by_gpu, excess, None if is_proven else f"no proof was found in {TIME_LIMIT_SECONDS:.0f} seconds")


def _by_profile(joint: Joint, classes: ProfileClasses, wanted: Mapping[str, int]) -> Joint:
    """Hand out what each class got to its profiles, in the order of their names."""
    left = Counter(wanted)
    by_gpu: dict[int, dict[str, int]] = {}
    for gpu, counts in sorted(joint.by_gpu.items()):
        rest = Counter(counts)
        for profile in wanted:
            number = min(left[profile], rest[classes.class_of[profile]])
            if number:
                by_gpu.setdefault(gpu, {})[profile] = number
                left[profile] -= number
                rest[classes.class_of[profile]] -= number
    return Joint(by_gpu, dict(+left), joint.why_not_proven)
