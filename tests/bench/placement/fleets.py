# SPDX-License-Identifier: Apache-2.0
"""The fleets of the benchmark: the cards in each, in the order of their addresses, and the demand on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tests.bench.placement.cards import card, gib
from vgpuctl.gpu.gpu_kind import GpuKind
from vgpuctl.placement.fleet import Fleet, GpuGroup

ONE_SIZE, MIXED, MIG, VDI_PAIR, OTHER_PAIR = "one size", "mixed sizes", "MIG", "two models, VDI", "two models, other"
VDI = {"1B": 40, "2B": 35, "4Q": 20, "8Q": 5}
OFFICE = {"2B": 60, "4Q": 30, "8Q": 10}
DESIGN = {"2B": 12, "4Q": 6, "8Q": 3, "16Q": 1}
AI = {"4C": 30, "5C": 10, "8C": 25, "10C": 20, "20C": 10, "40C": 5}
WEIGHTED_MIG = {"1g": 40, "2g": 25, "3g": 20, "4g": 5, "7g": 10}
UNIFORM_MIG = dict.fromkeys(("1g", "1g.20gb", "2g", "3g", "4g", "7g"), 1)
SIZE_SETS = {
    "2-8": ("2Q", "4Q", "8Q"),
    "2-16": ("2Q", "4Q", "8Q", "16Q"),
    "2-24": ("2Q", "3Q", "4Q", "6Q", "8Q", "12Q", "16Q", "24Q"),
}
VDI_PAIRS = (("A40", "A16"), ("A40", "A10"))
OTHER_PAIRS = (
    ("RTX PRO 6000", "L40S"), ("RTX PRO 6000", "T4"), ("RTX PRO 4500", "A40"), ("A16", "T4"), ("RTX PRO 4500", "T4"),
)  # fmt: skip
"""None of them was used to choose the rule."""


class Setting(NamedTuple):
    """A fleet of equally many GPUs of each card, and a demand: a weight for each profile, by number of requests.

    `requests`: what seeds the requests: a fleet gets the same ones in both orders of addresses.
    """

    group: str
    name: str
    cards: tuple[str, ...]
    demand: Mapping[str, int]
    requests: str

    @property
    def kinds(self) -> list[GpuKind]:
        """The kind of each card."""
        return [card(name) for name in self.cards]

    def counts(self, gpus: int) -> list[int]:
        """Return how many GPUs of each card are in a fleet of this size."""
        number = len(self.cards)
        return [gpus // number + (index < gpus % number) for index in range(number)]

    def framebuffer_mib(self, gpus: int) -> int:
        """Return the framebuffer of all GPUs."""
        return sum(n * kind.framebuffer_mib for n, kind in zip(self.counts(gpus), self.kinds, strict=True))

    @property
    def sizes(self) -> dict[str, int]:
        """The framebuffer in MiB of each profile of the demand."""
        return {p: next(kind.sizes[p] for kind in self.kinds if p in kind.sizes) for p in self.demand}

    def fleet(self, gpus: int) -> Fleet:
        """Return this many empty GPUs, all of one model before those of the next."""
        kinds = list(dict.fromkeys(self.kinds))
        groups = [GpuGroup(i, kind.empty) for i, kind in enumerate(kinds) for _ in range(self.counts(gpus)[i])]
        return Fleet(kinds, groups)


def even(profiles: tuple[str, ...]) -> dict[str, int]:
    """Return a demand for the same framebuffer of each profile, so with more requests for small ones."""
    return {profile: 48 // gib(profile) for profile in profiles}


def _settings() -> Iterator[Setting]:
    def one(group: str, name: str, cards: tuple[str, ...], demand: Mapping[str, int]) -> Setting:
        return Setting(group, name, cards, demand, name)

    yield one(ONE_SIZE, "A40, VDI", ("A40",), VDI)
    yield one(ONE_SIZE, "A100, AI", ("A100",), AI)
    yield one(ONE_SIZE, "RTX PRO 6000, design", ("RTX PRO 6000",), DESIGN)
    for model in ("RTX PRO 6000 mixed", "RTX 6000 Ada mixed"):
        for name, profiles in SIZE_SETS.items():
            yield one(MIXED, f"{model}, {name} GiB", (model,), dict.fromkeys(profiles, 1))
            yield one(MIXED, f"{model}, {name} GiB even", (model,), even(profiles))
    yield one(MIG, "H100 MIG, weighted", ("H100 MIG",), WEIGHTED_MIG)
    yield one(MIG, "H100 MIG, uniform", ("H100 MIG",), UNIFORM_MIG)
    for first, second in VDI_PAIRS:
        yield from _both_orders(VDI_PAIR, first, second, "VDI", VDI)
    for first, second in (*VDI_PAIRS, *OTHER_PAIRS):
        for name, demand in (("office", OFFICE), ("design", DESIGN)):
            yield from _both_orders(OTHER_PAIR, first, second, name, demand)


def _both_orders(group: str, first: str, second: str, name: str, demand: Mapping[str, int]) -> Iterator[Setting]:
    for cards in ((first, second), (second, first)):
        yield Setting(group, f"{'+'.join(cards)}, {name}", cards, demand, f"{first}+{second}, {name}")


SETTINGS = {setting.name: setting for setting in _settings()}
