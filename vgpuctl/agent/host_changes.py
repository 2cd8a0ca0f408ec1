# SPDX-License-Identifier: Apache-2.0
"""The events that whole looks at the host make: what sysfs, NVML and the claims say now and did not say before.

    changes = HostChanges(log)
    changes.read(snapshot)      # each whole look, in order; the first one makes no events

What could not be read is unknown: nothing is reported as gone because of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from vgpuctl.agent.events import EventLog
from vgpuctl.model.event import EventType
from vgpuctl.model.gpu import Ownership, Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import NOT_RUNNING_STATES, StuckWrite
from vgpuctl.value import Value

_GONE = "it is no longer listed"
_NO_ANSWER = "NVML does not answer for it"


class HostStep(Value):
    """Something that happened to a GPU or a vGPU, or to several. The fields are as in `Event`."""

    type: EventType
    gpu: str | None
    vm: str | None = None
    vm_uuid: str | None = None
    vgpu: str | None = None
    reason: str | None = None

    def publish(self, log: EventLog) -> None:
        """Publish it as an event."""
        log.publish(self.type, gpu=self.gpu, vm=self.vm, vm_uuid=self.vm_uuid, vgpu=self.vgpu, reason=self.reason)


class HostChanges:
    """The last whole look, and what the next one changes."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._last: Snapshot | None = None

    def read(self, snapshot: Snapshot) -> None:
        """Publish what is different since the last look. A look at some GPUs only is left out."""
        if snapshot.partial:
            return
        before, self._last = self._last, snapshot
        losses = self._log.gpu_losses
        for step in compare_snapshots(before, snapshot) if before is not None else ():
            is_loss = step.type is EventType.GPU_LOST and step.gpu is not None
            if not is_loss or losses.report(str(step.gpu), was_seen=True):
                step.publish(self._log)
        for gpu in snapshot.gpus:
            if not gpu.is_lost:
                losses.note_working(gpu.address)


def compare_snapshots(before: Snapshot, after: Snapshot) -> Iterator[HostStep]:
    """Yield what happened between two whole snapshots."""
    yield from _compare_gpus(before, after)
    yield from _compare_cordons(before, after)
    yield from _compare_vgpus(before, after)
    old, new = ({_key(write): write for write in snapshot.stuck_writes} for snapshot in (before, after))
    for key in sorted(new.keys() - old.keys()):
        yield HostStep(EventType.STUCK_BEGIN, new[key].gpu, reason=f"{new[key].text} > {new[key].path}")
    for key in sorted(old.keys() - new.keys()):
        yield HostStep(EventType.STUCK_END, old[key].gpu, reason=f"{old[key].text} > {old[key].path}")


def _key(write: StuckWrite) -> tuple[int, int]:
    return write.process.pid, write.process.start_ticks


def _compare_gpus(before: Snapshot, after: Snapshot) -> Iterator[HostStep]:
    lost_before, lost_after = ({g.address for g in s.gpus if g.is_lost} for s in (before, after))
    all_before, all_after = ({g.address for g in s.gpus} for s in (before, after))
    for address in sorted(lost_after - lost_before):
        yield HostStep(EventType.GPU_LOST, address, reason=_NO_ANSWER)
    if not after.unreadable_devices:
        for address in sorted(all_before - all_after - lost_before):
            yield HostStep(EventType.GPU_LOST, address, reason=_GONE)
    if not before.unreadable_devices:
        came_back = (all_after - all_before) | (lost_before & all_after)
        for address in sorted(came_back - lost_after):
            yield HostStep(EventType.GPU_BACK, address)


def _compare_cordons(before: Snapshot, after: Snapshot) -> Iterator[HostStep]:
    if before.host_file_problem is not None or after.host_file_problem is not None:
        return
    cordoned = {gpu.address: gpu.cordoned for gpu in before.gpus}
    for gpu in after.gpus:
        if gpu.address in cordoned and gpu.cordoned != cordoned[gpu.address]:
            yield HostStep(EventType.CORDON, gpu.address, reason="cordoned" if gpu.cordoned else "uncordoned")


def _compare_vgpus(before: Snapshot, after: Snapshot) -> Iterator[HostStep]:
    old, new = ({vgpu.carrier: vgpu for vgpu in snapshot.vgpus} for snapshot in (before, after))
    for carrier, vgpu in sorted(new.items()):
        known = old.get(carrier)
        if vgpu.present and (known is None or not known.present) and not before.unreadable_devices:
            yield _step(EventType.VGPU_MADE, vgpu, after)
        if _is_leaked(vgpu, after) and not _is_leaked(known, before):
            yield _step(EventType.LEAK, vgpu, after, vgpu.reason)
    for carrier, vgpu in sorted(old.items()):
        current = new.get(carrier)
        if not vgpu.present or after.unreadable_devices or (current is not None and current.present):
            continue
        is_lost = current is not None and _runs(current, after)
        yield _step(EventType.VGPU_LOST if is_lost else EventType.VGPU_REMOVED, vgpu, before)


def _is_leaked(vgpu: Vgpu | None, snapshot: Snapshot) -> bool:
    """Return whether a vGPU is leaked; False where its owner could not be read."""
    has_owners = snapshot.hypervisor.available and not snapshot.unreadable_claims
    return vgpu is not None and has_owners and vgpu.owner is Ownership.LEAKED


def _runs(vgpu: Vgpu, snapshot: Snapshot) -> bool:
    """Return whether a vGPU's VM runs; False where nobody knows."""
    vm = None if vgpu.vm_uuid is None else snapshot.vm(vgpu.vm_uuid)
    return vm is not None and vm.state not in NOT_RUNNING_STATES


def _step(event_type: EventType, vgpu: Vgpu, snapshot: Snapshot, reason: str | None = None) -> HostStep:
    vm = None if vgpu.vm_uuid is None else snapshot.vm(vgpu.vm_uuid)
    assigned = () if vm is None or vm.record is None else vm.record.vgpus
    index = next((str(each.index) for each in assigned if each.carrier == vgpu.carrier), vgpu.carrier)
    return HostStep(event_type, vgpu.gpu, vgpu.vm, vgpu.vm_uuid, index, reason)
