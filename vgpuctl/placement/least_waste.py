# SPDX-License-Identifier: Apache-2.0
"""The policy that wastes the least: each vGPU goes where it destroys the least room for what is still to come."""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.gpu.gpu_kind import Filling, GpuKind, Placement, State
from vgpuctl.placement.ahead import Ahead
from vgpuctl.placement.fleet import Fleet, GpuGroup, PlacementChoice
from vgpuctl.placement.prices import alike, demand_of, prices, sizes_of

_SCARCITY = 0.05
"""How much the room of each profile alone counts beside what a GPU is worth at the prices. It decides between moves
that the prices cannot tell apart; ten times as much decides against them, and loses what they win on two models."""

_DECISIONS_PER_ROOT = 1 / 2
_DECISIONS_PER_REQUEST = 1 / 48
"""Prices hold for so many decisions for each request that is still expected, which is a few percent of the room; where
little of that is left, for the root of the number of GPUs times this: on many of them the last places are worth a look
for every few requests too, and still a decision costs hardly more than on few."""

_DOUBT = 0.25
"""The demand is not known to the last request: prices are made for four, in which the number of requests for a profile,
of which n are expected, is n and this many times its root more or less. What they say counts equally."""

_MOST_IN_DOUBT = 10
"""With more profiles prices are made for the expected demand alone: the time grows faster than their number."""

_FEW_GPUS = 3
"""On so many at most the next requests are tried one by one."""

_TRIES = 2000
"""How many places of next requests are tried: a few milliseconds."""


class LeastWaste:
    """Weighs a move by the worth it takes from its GPU, at prices that protect the demand.

    The worth of a GPU is the best way to fill it up at these prices (`Kind.filling`). The prices hold for some
    decisions, and what was worked out with them is kept for each different state: a decision costs a look at each
    group. The same fleets in the same order get the same answers. One is for fleets of the same kinds.
    """

    def __init__(self, mix: Mapping[str, float], *, together: int = 1, tries: int = _TRIES) -> None:
        """`mix`: the weight of each profile in the demand; none that the fleet offers: all that it offers alike.

        `together`: how many decisions belong to one request: prices hold for all of them, and they share the tries.
        `tries`: how many places of next requests are tried where there are few GPUs.
        """
        self._mix = dict(mix)
        self._together = together
        self._tries = max(1, tries // together)
        self._prices: list[dict[str, float]] = []
        self._demand: dict[str, float] = {}
        self._decisions = 0
        self._hold = 0.0
        self._rooms: list[_Rooms] = []
        self._fillings: list[list[Filling]] = []
        self._worths: dict[GpuGroup, float] = {}
        self._cheapest: dict[tuple[GpuGroup, str], tuple[float, Placement | None]] = {}

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `Policy.choose`."""
        if self._decisions >= self._hold:
            only = _at_most_two(fleet, profile)
            if len(only) < 2:
                return only[0] if only else None
            self._price(fleet)
        self._decisions += 1
        if len(fleet) <= _FEW_GPUS:
            return self._look_ahead(fleet, profile)
        least = float("inf")
        cheapest: list[tuple[GpuGroup, Placement]] = []
        for group, _ in fleet.groups():
            cost, move = self._cheapest.get((group, profile)) or self._weigh(fleet, group, profile)
            if move is not None and cost <= least:
                cheapest = [(group, move)] if cost < least else [*cheapest, (group, move)]
                least = cost
        return min((PlacementChoice(fleet.first_gpu(g), g, m) for g, m in cheapest), key=lambda c: c.gpu, default=None)

    def _look_ahead(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """Return the choice after which the next requests get the most; of equal ones the cheapest."""
        choices = sorted(
            fleet.choices(profile), key=lambda c: (self._cost(c.group, c.placement), c.gpu, c.placement.place)
        )
        if len(choices) < 2:
            return choices[0] if choices else None
        requests = sum(self._demand.values())
        ahead = Ahead(fleet.kinds, {p: n / requests for p, n in self._demand.items()}, self._worth)
        return ahead.best(fleet, choices, int(requests), self._tries)

    def _price(self, fleet: Fleet) -> None:
        """Make the prices anew."""
        sizes = sizes_of(fleet.kinds)
        mix = {p: w for p, w in self._mix.items() if w > 0 and p in sizes} or dict.fromkeys(sizes, 1.0)
        if not self._rooms:
            total = sum(mix.values())
            weights = {p: _SCARCITY * w / total * sizes[p] for p, w in mix.items()}
            self._rooms = [_Rooms(kind, weights) for kind in fleet.kinds]
        first = alike(fleet, mix)
        merged: dict[str, float] = {}
        for profile, weight in mix.items():
            merged[first[profile]] = merged.get(first[profile], 0.0) + weight
        self._demand = demand_of(fleet, merged)
        before, self._prices = self._prices, []
        for i, demand in enumerate(_in_doubt(self._demand, sizes)):
            self._prices.append(prices(fleet, demand, before[i] if i < len(before) else {}))
        worths = [{p: now[first[p]] for p in mix} for now in self._prices]
        self._fillings = [[kind.best_filling(worth) for worth in worths] for kind in fleet.kinds]
        self._decisions = 0
        requests = sum(self._demand.values())
        self._hold = max(
            self._together, _DECISIONS_PER_ROOT * float(len(fleet) ** 0.5), requests * _DECISIONS_PER_REQUEST
        )
        self._worths.clear()
        self._cheapest.clear()

    def _weigh(self, fleet: Fleet, group: GpuGroup, profile: str) -> tuple[float, Placement | None]:
        """Return what the move that destroys the least destroys, and that; None: no room."""
        moves = fleet.kind_of(group).placements(group.state, profile)
        costs = [self._cost(group, move) for move in moves]
        known = (min(costs), moves[costs.index(min(costs))]) if moves else (0.0, None)
        self._cheapest[group, profile] = known
        return known

    def _cost(self, group: GpuGroup, move: Placement) -> float:
        """Return the worth that a move destroys, in MiB to a thousandth: less is an error of the arithmetic."""
        return round(self._worth(group) - self._worth(GpuGroup(group.kind_index, move.state_after)), 3)

    def _worth(self, group: GpuGroup) -> float:
        known = self._worths.get(group)
        if known is None:
            fillings = self._fillings[group.kind_index]
            known = sum(filling.value(group.state) for filling in fillings) / len(fillings)
            known = self._worths[group] = known + self._rooms[group.kind_index].worth(group.state)
        return known


class _Rooms:
    """What each profile alone could use of a GPU, weighted; prices do not change it."""

    def __init__(self, kind: GpuKind, weights: Mapping[str, float]) -> None:
        self._fillings = [kind.best_filling({p: weight}) for p, weight in weights.items()]
        self._known: dict[State, float] = {}

    def worth(self, state: State) -> float:
        known = self._known.get(state)
        if known is None:
            known = self._known[state] = sum(filling.value(state) for filling in self._fillings)
        return known


def _in_doubt(demand: Mapping[str, float], sizes: Mapping[str, int]) -> tuple[dict[str, float], ...]:
    """Return four demands: more of everything, and of one half or another of the profiles by size more or less."""
    if len(demand) > _MOST_IN_DOUBT:
        return (dict(demand),)
    order = sorted(demand, key=lambda p: (sizes[p], p))
    return tuple(
        {p: _with(demand[p], -1 if (number & which).bit_count() % 2 else 1) for number, p in enumerate(order, 1)}
        for which in range(4)
    )


def _with(number: float, sign: int) -> float:
    return max(0.2 * number, number + sign * _DOUBT * float(number**0.5))


def _at_most_two(fleet: Fleet, profile: str) -> list[PlacementChoice]:
    """Return the first choices: where there is one only, there is nothing to weigh."""
    return [choice for choice, _ in zip(fleet.choices(profile), range(2), strict=False)]
