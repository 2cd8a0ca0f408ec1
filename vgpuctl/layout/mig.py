# SPDX-License-Identifier: Apache-2.0
"""Which GPU instances go, which stay and which are made, and where: from what the driver says a GPU can have.

Pure. An instance covers neighbouring memory slices and may only be where its profile says (NVML's possible placements);
two never share one. What else the driver counts, as the one set of media engines of the `+me` profiles, is known by
each profile's maximum alone. Source: NVIDIA's MIG user guide, "GPU instance profiles"; nvml.h,
nvmlDeviceGetGpuInstancePossiblePlacements_v2.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations

from vgpuctl.errors import InvalidInput, NoCapacity
from vgpuctl.model.gpu import VgpuType
from vgpuctl.model.partition import GiProfile, GpuInstance, Mig, Span
from vgpuctl.value import Value


class Making(Value):
    """A GPU instance to make: its profile, and where."""

    profile: GiProfile
    span: Span


class Arrangement(Value):
    """What brings a GPU from the instances that it has to those that are wanted. `make`: the larger first."""

    destroy: tuple[GpuInstance, ...] = ()
    make: tuple[Making, ...] = ()


def profiles_of(mig: Mig, names: Sequence[str], where: str) -> tuple[GiProfile, ...]:
    """Return the GPU instance profiles of these names or ids, one for each. `where`: the GPU, for messages.

    Raises:
        InvalidInput: it has no such profile.
    """
    found = []
    for name in names:
        known = next((p for p in mig.profiles if name in (p.name.lower(), str(p.profile_id))), None)
        if known is None:
            has = ", ".join(dict.fromkeys(p.name for p in _larger_first(mig.profiles))) or "none"
            near = difflib.get_close_matches(name, [p.name for p in mig.profiles], n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise InvalidInput(
                f"{where} has no GPU instance profile {name}",
                hint=f"{meant}it has {has}",
                gpu=where,
                profile=name,
                profiles=[p.name for p in mig.profiles],
            )
        found.append(known)
    return tuple(found)


def instances_for(mig: Mig, vgpus: Sequence[tuple[str, int]], types: Iterable[VgpuType], where: str) -> tuple[str, ...]:
    """Return the names of the GPU instances in which there is room for these vGPUs: a profile, and how many of it.

    Where an instance takes several vGPUs (GB20x) they are of one framebuffer size, so each profile has its own.

    Raises:
        InvalidInput: the GPU has no such profile, or it is none that runs in a GPU instance.
    """
    known = tuple(types)
    names: list[str] = []
    for profile, count in vgpus:
        kind = next((t for t in known if profile.lower() in (t.profile.lower(), t.name.lower(), t.type_id)), None)
        sliced = sorted(t.profile for t in known if t.gi_profile_id is not None)
        if kind is None or kind.gi_profile_id is None:
            near = difflib.get_close_matches(profile, sliced, n=3) or sliced[:8]
            what = "has no vGPU profile" if kind is None else "divides the time of, and has no instance for,"
            raise InvalidInput(
                f"{where} {what} {profile}",
                hint=f"with MIG it has {', '.join(near)}" if near else "its driver lists no MIG-backed vGPU profiles",
                gpu=where,
                profile=profile,
            )
        instance = mig.profile(kind.gi_profile_id)
        if instance is None:
            raise InvalidInput(
                f"{profile} needs the GPU instance profile {kind.gi_profile_id}, which {where} does not have",
                hint=f"it has {', '.join(p.name for p in mig.profiles) or 'none'}",
                gpu=where,
                profile=profile,
            )
        names += [instance.name] * -(-count // (kind.max_per_gi or 1))
    return tuple(names)


def arrange(mig: Mig, wanted: Sequence[GiProfile], occupied: frozenset[int], where: str) -> Arrangement:
    """Return what has to be destroyed and made for a GPU to have exactly the wanted instances.

    As many as can of those that exist stay, first of all the ones that a vGPU may be in (`occupied`, by gi_id).

    Raises:
        NoCapacity: they do not fit on the GPU together; says which does not beside which, and what would.
    """
    if _placed((), wanted) is None:
        raise _no_room(mig, wanted, where)
    for stay in _stays(mig, wanted, occupied):
        left = list(wanted)
        for instance in stay:
            left.remove(next(p for p in left if p.profile_id == instance.profile_id))
        made = _placed(tuple(i.span for i in stay), left)
        if made is not None:
            gone = [i for i in mig.instances if i not in stay]
            return Arrangement(tuple(sorted(gone, key=lambda i: (i.span.size, i.span.start))), made)
    raise AssertionError("instances that fit on an empty GPU do not fit when none stays")


def same(mig: Mig, wanted: Sequence[GiProfile]) -> bool:
    """Say whether a GPU has exactly these instances."""
    return Counter(i.profile_id for i in mig.instances) == Counter(p.profile_id for p in wanted)


def names_of(mig: Mig) -> tuple[str, ...]:
    """Return the names of the instances that a GPU has, the larger first; of an unknown profile its id."""
    spans = sorted(mig.instances, key=lambda i: (-i.span.size, i.span.start))
    known = ((i, mig.profile(i.profile_id)) for i in spans)
    return tuple(profile.name if profile is not None else str(i.profile_id) for i, profile in known)


def _stays(mig: Mig, wanted: Sequence[GiProfile], occupied: frozenset[int]) -> list[tuple[GpuInstance, ...]]:
    """Return each choice of existing instances that may stay, the best first; the last is none."""
    counts = Counter(p.profile_id for p in wanted)
    chosen = [
        stay
        for number in range(len(mig.instances) + 1)
        for stay in combinations(mig.instances, number)
        if not Counter(i.profile_id for i in stay) - counts
    ]
    return sorted(chosen, key=lambda stay: (-sum(i.gi_id in occupied for i in stay), -len(stay)))


def _placed(taken: tuple[Span, ...], profiles: Sequence[GiProfile]) -> tuple[Making, ...] | None:
    """Return where each can be so that none overlaps another or what is taken; None when they cannot all be."""
    counts = Counter(p.profile_id for p in profiles)
    if any(counts[p.profile_id] > p.maximum for p in profiles):
        return None
    order = _larger_first(profiles)

    def place(number: int, used: tuple[Span, ...], made: tuple[Making, ...]) -> tuple[Making, ...] | None:
        if number == len(order):
            return made
        profile = order[number]
        before = made[-1] if made and made[-1].profile == profile else None  # equal ones in the order of their starts
        for span in sorted(profile.placements, key=lambda s: s.start):
            if (before is not None and span.start < before.span.start) or any(span.overlaps(u) for u in used):
                continue
            found = place(number + 1, (*used, span), (*made, Making(profile, span)))
            if found is not None:
                return found
        return None

    return place(0, taken, ())


def _larger_first(profiles: Iterable[GiProfile]) -> tuple[GiProfile, ...]:
    return tuple(sorted(profiles, key=lambda p: (-max((s.size for s in p.placements), default=0), -p.slices, p.name)))


def _no_room(mig: Mig, wanted: Sequence[GiProfile], where: str) -> NoCapacity:
    """Say which of the wanted has no place beside those before it, and what would have one."""
    order = _larger_first(wanted)
    number = next(n for n in range(len(order)) if _placed((), order[: n + 1]) is None)
    beside, misfit = order[:number], order[number]
    count = sum(p.profile_id == misfit.profile_id for p in wanted)
    fitting = [p.name for p in _larger_first(mig.profiles) if _placed((), (*beside, p)) is not None]
    shown = ", ".join(_counted(p.name for p in beside))
    if count > misfit.maximum:
        message = f"{where} can have {misfit.maximum} of {misfit.name}, not {count}"
    elif not beside:
        message = f"{misfit.name} has no place on {where}"
    else:
        size = sum(p.placements[0].size for p in beside)
        message = (
            f"{misfit.name} does not fit on {where} beside {shown}, which take {size} memory slices:"
            f" it may be at {', '.join(str(s) for s in misfit.placements)}"
        )
    hint = f"beside {shown} there is room for {' or '.join(fitting)}" if beside and fitting else None
    return NoCapacity(
        message,
        hint=hint or f"the largest that it has is {_larger_first(mig.profiles)[0].name}",
        gpu=where,
        wanted=[p.name for p in wanted],
        misfit=misfit.name,
        fitting=fitting,
    )


def _counted(names: Iterable[str]) -> list[str]:
    return [name if n == 1 else f"{n} of {name}" for name, n in Counter(names).items()]
