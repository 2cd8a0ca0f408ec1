# SPDX-License-Identifier: Apache-2.0
"""The policy that wastes the least: each vGPU goes where it destroys the least room for what is still to come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.placement.fleet import Choice, Fleet, Group
from vgpuctl.placement.kind import Kind, Move, State
from vgpuctl.placement.prices import prices, sizes_of

_SCARCITY = 0.05
"""How much the room of each profile alone counts beside what a GPU is worth at the prices. It decides between moves
that the prices cannot tell apart; ten times as much decides against them, and loses what they win on two models."""

_DECISIONS_PER_GPU = 1 / 8
"""Prices hold for so many decisions for each GPU of the fleet: a few percent of its room."""


class LeastWaste:
    """Weighs a move by the worth it takes from its GPU, at prices that protect the demand.

    The worth of a GPU is the best way to fill it up at these prices (`Kind.filling`). The prices hold for some
    decisions, and what was worked out with them is kept for each different state: a decision costs a look at each
    group. The same fleets in the same order get the same answers.
    """

    def __init__(self, mix: Mapping[str, float], *, together: int = 1) -> None:
        """`mix`: the weight of each profile in the demand; none that the fleet offers: all that it offers alike.

        `together`: how many decisions belong to one request, so that prices hold for all of them.
        """
        self._mix = dict(mix)
        self._together = together
        self._worths: _Worths | None = None
        self._decisions = 0

    def choose(self, fleet: Fleet, profile: str) -> Choice | None:
        """See `Policy.choose`."""
        if self._worths is None or self._decisions >= max(self._together, len(fleet) * _DECISIONS_PER_GPU):
            only = _at_most_two(fleet, profile)
            if len(only) < 2:
                return only[0] if only else None
            self._worths = self._weigh(fleet)
            self._decisions = 0
        self._decisions += 1
        least = float("inf")
        cheapest: list[tuple[Group, Move]] = []
        for group, _ in fleet.groups():
            cost, move = self._worths.cheapest(group, profile)
            if move is not None and cost <= least:
                cheapest = [(group, move)] if cost < least else [*cheapest, (group, move)]
                least = cost
        return min((Choice(fleet.first(g), g, m) for g, m in cheapest), key=lambda c: c.gpu, default=None)

    def _weigh(self, fleet: Fleet) -> _Worths:
        """Make the prices anew."""
        sizes = sizes_of(fleet.kinds)
        mix = {p: w for p, w in self._mix.items() if w > 0 and p in sizes} or dict.fromkeys(sizes, 1.0)
        now = prices(fleet, mix, self._worths.prices if self._worths else {})
        total = sum(mix.values())
        return _Worths(fleet.kinds, now, {p: w / total * sizes[p] for p, w in mix.items()})


def _at_most_two(fleet: Fleet, profile: str) -> list[Choice]:
    """Return the first choices: where there is one only, there is nothing to weigh."""
    choices = fleet.choices(profile)
    return [choice for choice, _ in zip(choices, range(2), strict=False)]


class _Worths:
    """What GPUs are worth in each state at some prices, and the cheapest way to place a profile there."""

    def __init__(self, kinds: Sequence[Kind], prices: Mapping[str, float], weights: Mapping[str, float]) -> None:
        """`prices` in MiB; `weights`: the framebuffer of each profile in MiB, times its share of the demand."""
        self.prices = prices
        self._kinds = kinds
        self._fillings = [
            [kind.filling(prices), *(kind.filling({p: _SCARCITY * weight}) for p, weight in weights.items())]
            for kind in kinds
        ]
        self._worths: dict[Group, float] = {}
        self._cheapest: dict[tuple[Group, str], tuple[float, Move | None]] = {}

    def cheapest(self, group: Group, profile: str) -> tuple[float, Move | None]:
        """Return what the move that destroys the least destroys, in MiB to a thousandth, and that; None: no room."""
        key = (group, profile)
        known = self._cheapest.get(key)
        if known is None:
            moves = self._kinds[group.kind].moves(group.state, profile)
            costs = [self._cost(group, move.after) for move in moves]
            known = (min(costs), moves[costs.index(min(costs))]) if moves else (0.0, None)
            self._cheapest[key] = known
        return known

    def _cost(self, group: Group, after: State) -> float:
        return round(self._worth(group) - self._worth(Group(group.kind, after)), 3)

    def _worth(self, group: Group) -> float:
        known = self._worths.get(group)
        if known is None:
            known = self._worths[group] = sum(f.worth(group.state) for f in self._fillings[group.kind])
        return known
