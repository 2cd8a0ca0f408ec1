# SPDX-License-Identifier: Apache-2.0
"""Plan which GPU instances to destroy, reuse and create, and where, from the driver's list of profiles.

Pure. An instance covers adjacent memory slices, and only at its profile's possible placements (NVML); instances never
share a slice. For other limits of the driver, as the one set of media engines of the `+me` profiles, the plan uses only
each profile's maximum. Source: NVIDIA's MIG user guide, "GPU instance profiles"; nvml.h,
nvmlDeviceGetGpuInstancePossiblePlacements_v2.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations

from vgpuctl.errors import InvalidInput, NoCapacity
from vgpuctl.model.gpu import GiProfile, GpuInstance, MigState, PlacementSpan, VgpuType
from vgpuctl.value import Value


class PlannedInstance(Value):
    """A GPU instance to create: its profile and its placement."""

    profile: GiProfile
    span: PlacementSpan


class InstancePlan(Value):
    """The instances to destroy and to create for the requested set. `create`: the larger first."""

    destroy: tuple[GpuInstance, ...] = ()
    create: tuple[PlannedInstance, ...] = ()


def find_gi_profiles(mig: MigState, names: Sequence[str], gpu: str) -> tuple[GiProfile, ...]:
    """Return one GPU instance profile for each name or id. `gpu`: the GPU, for messages.

    Raises:
        InvalidInput: the GPU has no such profile.
    """
    profiles = []
    for name in names:
        profile = next((p for p in mig.profiles if name in (p.name.lower(), str(p.profile_id))), None)
        if profile is None:
            available = ", ".join(dict.fromkeys(p.name for p in _larger_first(mig.profiles))) or "none"
            suggestions = difflib.get_close_matches(name, [p.name for p in mig.profiles], n=1)
            suggestion = f"did you mean {suggestions[0]}? " if suggestions else ""
            raise InvalidInput(
                f"{gpu} has no GPU instance profile {name}",
                hint=f"{suggestion}it has {available}",
                gpu=gpu,
                profile=name,
                profiles=[p.name for p in mig.profiles],
            )
        profiles.append(profile)
    return tuple(profiles)


def choose_gi_profiles(
    mig: MigState, vgpus: Sequence[tuple[str, int]], types: Iterable[VgpuType], gpu: str
) -> tuple[str, ...]:
    """Return the names of the GPU instances that these vGPUs need. `vgpus`: pairs of a profile and a count.

    If an instance takes several vGPUs (GB20x), all have one framebuffer size, so each profile has its own.

    Raises:
        InvalidInput: the GPU has no such profile, or the profile does not run in a GPU instance.
    """
    vgpu_types = tuple(types)
    names: list[str] = []
    for profile, count in vgpus:
        vgpu_type = next(
            (t for t in vgpu_types if profile.lower() in (t.profile.lower(), t.name.lower(), t.type_id)), None
        )
        mig_profiles = sorted(t.profile for t in vgpu_types if t.gi_profile_id is not None)
        if vgpu_type is None or vgpu_type.gi_profile_id is None:
            suggestions = difflib.get_close_matches(profile, mig_profiles, n=3) or mig_profiles[:8]
            problem = "has no vGPU profile" if vgpu_type is None else "has no GPU instance for the time-sliced profile"
            raise InvalidInput(
                f"{gpu} {problem} {profile}",
                hint=f"with MIG it has {', '.join(suggestions)}"
                if suggestions
                else "its driver lists no MIG-backed vGPU profiles",
                gpu=gpu,
                profile=profile,
            )
        instance = mig.find_profile(vgpu_type.gi_profile_id)
        if instance is None:
            raise InvalidInput(
                f"{profile} needs the GPU instance profile {vgpu_type.gi_profile_id}, which {gpu} does not have",
                hint=f"it has {', '.join(p.name for p in mig.profiles) or 'none'}",
                gpu=gpu,
                profile=profile,
            )
        names += [instance.name] * -(-count // (vgpu_type.max_per_gi or 1))
    return tuple(names)


def plan_instances(mig: MigState, requested: Sequence[GiProfile], occupied: frozenset[int], gpu: str) -> InstancePlan:
    """Return what to destroy and to create so that a GPU has exactly the requested instances.

    It reuses as many existing instances as possible, first those that may hold a vGPU (`occupied`, by gi_id).

    Raises:
        NoCapacity: they do not fit together; reports which one does not fit, with which others, and what would.
    """
    if _place_instances((), requested) is None:
        raise _no_capacity_error(mig, requested, gpu)
    for reused in _reusable_sets(mig, requested, occupied):
        missing = list(requested)
        for instance in reused:
            missing.remove(next(p for p in missing if p.profile_id == instance.profile_id))
        created = _place_instances(tuple(i.placement for i in reused), missing)
        if created is not None:
            destroyed = [i for i in mig.instances if i not in reused]
            return InstancePlan(tuple(sorted(destroyed, key=lambda i: (i.placement.size, i.placement.start))), created)
    raise AssertionError("these instances do not fit even on the empty GPU")


def has_exactly(mig: MigState, requested: Sequence[GiProfile]) -> bool:
    """Return whether a GPU has exactly these instances."""
    return Counter(i.profile_id for i in mig.instances) == Counter(p.profile_id for p in requested)


def instance_names(mig: MigState) -> tuple[str, ...]:
    """Return the names of a GPU's instances, the larger first; for an unknown profile its id."""
    instances = sorted(mig.instances, key=lambda i: (-i.placement.size, i.placement.start))
    named = ((i, mig.find_profile(i.profile_id)) for i in instances)
    return tuple(profile.name if profile is not None else str(i.profile_id) for i, profile in named)


def _reusable_sets(
    mig: MigState, requested: Sequence[GiProfile], occupied: frozenset[int]
) -> list[tuple[GpuInstance, ...]]:
    """Return each set of existing instances that may be reused, the best first; the last is the empty set."""
    counts = Counter(p.profile_id for p in requested)
    candidates = [
        reused
        for count in range(len(mig.instances) + 1)
        for reused in combinations(mig.instances, count)
        if not Counter(i.profile_id for i in reused) - counts
    ]
    return sorted(candidates, key=lambda reused: (-sum(i.gi_id in occupied for i in reused), -len(reused)))


def _place_instances(
    occupied_spans: tuple[PlacementSpan, ...], profiles: Sequence[GiProfile]
) -> tuple[PlannedInstance, ...] | None:
    """Return a placement for each profile without overlaps, also with `taken`; None if they do not all fit."""
    counts = Counter(p.profile_id for p in profiles)
    if any(counts[p.profile_id] > p.max_instances for p in profiles):
        return None
    order = _larger_first(profiles)

    def place(
        number: int, used: tuple[PlacementSpan, ...], made: tuple[PlannedInstance, ...]
    ) -> tuple[PlannedInstance, ...] | None:
        if number == len(order):
            return made
        profile = order[number]
        previous = made[-1] if made and made[-1].profile == profile else None  # equal profiles by start
        for span in sorted(profile.placements, key=lambda s: s.start):
            if (previous is not None and span.start < previous.span.start) or any(span.overlaps(u) for u in used):
                continue
            result = place(number + 1, (*used, span), (*made, PlannedInstance(profile, span)))
            if result is not None:
                return result
        return None

    return place(0, occupied_spans, ())


def _larger_first(profiles: Iterable[GiProfile]) -> tuple[GiProfile, ...]:
    return tuple(
        sorted(profiles, key=lambda p: (-max((s.size for s in p.placements), default=0), -p.compute_slices, p.name))
    )


def _no_capacity_error(mig: MigState, requested: Sequence[GiProfile], gpu: str) -> NoCapacity:
    """Return an error that names the first profile without room after the larger ones, and what would fit."""
    order = _larger_first(requested)
    misfit_index = next(n for n in range(len(order)) if _place_instances((), order[: n + 1]) is None)
    placed, misfit = order[:misfit_index], order[misfit_index]
    count = sum(p.profile_id == misfit.profile_id for p in requested)
    fitting = [p.name for p in _larger_first(mig.profiles) if _place_instances((), (*placed, p)) is not None]
    shown = ", ".join(_count_names(p.name for p in placed))
    if count > misfit.max_instances:
        message = f"{gpu} can have {misfit.max_instances} of {misfit.name}, not {count}"
    elif not placed:
        message = f"{misfit.name} does not fit on {gpu}"
    else:
        size = sum(p.placements[0].size for p in placed)
        message = (
            f"{misfit.name} does not fit on {gpu} next to {shown}, which take {size} memory slices:"
            f" its possible placements are {', '.join(str(s) for s in misfit.placements)}"
        )
    hint = f"next to {shown} there is room for {' or '.join(fitting)}" if placed and fitting else None
    return NoCapacity(
        message,
        hint=hint or f"its largest is {_larger_first(mig.profiles)[0].name}",
        gpu=gpu,
        wanted=[p.name for p in requested],
        misfit=misfit.name,
        fitting=fitting,
    )


def _count_names(names: Iterable[str]) -> list[str]:
    return [name if n == 1 else f"{n} of {name}" for name, n in Counter(names).items()]
