# SPDX-License-Identifier: Apache-2.0
"""How people write a scheduler: in host.yaml below a GPU, and as options. One set of rules for both.

The bounds here only keep out what no driver can mean; what this GPU's driver takes is judged against its own ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.model.scheduler import Policy, SchedulerSpec
from vgpuctl.spec import rules
from vgpuctl.spec.rules import Problem
from vgpuctl.spec.shape import Key, Shape

MOST_MS, MOST_HZ, MOST_FACTOR = 255, 1023, 255
"""The widest that the driver's registry word can hold."""

POLICIES = tuple(str(policy) for policy in Policy)
_ADAPTIVE = ("frequency_hz", "averaging_factor")
_NUMBERS = ("time_slice_ms", *_ADAPTIVE)


def scheduler_spec(value: object) -> SchedulerSpec:
    """Return a scheduler from a mapping of its keys.

    Raises:
        Refused: with every problem.
    """
    given: dict[str, Any] = SCHEDULER.check(value)
    return SchedulerSpec(**{**given, "policy": Policy(given["policy"])})


def scheduler_value(spec: SchedulerSpec) -> dict[str, object]:
    """Return a scheduler as it is written: the keys that say something."""
    numbers = {name: getattr(spec, name) for name in _NUMBERS}
    return {"policy": str(spec.policy), **{name: n for name, n in numbers.items() if n is not None}}


def _together(given: Mapping[str, object]) -> tuple[Problem, ...]:
    numbers = [name for name in _NUMBERS if name in given]
    if given.get("policy") == Policy.BEST_EFFORT and numbers:
        return (Problem((numbers[0],), "best_effort has neither slices nor a frequency"),)
    adaptive = [name for name in numbers if name in _ADAPTIVE]
    if adaptive and "time_slice_ms" in given:
        text = f"a time slice and adaptive round robin ({adaptive[0]}) exclude each other"
        return (Problem(("time_slice_ms",), text),)
    return ()


def _number(name: str, most: int, text: str) -> Key:
    return Key(name, rules.whole_number(1, most), text, {"minimum": 1, "maximum": most, "type": "integer"})


SCHEDULER = Shape(
    "Scheduler",
    "How NVIDIA's driver divides a GPU's time among its vGPUs.",
    (
        Key(
            "policy",
            rules.choice(POLICIES),
            "best_effort, equal_share or fixed_share",
            {"enum": list(POLICIES), "type": "string"},
            required=True,
        ),
        _number("time_slice_ms", MOST_MS, "strict round robin with slices of this length"),
        _number("frequency_hz", MOST_HZ, "adaptive round robin: turns each second"),
        _number("averaging_factor", MOST_FACTOR, "adaptive round robin: over how many turns a VM's time is evened out"),
    ),
    _together,
)
