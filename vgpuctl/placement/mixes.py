# SPDX-License-Identifier: Apache-2.0
"""What generated requests ask for, in the words of a fleet's own profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.errors import NotFound
from vgpuctl.model.profile_name import without_model
from vgpuctl.placement.demand import Called, Demand, demand, near, series, slices
from vgpuctl.placement.generate import Part
from vgpuctl.placement.kind import Kind
from vgpuctl.placement.requests import WHOLE_GPU, Ask

DESKTOPS = {(1, "B"): 40, (2, "B"): 35, (4, "Q"): 20, (8, "Q"): 5}
"""Desktops by framebuffer in GiB and series, in percent."""
AI = {125: 40, 250: 30, 500: 20, WHOLE_GPU: 10}
"""AI by thousandths of a GPU, in percent: notebooks, small and large inference, training."""
AI_HOURS = {125: 2.0, 250: 6.0, 500: 12.0, WHOLE_GPU: 8.0}
"""The median life of each."""
MIG = {1: 40, 2: 25, 3: 20, 4: 5, 7: 10}
"""MIG by compute slices, in percent."""
MEMORY_SLICES = 8
"""Of a GPU with MIG, at most."""
DESKTOP_HOURS, MIG_HOURS = 8.0, 12.0
"""Mean lives."""


def desktops(kinds: Sequence[Kind], called: Sequence[Called]) -> tuple[Part, ...]:
    """Return the mix of desktops: of each the smallest profile that is large enough, in its series where there is one.

    Raises:
        NotFound: no profile is.
    """
    found = []
    for (gib, letter), weight in DESKTOPS.items():
        enough = [o for o in _offers(kinds) if slices(o[1]) == 0 and o[0] >= gib * 1024]
        if not enough:
            raise _nothing(kinds, f"a desktop of {gib} GiB")
        own = [o for o in enough if series(o[1]) == letter] or enough
        found.append(_part(Ask(min(own)[1]), weight, DESKTOP_HOURS, kinds, called))
    return tuple(found)


def ai(kinds: Sequence[Kind], called: Sequence[Called]) -> tuple[Part, ...]:
    """Return the mix of AI: shares of a GPU, on each model by the smallest profile that covers it.

    Raises:
        NotFound: no profile covers one.
    """
    return tuple(_part(Ask(gpu_milli=m), weight, AI_HOURS[m], kinds, called) for m, weight in AI.items())


def mig(kinds: Sequence[Kind], called: Sequence[Called]) -> tuple[Part, ...]:
    """Return the mix of MIG: a whole GPU instance with so many slices, or where there is none the next larger.

    Raises:
        NotFound: the fleet has no MIG.
    """
    offers = [(slices(name), mib, name) for mib, name in _offers(kinds) if slices(name)]
    if not offers:
        raise _nothing(kinds, "a GPU instance", "GPUs with MIG on do, with GPU instances or --mig-on-demand")
    found = []
    for number, weight in MIG.items():
        least = min((s for s, _, _ in offers if s >= number), default=max(s for s, _, _ in offers))
        found.append(_part(Ask(_whole_instance(kinds, least)), weight, MIG_HOURS, kinds, called))
    return tuple(found)


def given(mix: Mapping[str, float], kinds: Sequence[Kind], called: Sequence[Called], hours: float) -> tuple[Part, ...]:
    """Return a mix of profiles that somebody named, with their mean life.

    Raises:
        NotFound: the fleet does not have one.
    """
    return tuple(_part(Ask(profile), weight, hours, kinds, called) for profile, weight in mix.items())


def served(ask: Ask, kinds: Sequence[Kind], called: Sequence[Called]) -> Demand:
    """Return what serves an ask.

    Raises:
        NotFound: nothing in the fleet does.
    """
    found = demand(ask, kinds, called)
    if found is None:
        raise _nothing(kinds, *unserved(ask, kinds))
    return found


def unserved(ask: Ask, kinds: Sequence[Kind]) -> tuple[str, str]:
    """Return what no GPU of a fleet offers, and what to do about it."""
    among = f" on {' or '.join(ask.models)}" if ask.models else ""
    if ask.profile is None:
        return f"{ask.gpu_milli} thousandths of a GPU{among}", "simulate on GPUs with larger profiles"
    close = near(ask.profile, kinds)
    hint = f"did you mean {', '.join(close)}?" if close else "vgpuctl list-profiles --all shows what the host offers"
    return f"{ask.profile}{among}", hint


def _part(ask: Ask, weight: float, hours: float, kinds: Sequence[Kind], called: Sequence[Called]) -> Part:
    found = served(ask, kinds, called)
    mib = min(kind.sizes[own] for kind, own in zip(kinds, found.profiles, strict=True) if own is not None)
    return Part(Ask(found.name), weight, mib, hours)


def _offers(kinds: Sequence[Kind]) -> list[tuple[int, str]]:
    """Return every profile by what is behind the model, with its framebuffer where that is least."""
    least: dict[str, int] = {}
    for kind in kinds:
        for profile, mib in kind.sizes.items():
            name = without_model(profile)
            least[name] = min(mib, least.get(name, mib))
    return [(mib, name) for name, mib in least.items()]


def _whole_instance(kinds: Sequence[Kind], number: int) -> str:
    """Return the profiles that have all of the smallest GPU instance with so many slices, one for each kind."""
    found = set()
    for kind in kinds:
        own = [p for p in kind.sizes if slices(without_model(p)) == number and not p.endswith("ME")]
        whole = [p for p in own if _is_whole(kind, p, number)] or own
        if whole:
            found.add(min(whole, key=lambda p: (kind.sizes[p], series(p) != "C", p)))
    return "|".join(sorted(found))


def _is_whole(kind: Kind, profile: str, number: int) -> bool:
    """Say whether a profile has its share of the memory, and no instance takes two: there are 7 slices or 4."""
    enough = kind.sizes[profile] * MEMORY_SLICES >= kind.framebuffer_mib * number
    return enough and kind.left(kind.empty, profile) * number < MEMORY_SLICES


def _nothing(kinds: Sequence[Kind], what: str, hint: str | None = None) -> NotFound:
    names = ", ".join(dict.fromkeys(kind.name for kind in kinds))
    return NotFound(f"no GPU of {names} offers {what}", hint=hint)
