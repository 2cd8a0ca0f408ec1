# SPDX-License-Identifier: Apache-2.0
"""`placement:` of host.yaml: how vgpuctl chooses a GPU for a new vGPU, and how often each profile is requested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.config import rules
from vgpuctl.config.rules import Problem, ValidationError
from vgpuctl.config.shape import Key, Shape
from vgpuctl.config.vm_fields import FIELD_BY_NAME, PLACEMENT_POLICIES
from vgpuctl.model.request import PlacementSpec

MAX_WEIGHT = 1_000_000


def parse_placement_spec(value: object) -> PlacementSpec:
    """Check the section and return it."""
    checked: dict[str, Any] = PLACEMENT_SHAPE.check(value)
    return PlacementSpec(**checked)


def _parse_demand(value: object) -> dict[str, float]:
    """Check `demand`: a mapping from profiles to weights, of which only the ratio counts."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError("a mapping from profiles to weights is due here, like {A40-4Q: 3, A40-8Q: 1}")
    problems: list[Problem] = []
    weights: dict[str, float] = {}
    for name, weight in value.items():
        try:
            weights[rules.allowed_profile(name)] = _check_weight(weight)
        except ValueError as exc:
            problems.append(Problem((str(name),), str(exc)))
    if problems:
        raise ValidationError(tuple(problems))
    return weights


def _check_weight(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_WEIGHT:
        raise ValueError(f"{value!r} is no weight: a number above 0, at most {MAX_WEIGHT}")
    return value


PLACEMENT_SHAPE = Shape(
    "Placement",
    "On which GPU a new vGPU goes, of those with room.",
    (
        Key(
            "policy",
            rules.placement,
            FIELD_BY_NAME["placement"].help,
            {"enum": list(PLACEMENT_POLICIES), "type": "string"},
        ),
        Key(
            "demand",
            _parse_demand,
            "for least-waste: how often each profile is asked for, beside the others; without it the VMs that are "
            "there tell, or all profiles count alike",
            {
                "additionalProperties": {"exclusiveMinimum": 0, "maximum": MAX_WEIGHT, "type": "number"},
                "minProperties": 1,
                "type": "object",
            },
        ),
    ),
)
