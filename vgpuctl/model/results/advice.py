# SPDX-License-Identifier: Apache-2.0
"""What the history of the use of vGPUs advises: the `data` of `advise` without a workload."""

from __future__ import annotations

from vgpuctl.model.usage_history import SizeVerdict
from vgpuctl.value import Value


class SizeAdviceResult(Value):
    """A vGPU, and which profile its use asks for. `index`: its number in its VM.

    `peak_memory_bytes`, `peak_time`: the highest use in 35 days, and when, in seconds since 1970; null if it was never
    seen. `days`: with NVIDIA's driver running. `sm`: the 95th percentile of the cores' use over five minutes.
    `advised_profile`, `confidence`: null where the advice is to change nothing. `frees_mib`: the framebuffer that the
    change frees; negative if it takes more. `has_room`: a GPU has room for the advised profile now. `profiles`: of all
    vGPUs of the VM after the change, and `command`, which makes it; empty and null where there is nothing to change,
    no room, or the VM is not managed. `planned`: a change of its profiles waits until the VM is off.
    """

    vm: str
    vm_uuid: str
    index: int
    gpu: str
    profile: str
    framebuffer_mib: int
    owner: str | None
    peak_memory_bytes: int | None
    peak_time: float | None
    days: int
    sm: float | None
    verdict: SizeVerdict
    advised_profile: str | None
    confidence: str | None
    frees_mib: int | None
    reason: str
    has_room: bool
    planned: bool
    profiles: tuple[str, ...]
    command: str | None


class IdleVmResult(Value):
    """A VM that was on for five days and hardly used its GPU. `command`: stops it."""

    vm: str
    owner: str | None
    profile: str
    command: str


class ConsumptionResult(Value):
    """GPU memory of an owner, or of a label's value: what its VMs had while they were on, and the hours' peaks."""

    name: str
    vms: int
    given_gib_hours: float
    used_gib_hours: float


class AdviceResult(Value):
    """All advice of a host. `by`: `owner`, or the label that groups the consumption. `days`: how far back it goes."""

    sizes: tuple[SizeAdviceResult, ...]
    idle: tuple[IdleVmResult, ...]
    consumption: tuple[ConsumptionResult, ...]
    by: str
    days: int
