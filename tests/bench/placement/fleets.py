# SPDX-License-Identifier: Apache-2.0
"""The fleets of the benchmark: the cards in each, and the demand on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tests.bench.placement import figures
from tests.bench.placement.figures import Card
from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.gpu.gpu_kind import GpuKind, State
from vgpuctl.gpu.slice_kind import Footprint, SliceKind
from vgpuctl.placement.fleet import Fleet, GpuGroup

VDI = {"1B": 40, "2B": 35, "4Q": 20, "8Q": 5}
AI = {"4C": 30, "5C": 10, "8C": 25, "10C": 20, "20C": 10, "40C": 5}
MIG = {"1g": 40, "2g": 25, "3g": 20, "4g": 5, "7g": 10}


def uniform(*profiles: str) -> dict[str, int]:
    """Return a demand with equally many requests for each profile."""
    return dict.fromkeys(profiles, 1)


def even(*profiles: str) -> dict[str, int]:
    """Return a demand for the same framebuffer of each profile, so with more requests for small ones."""
    return {profile: 48 // figures.gib(profile) for profile in profiles}


TWO_TO_8 = ("2Q", "4Q", "8Q")
TWO_TO_16 = (*TWO_TO_8, "16Q")
TWO_TO_24 = tuple(figures.PRO_6000_MOST)


SAME_SIZE = "-same"
"""The name suffix of a fleet that is another fleet in same-size mode."""


class Setting(NamedTuple):
    """A fleet of equally many GPUs of each card, and a demand: a weight for each profile, by number of requests."""

    name: str
    title: str
    cards: tuple[Card, ...]
    demand: Mapping[str, int]

    @property
    def asked(self) -> str:
        """The fleet name that seeds the requests: a fleet gets the same requests in both modes."""
        return self.name.removesuffix(SAME_SIZE)


MIG_PROFILES = tuple(MIG)
PRO_6000_SETS = (
    ("2-8", "2/4/8 GiB", TWO_TO_8),
    ("2-16", "2/4/8/16 GiB", TWO_TO_16),
    ("2-24", "2 to 24 GiB", TWO_TO_24),
)


def _pro_6000() -> Iterator[Setting]:
    """Yield the RTX PRO 6000 settings: each set of sizes with even demand by number and by framebuffer."""
    for name, sizes, profiles in PRO_6000_SETS:
        mixed, same = figures.pro_6000_mixed(*profiles), figures.pro_6000_same(*profiles)
        for end, how, demand in (("", "", uniform(*profiles)), ("-even", ", even framebuffer", even(*profiles))):
            yield Setting(f"pro6000-{name}{end}", f"RTX PRO 6000 mixed size, {sizes}{how}", (mixed,), demand)
            yield Setting(f"pro6000-{name}{end}{SAME_SIZE}", f"RTX PRO 6000 same size, {sizes}{how}", (same,), demand)


SETTINGS = (
    Setting("a100-40", "A100-40, AI mix", (figures.A100_40,), AI),
    Setting("a40", "A40, VDI mix", (figures.A40,), VDI),
    Setting("a40-a16", "A40 and A16, VDI mix", (figures.A40, figures.A16), VDI),
    Setting("a40-a10", "A40 and A10, VDI mix", (figures.A40, figures.A10), VDI),
    Setting("h100-mig", "H100 MIG, weighted mix", (figures.H100_MIG,), MIG),
    Setting("h100-mig-uniform", "H100 MIG, uniform mix", (figures.H100_MIG,), uniform(*figures.H100_MIG.sizes)),
    Setting("h100-mig-uniform-5", "H100 MIG, uniform mix without 1g.20gb", (figures.H100_MIG,), uniform(*MIG_PROFILES)),
    Setting("ada-2-16", "Ada mixed size, 2/4/8/16 GiB", (figures.ada_mixed(*TWO_TO_16),), uniform(*TWO_TO_16)),
    Setting("ada-2-24", "Ada mixed size, 2 to 24 GiB", (figures.ada_mixed(*TWO_TO_24),), uniform(*TWO_TO_24)),
    *_pro_6000(),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}


def kind_of(card: Card) -> GpuKind:
    """Return the card's kind, as the placement code uses it."""
    sizes = {profile: size * figures.GIB for profile, size in card.sizes.items()}
    if card.most:
        return EqualSizeKind(card.name, card.framebuffer_gib * figures.GIB, sizes, card.most)
    takes = {profile: Footprint(starts, size) for profile, (starts, size) in card.places.items()}
    return SliceKind(card.name, card.framebuffer_gib * figures.GIB, sizes, takes, slices=card.slices)


def fleet_of(setting: Setting, gpus: int) -> Fleet:
    """Return this many empty GPUs in the order of the cards, like a list of hosts with one model each."""
    kinds = [kind_of(card) for card in setting.cards]
    gpu_counts = counts_of(setting, gpus)
    return Fleet(
        kinds, [GpuGroup(number, kind.empty) for number, kind in enumerate(kinds) for _ in range(gpu_counts[number])]
    )


def counts_of(setting: Setting, gpus: int) -> list[int]:
    """Return how many GPUs of each card are in a fleet of this size."""
    number = len(setting.cards)
    return [gpus // number + (index < gpus % number) for index in range(number)]


def framebuffer_gib(setting: Setting, gpus: int) -> int:
    """Return the framebuffer of all GPUs in GiB."""
    return sum(n * card.framebuffer_gib for n, card in zip(counts_of(setting, gpus), setting.cards, strict=True))


def used_mib(kind: GpuKind, state: State) -> int:
    """Return the framebuffer in use on a GPU. On a card with slices, covered slices count in full."""
    if isinstance(kind, EqualSizeKind):
        size, number = state
        return int(size * number)
    return int(state.bit_count() * SLICE_MIB[kind.name])


SLICE_MIB = {
    card.name: card.framebuffer_gib * figures.GIB // card.slices for s in SETTINGS for card in s.cards if card.slices
}
"""The framebuffer in MiB of one slice, for each card that has slices."""
