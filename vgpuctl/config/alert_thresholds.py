# SPDX-License-Identifier: Apache-2.0
"""`agent: alerts:` of host.yaml: thresholds of the alert rules for Prometheus. The agent itself does not use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.config import rules
from vgpuctl.config.shape import Key, Shape
from vgpuctl.config.vm_fields import integer_schema
from vgpuctl.value import Value, field_names

MIN_CELSIUS, MAX_CELSIUS = 30, 120


class AlertsSpec(Value):
    """Thresholds. `gpu_hot_celsius`: GpuHot fires above it; `gpu_busy_ratio`: GpuBusy, of the GPU's cores, 0 to 1."""

    gpu_hot_celsius: int = 85
    gpu_busy_ratio: float = 0.95


def parse_alerts(value: object) -> AlertsSpec:
    """Check the thresholds."""
    given: dict[str, Any] = ALERTS_SHAPE.check(value)
    return AlertsSpec(**given)


def dump_alerts(spec: AlertsSpec) -> Mapping[str, object]:
    """Return the thresholds that are not the defaults, by their keys."""
    defaults = AlertsSpec()
    keys = field_names(AlertsSpec)
    return {key: getattr(spec, key) for key in keys if getattr(spec, key) != getattr(defaults, key)}


def _ratio(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise ValueError(f"{value!a} is not a number between 0 and 1, such as {AlertsSpec().gpu_busy_ratio}")
    return float(value)


ALERTS_SHAPE = Shape(
    "AgentAlerts",
    "Thresholds of the alert rules that 'vgpuctl monitoring --print rules' prints.",
    (
        Key(
            "gpu_hot_celsius",
            rules.whole_number(MIN_CELSIUS, MAX_CELSIUS),
            "GpuHot: a GPU is warmer than this for 10 minutes",
            integer_schema(MIN_CELSIUS, MAX_CELSIUS),
        ),
        Key(
            "gpu_busy_ratio",
            _ratio,
            "GpuBusy: more than this part of a GPU's cores was busy for an hour; between 0 and 1",
            {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        ),
    ),
)
