# SPDX-License-Identifier: Apache-2.0
"""What is kept of the use of vGPUs: an hour's peak and load for each, for advice and reports."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from vgpuctl.value import EMPTY_MAPPING, Value

HOUR_SECONDS, DAY_SECONDS = 3600, 86_400
HOURS_KEPT_DAYS, DAYS_KEPT = 35, 400
"""Hours are kept for so many days: a month's end is seen. Days are kept for a year and a month."""


class SizeVerdict(StrEnum):
    """What the use asks for."""

    SMALLER = "smaller"
    LARGER = "larger"
    KEEP = "keep"
    NONE = "none"


class UsedHour(Value):
    """One hour of a vGPU. `start`: seconds since 1970.

    `peak_bytes`, `peak_time`: its highest framebuffer use; None if that was not known. `sm`: the highest mean of the
    cores' use over five minutes, a part of the whole GPU. `seen_seconds`: with NVIDIA's driver running in the guest;
    `on_seconds`: with the VM on. `sm_seconds`: the cores' use times the seconds, for reports.
    """

    start: int
    peak_bytes: int | None
    peak_time: float | None
    sm: float | None
    seen_seconds: float
    on_seconds: float
    sm_seconds: float


class VgpuHistory(Value):
    """What is kept of one vGPU since it has its profile, the oldest hour first."""

    vm_uuid: str
    index: int
    vm: str
    profile: str
    framebuffer_mib: int
    gpu: str
    owner: str | None = None
    labels: Mapping[str, str] = EMPTY_MAPPING
    hours: tuple[UsedHour, ...] = ()
