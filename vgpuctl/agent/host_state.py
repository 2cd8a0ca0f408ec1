# SPDX-License-Identifier: Apache-2.0
"""What the agent's metrics are made of: a host at one instant, and its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vgpuctl.agent.event_counts import CountsResult
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.results.gpus import ProfileResult
from vgpuctl.model.results.usage import GpuUsageResult, UsageResult, VgpuUsageResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm
from vgpuctl.value import EMPTY_MAPPING, Value


class HostState(Value):
    """All that metrics are made of, at one instant. `expected_gpus`: the GPUs that this host should have.

    `source_errors`: how often each source of the use of GPUs failed. `subscribers`: who follows the events.
    `token_expiries`: when the token of each license expires. `lock_wait_seconds`: how long the host lock let us wait.
    """

    version: str
    usage: UsageResult
    snapshot: Snapshot
    profiles: tuple[ProfileResult, ...]
    counts: CountsResult
    expected_gpus: frozenset[str] = frozenset()
    source_errors: Mapping[str, int] = EMPTY_MAPPING
    subscribers: int = 0
    token_expiries: Mapping[str, float] = EMPTY_MAPPING
    lock_wait_seconds: float | None = None


class GpuState(NamedTuple):
    """A GPU: its row of the use, the GPU of the snapshot, and what was counted."""

    row: GpuUsageResult
    gpu: Gpu | None
    counts: CountsResult


class ProfileState(NamedTuple):
    """A profile, and how many vGPUs of it there are."""

    result: ProfileResult
    used: int


class VmCounts(NamedTuple):
    """A VM, its vGPUs, and what was counted."""

    vm: Vm
    vgpus: tuple[VgpuUsageResult, ...]
    counts: CountsResult
