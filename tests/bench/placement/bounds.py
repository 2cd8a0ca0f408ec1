# SPDX-License-Identifier: Apache-2.0
"""The two references: B1, an upper bound, and B2, free migration.

B1 is the greatest framebuffer that an offline choice among the requests can fill. It is a linear program that may use
fractions of GPUs. No policy that admits every request that fits can reach it. B2 takes the requests in order and admits
each one if it can still pack all admitted requests, as if every vGPU could move at no cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor
from typing import NamedTuple

from tests.bench.placement.figures import Card

Pattern = tuple[int, ...]
"""How many vGPUs of each profile are on one GPU, in the order of the profiles."""
EPSILON = 1e-9
MOST_TRIES = 60
"""How many GPUs the search for an integer packing fills before it gives up."""


class Used(NamedTuple):
    """A pattern, the card it is on, and the number of GPUs that use it."""

    card: int
    pattern: Pattern
    gpus: float


class Packing:
    """Cards, the number of GPUs of each card, and the profiles of the demand."""

    def __init__(self, cards: Sequence[Card], gpus: Sequence[int], profiles: Sequence[str]) -> None:
        self.cards = tuple(cards)
        self.gpus = tuple(gpus)
        self.profiles = tuple(profiles)
        self.unproved = 0
        self._tries = 0

    def best(self, card: Card, prices: Sequence[float]) -> tuple[float, Pattern]:
        """Return the exact best value of one GPU at these prices, and the pattern that has it."""
        if card.most:
            return self._best_of_one_size(card, prices)
        value, chosen = self._best_slices(card, prices, 0)
        counts = [0] * len(self.profiles)
        for index, _ in chosen:
            counts[index] += 1
        return value, tuple(counts)

    def _best_slices(self, card: Card, prices: Sequence[float], covered: int) -> tuple[float, list[tuple[int, int]]]:
        """Return the best value on the slices that are not covered, and its vGPUs as (profile, start)."""
        worth = [0.0] * (card.slices + 1)
        taken = [-1] * card.slices
        at: list[list[tuple[int, int]]] = [[] for _ in range(card.slices)]
        for index, profile in enumerate(self.profiles):
            starts, size = card.places.get(profile, ((), 0))
            for start in starts if prices[index] > EPSILON else ():
                if not (((1 << size) - 1) << start) & covered:
                    at[start].append((index, size))
        for start in reversed(range(card.slices)):
            worth[start] = worth[start + 1]
            for index, size in at[start]:
                value = prices[index] + worth[start + size]
                if value > worth[start] + EPSILON:
                    worth[start], taken[start] = value, index
        chosen, start = [], 0
        while start < card.slices:
            if taken[start] < 0:
                start += 1
            else:
                chosen.append((taken[start], start))
                start += card.places[self.profiles[taken[start]]][1]
        return worth[0], chosen

    def _filled(self, card: Card, left: Sequence[int], *stages: Sequence[float]) -> Pattern:
        """Return a pattern within the numbers left. Each stage in turn adds what is worth most at its prices."""
        counts, covered = [0] * len(self.profiles), 0
        for prices in stages:
            while True:
                prices_left = [p if c < n else 0.0 for p, c, n in zip(prices, counts, left, strict=True)]
                _, chosen = self._best_slices(card, prices_left, covered)
                if not chosen:
                    break
                for index, start in chosen:
                    if counts[index] < left[index]:
                        counts[index] += 1
                        covered |= ((1 << card.places[self.profiles[index]][1]) - 1) << start
        return tuple(counts)

    def _best_of_one_size(self, card: Card, prices: Sequence[float]) -> tuple[float, Pattern]:
        best, chosen = 0.0, -1
        for index, profile in enumerate(self.profiles):
            value = prices[index] * card.most.get(profile, 0)
            if value > best + EPSILON:
                best, chosen = value, index
        counts = [card.most[self.profiles[chosen]] if i == chosen else 0 for i in range(len(self.profiles))]
        return best, tuple(counts) if chosen >= 0 else (0,) * len(self.profiles)

    def most(self, wanted: Sequence[int], values: Sequence[float], gpus: Sequence[int]) -> tuple[float, list[Used]]:
        """Return the best value of at most the wanted vGPUs on divisible GPUs, and the patterns that have it.

        This is the revised simplex method with column generation (Gilmore and Gomory): it creates a pattern when it
        needs one. There is one row for the number of each profile and one for the number of each card.
        """
        profiles, size = len(self.profiles), len(self.profiles) + len(self.cards)
        inverse = [[float(i == j) for j in range(size)] for i in range(size)]
        amounts = [float(n) for n in (*wanted, *gpus)]
        basis: list[tuple[float, int, Pattern]] = [(0.0, -1, ())] * size
        while True:
            dual = [sum(basis[i][0] * inverse[i][j] for i in range(size)) for j in range(size)]
            entering = self._entering(dual, values)
            if entering is None:
                value = sum(b[0] * x for b, x in zip(basis, amounts, strict=True))
                return value, [Used(c, p, x) for (_, c, p), x in zip(basis, amounts, strict=True) if p and x > EPSILON]
            worth, column = entering
            direction = [sum(row[j] * column[j] for j in range(size)) for row in inverse]
            rows = [i for i in range(size) if direction[i] > EPSILON]
            leaving = min(rows, key=lambda i: (amounts[i] / direction[i], basis[i][1] >= 0, i))
            _pivot(inverse, amounts, direction, leaving)
            card = next((c for c in range(len(self.cards)) if column[profiles + c]), -1)
            basis[leaving] = (worth, card, tuple(int(n) for n in column[:profiles])) if card >= 0 else (0.0, -1, ())

    def _entering(self, dual: Sequence[float], values: Sequence[float]) -> tuple[float, list[float]] | None:
        """Return the value and column of the pattern or slack that gains most; None at the optimum."""
        profiles, cards = len(self.profiles), len(self.cards)
        slack = min(range(profiles + cards), key=lambda j: dual[j])
        if dual[slack] < -1e-7:
            return 0.0, [float(j == slack) for j in range(profiles + cards)]
        prices = [v - d for v, d in zip(values, dual, strict=False)]
        gain, chosen = 1e-7, None
        for index, card in enumerate(self.cards):
            worth, pattern = self.best(card, prices)
            if worth - dual[profiles + index] > gain:
                gain, chosen = worth - dual[profiles + index], (index, pattern)
        if chosen is None:
            return None
        index, pattern = chosen
        column = [float(n) for n in pattern] + [float(c == index) for c in range(cards)]
        return sum(v * n for v, n in zip(values, pattern, strict=True)), column

    def fits(self, wanted: Sequence[int]) -> bool:
        """Return whether this many vGPUs of each profile fit on all GPUs together.

        With one size at a time on a GPU, counting gives the exact answer. Otherwise the answer is yes if the search
        finds a packing, and no if not even divisible GPUs suffice. If neither is known, the answer is no, and
        `unproved` counts it.
        """
        if all(card.most for card in self.cards):
            return self._fits_by_counting(wanted)
        if not self._fits_divided(wanted, self.gpus[0]):
            return False
        if any(self._pack(list(wanted), self.gpus[0], spare) for spare in (0, 1, 2)):
            return True
        self.unproved += 1
        return False

    def _fits_divided(self, wanted: Sequence[int], gpus: int) -> bool:
        return self.most(wanted, [1.0] * len(wanted), [gpus])[0] > sum(wanted) - 1e-6

    def _pack(self, left: list[int], gpus: int, spare: int) -> bool:
        """Take the whole GPUs of the divisible packing, except `spare` of each pattern; search for the rest."""
        _, used = self.most(left, [1.0] * len(left), [gpus])
        for _, pattern, number in used:
            whole = max(0, floor(number + 1e-6) - spare)
            gpus -= whole
            left = [max(0, n - whole * a) for n, a in zip(left, pattern, strict=True)]
        self._tries = MOST_TRIES
        return self._search(left, gpus)

    def _search(self, left: list[int], gpus: int) -> bool:
        """Fill one GPU in several good ways; for each way, continue with the other GPUs."""
        if not any(left):
            return True
        card = self.cards[0]
        sizes = [float(card.sizes[p]) for p in self.profiles]
        self._tries -= 1
        if self._tries < 0 or gpus < 1 or not self._fits_divided(left, gpus):
            return False
        used = sorted(self.most(left, sizes, [gpus])[1], key=lambda u: -u.gpus)
        stages = [[size * (n > 0) for size, n in zip(sizes, u.pattern, strict=True)] for u in used]
        stages += [[size**1.1 for size in sizes], [size**0.9 for size in sizes]]
        ways = dict.fromkeys(self._filled(card, left, stage, sizes) for stage in stages)
        return any(self._search([n - a for n, a in zip(left, way, strict=True)], gpus - 1) for way in ways)

    def _fits_by_counting(self, wanted: Sequence[int]) -> bool:
        """Count whole GPUs for each profile. Two cards: the fewest of the second for each number of the first."""
        most = [[card.most.get(profile, 0) for profile in self.profiles] for card in self.cards]
        if len(self.cards) == 1:
            return sum(-(-n // m) for n, m in zip(wanted, most[0], strict=True) if n) <= self.gpus[0]
        first, second = self.gpus
        fewest = {0: 0}
        for number, a, b in zip(wanted, most[0], most[1], strict=True):
            following: dict[int, int] = {}
            options = [(x, -(-max(0, number - x * a) // b)) for x in range(min(first, -(-number // a)) + 1)]
            for of_first, of_second in fewest.items():
                for x, y in options:
                    if of_first + x > first:
                        break
                    if of_second + y < following.get(of_first + x, second + 1):
                        following[of_first + x] = of_second + y
            fewest = following
        return bool(fewest)


def _pivot(inverse: list[list[float]], amounts: list[float], direction: Sequence[float], row: int) -> None:
    """Bring a column into the basis at a row."""
    pivot = direction[row]
    inverse[row] = [x / pivot for x in inverse[row]]
    amounts[row] /= pivot
    for i, factor in enumerate(direction):
        if i != row and factor:
            inverse[i] = [x - factor * y for x, y in zip(inverse[i], inverse[row], strict=True)]
            amounts[i] = max(0.0, amounts[i] - factor * amounts[row])


def offline_gib(packing: Packing, sizes: Mapping[str, int], requests: Sequence[str]) -> float:
    """Return B1: the greatest framebuffer in GiB that any choice among the requests fills."""
    wanted = [requests.count(profile) for profile in packing.profiles]
    return packing.most(wanted, [float(sizes[p]) for p in packing.profiles], packing.gpus)[0]


def with_free_migration(packing: Packing, requests: Sequence[str]) -> list[bool]:
    """Return B2: whether each request is admitted.

    After one refusal a profile never fits again, because no vGPU leaves. So binary search finds the next refusal.
    """
    admitted = [False] * len(requests)
    counts = [0] * len(packing.profiles)
    indexes = {profile: index for index, profile in enumerate(packing.profiles)}
    open_profiles = set(packing.profiles)
    at = 0
    while at < len(requests) and open_profiles:
        later = [i for i in range(at, len(requests)) if requests[i] in open_profiles]
        low, high = 0, len(later)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if packing.fits(_plus(counts, indexes, requests, later[:middle])) else (low, middle - 1)
            )
        for i in later[:low]:
            admitted[i] = True
        counts = _plus(counts, indexes, requests, later[:low])
        if low == len(later):
            break
        open_profiles.discard(requests[later[low]])
        at = later[low] + 1
    return admitted


def _plus(counts: Sequence[int], indexes: Mapping[str, int], requests: Sequence[str], more: Sequence[int]) -> list[int]:
    total = list(counts)
    for i in more:
        total[indexes[requests[i]]] += 1
    return total
