# SPDX-License-Identifier: Apache-2.0
"""Advice about a host: ways to share a GPU for a workload; profiles, idle VMs and consumption by the history."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.errors import HostCannot
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.planned_fields import planned_fields
from vgpuctl.model.results.advice import AdviceResult, ConsumptionResult, IdleVmResult, SizeAdviceResult
from vgpuctl.model.results.techniques import WorkloadAdviceResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.usage_history import DAY_SECONDS, VgpuHistory
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.model.vm import NOT_RUNNING_STATES, Vm
from vgpuctl.monitoring.right_sizing import ProfileSize, is_idle, size_profile
from vgpuctl.monitoring.technique_choice import advise
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.queries import profile_results
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

OWNER = "owner"
_SIZED = re.compile(r"(?P<before>.*-)[0-9]+(?P<after>[A-Z]+)", re.ASCII)
"""A profile's name around its size: A100-4C, H100-1-10C."""
NOTE = "you choose: vgpuctl never turns MIG, or anything else, on because a GPU can do it"


def advise_workload(host: Host, workload: str) -> QueryResult[WorkloadAdviceResult]:
    """Return the techniques for a workload, best first, with the GPUs of this host. Changes nothing."""
    snapshot = observe(host, ReadScope(types=True))
    return QueryResult(advise(snapshot, workload), snapshot.warnings, notes=(NOTE,))


def advise_sizes(host: Host, *, by: str = OWNER) -> QueryResult[AdviceResult]:
    """Return what the history of the use of vGPUs advises. `by`: `owner`, or the label that groups the consumption.

    Raises:
        HostCannot: there is no history: the host agent keeps it.
    """
    histories = () if host.usage_history is None else host.usage_history.read()
    if not histories:
        raise HostCannot(
            f"{host.name} has no history of the use of vGPUs: the host agent keeps it, while it runs",
            hint="vgpuctl install-host --agent; vgpuctl doctor agent",
            check="agent",
        )
    snapshot = observe(host, ReadScope(types=True))
    now = host.clock.now()
    vms = snapshot.vms_by_uuid()
    if snapshot.hypervisor.available:
        histories = tuple(replace(one, vm=vms[one.vm_uuid].name) for one in histories if one.vm_uuid in vms)
    room = {profile.profile: profile.free for profile in profile_results(snapshot, snapshot.gpus, everything=True)}
    rows = [_size_advice(snapshot, vms.get(one.vm_uuid), one, now, room) for one in histories]
    sizes = tuple(_with_command(row, vms.get(row.vm_uuid), rows) for row in rows)
    idle = tuple(
        IdleVmResult(one.vm, one.owner, one.profile, shlex.join(("vgpuctl", "stop-vm", one.vm)))
        for one in histories
        if is_idle(one, now=now) and _is_on(vms.get(one.vm_uuid))
    )
    first = min((hour.start for one in histories for hour in one.hours), default=int(now))
    days = math.ceil((now - first) / DAY_SECONDS)
    return QueryResult(AdviceResult(sizes, idle, _consumption(histories, by), by, days), snapshot.warnings)


def _size_advice(
    snapshot: Snapshot, vm: Vm | None, history: VgpuHistory, now: float, room: Mapping[str, int | None]
) -> SizeAdviceResult:
    gpu = snapshot.gpu(history.gpu)
    is_windows = vm is not None and vm.record is not None and "win" in (vm.record.requested("os", str) or "").lower()
    series = () if gpu is None else _series(gpu, history.profile)
    sizing = size_profile(history, series, now=now, is_windows=is_windows)
    advised = next((one.framebuffer_mib for one in series if one.profile == sizing.profile), None)
    has_room = room.get(sizing.profile or "") != 0
    return SizeAdviceResult(
        vm=history.vm,
        vm_uuid=history.vm_uuid,
        index=history.index,
        gpu=history.gpu,
        profile=history.profile,
        framebuffer_mib=history.framebuffer_mib,
        owner=history.owner,
        peak_memory_bytes=sizing.peak_bytes,
        peak_time=sizing.peak_time,
        days=sizing.days,
        sm=sizing.sm,
        verdict=sizing.verdict,
        advised_profile=sizing.profile,
        confidence=sizing.confidence,
        frees_mib=None if advised is None else history.framebuffer_mib - advised,
        reason=sizing.reason if has_room else f"{sizing.reason}; {_no_room(sizing.profile)}",
        has_room=has_room,
        planned=vm is not None and "profile" in planned_fields(vm.record),
        profiles=(),
        command=None,
    )


def _with_command(row: SizeAdviceResult, vm: Vm | None, rows: list[SizeAdviceResult]) -> SizeAdviceResult:
    """Add the profiles that the vGPUs of a VM have if the advice for all of them is followed, and the command.

    One call of set-vm gives a VM all its profiles: what it does not name would go.
    """
    if vm is None or vm.record is None or row.advised_profile is None or not row.has_room:
        return row
    advised = {one.index: one.advised_profile for one in rows if one.vm_uuid == row.vm_uuid and one.has_room}
    profiles = [advised.get(vgpu.index) or vgpu.profile for vgpu in vm.record.vgpus]
    if None in profiles or profiles == [vgpu.profile for vgpu in vm.record.vgpus]:
        return row
    names = tuple(name for name in profiles if name is not None)
    options = (word for name in names for word in ("--profile", name))
    drain = () if vm.state in NOT_RUNNING_STATES else ("--drain",)
    return replace(row, profiles=names, command=shlex.join(("vgpuctl", "set-vm", vm.name, *options, *drain)))


def _is_on(vm: Vm | None) -> bool:
    """Return whether a VM is managed and runs."""
    return vm is not None and vm.record is not None and vm.state not in NOT_RUNNING_STATES


def _no_room(profile: str | None) -> str:
    return f"no GPU has room for it now: vgpuctl explain {profile}"


def _series(gpu: Gpu, profile: str) -> tuple[ProfileSize, ...]:
    """Return the profiles of a GPU that differ from one in size alone; with fixed share, with the share of each."""
    name = _SIZED.fullmatch(profile)
    policy = None if gpu.scheduler is None or gpu.scheduler.state is None else gpu.scheduler.state.policy
    is_fixed = policy is SchedulerPolicy.FIXED_SHARE
    return tuple(
        ProfileSize(kind.profile, kind.framebuffer_mib, 1 / kind.max_per_gpu if is_fixed and kind.max_per_gpu else None)
        for kind in gpu.types
        if kind.framebuffer_mib is not None
        and (other := _SIZED.fullmatch(kind.profile)) is not None
        and name is not None
        and other.group("before", "after") == name.group("before", "after")
    )


def _consumption(histories: tuple[VgpuHistory, ...], by: str) -> tuple[ConsumptionResult, ...]:
    """Return the GPU memory by owner or label, those who had most first."""
    groups: dict[str, list[VgpuHistory]] = {}
    for one in histories:
        name = one.owner if by == OWNER else one.labels.get(by)
        groups.setdefault(name or "", []).append(one)
    results = (
        ConsumptionResult(
            name,
            len({one.vm_uuid for one in members}),
            round(sum(one.framebuffer_mib / 1024 * h.on_seconds / 3600 for one in members for h in one.hours), 1),
            round(sum((h.peak_bytes or 0) / 2**30 * h.on_seconds / 3600 for one in members for h in one.hours), 1),
        )
        for name, members in groups.items()
    )
    return tuple(sorted(results, key=lambda result: (-result.given_gib_hours, result.name)))
