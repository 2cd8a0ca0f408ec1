# SPDX-License-Identifier: Apache-2.0
"""How people write a scheduler: in host.yaml below a GPU, and as options. One set of rules for both.

These bounds only refuse what no driver could accept; values are checked later against the ranges of the GPU's driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.config import rules
from vgpuctl.config.rules import Problem
from vgpuctl.config.shape import Key, Shape
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec

MAX_TIME_SLICE_MS, MAX_FREQUENCY_HZ, MAX_AVERAGING_FACTOR = 255, 1023, 255
"""The largest values that the driver's registry dword can hold."""

POLICIES = tuple(str(policy) for policy in SchedulerPolicy)
_ADAPTIVE = ("frequency_hz", "averaging_factor")
_NUMBERS = ("time_slice_ms", *_ADAPTIVE)


def parse_scheduler_spec(value: object) -> SchedulerSpec:
    """Return a scheduler from a mapping of its keys.

    Raises:
        ValidationError: with every problem.
    """
    given: dict[str, Any] = SCHEDULER_SHAPE.check(value)
    return SchedulerSpec(**{**given, "policy": SchedulerPolicy(given["policy"])})


def dump_scheduler(spec: SchedulerSpec) -> dict[str, object]:
    """Return a scheduler as host.yaml writes it: only the keys that are set."""
    numbers = {name: getattr(spec, name) for name in _NUMBERS}
    return {"policy": str(spec.policy), **{name: n for name, n in numbers.items() if n is not None}}


def _check_keys(given: Mapping[str, object]) -> tuple[Problem, ...]:
    numbers = [name for name in _NUMBERS if name in given]
    if given.get("policy") == SchedulerPolicy.BEST_EFFORT and numbers:
        return (Problem((numbers[0],), "best_effort has neither slices nor a frequency"),)
    adaptive = [name for name in numbers if name in _ADAPTIVE]
    if adaptive and "time_slice_ms" in given:
        text = f"a time slice and adaptive round robin ({adaptive[0]}) cannot be combined"
        return (Problem(("time_slice_ms",), text),)
    return ()


def _number_key(name: str, maximum: int, text: str) -> Key:
    return Key(name, rules.whole_number(1, maximum), text, {"minimum": 1, "maximum": maximum, "type": "integer"})


SCHEDULER_SHAPE = Shape(
    "Scheduler",
    "How NVIDIA's driver divides a GPU's time among its vGPUs.",
    (
        Key(
            "policy",
            rules.one_of(POLICIES),
            "best_effort, equal_share or fixed_share",
            {"enum": list(POLICIES), "type": "string"},
            required=True,
        ),
        _number_key("time_slice_ms", MAX_TIME_SLICE_MS, "strict round robin with slices of this length"),
        _number_key("frequency_hz", MAX_FREQUENCY_HZ, "adaptive round robin: turns each second"),
        _number_key(
            "averaging_factor",
            MAX_AVERAGING_FACTOR,
            "adaptive round robin: over how many turns a VM's time is evened out",
        ),
    ),
    _check_keys,
)
