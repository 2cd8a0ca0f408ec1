# SPDX-License-Identifier: Apache-2.0
"""`placement:` of host.yaml: which GPU takes a new vGPU, of those with room, and what else is to find room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.model.wish import PlacementSpec
from vgpuctl.spec import rules
from vgpuctl.spec.fields import FIELD, PLACEMENTS
from vgpuctl.spec.rules import Problem, Refused
from vgpuctl.spec.shape import Key, Shape

MOST_WEIGHT = 1_000_000


def placement_spec(value: object) -> PlacementSpec:
    """Check the section."""
    given: dict[str, Any] = PLACEMENT.check(value)
    return PlacementSpec(**given)


def _demand(value: object) -> dict[str, float]:
    """Check how often profiles are asked for: a mapping from profiles to weights, of which only the ratio counts."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError("a mapping from profiles to weights is due here, like {A40-4Q: 3, A40-8Q: 1}")
    found: list[Problem] = []
    weights: dict[str, float] = {}
    for name, weight in value.items():
        try:
            weights[rules.allowed_profile(name)] = _weight(weight)
        except ValueError as exc:
            found.append(Problem((str(name),), str(exc)))
    if found:
        raise Refused(tuple(found))
    return weights


def _weight(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_WEIGHT:
        raise ValueError(f"{value!r} is no weight: a number above 0, at most {MOST_WEIGHT}")
    return value


PLACEMENT = Shape(
    "Placement",
    "On which GPU a new vGPU goes, of those with room.",
    (
        Key("policy", rules.placement, FIELD["placement"].help, {"enum": list(PLACEMENTS), "type": "string"}),
        Key(
            "demand",
            _demand,
            "for least-waste: how often each profile is asked for, beside the others; without it the VMs that are "
            "there tell, or all profiles count alike",
            {
                "additionalProperties": {"exclusiveMinimum": 0, "maximum": MOST_WEIGHT, "type": "number"},
                "minProperties": 1,
                "type": "object",
            },
        ),
    ),
)
