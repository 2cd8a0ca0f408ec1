# SPDX-License-Identifier: Apache-2.0
"""What the agent reports about its host as it happens, and where it delivers that besides its API.

An event says that something changed; what is true now is what a look at the host says. A reader that lost events
(`gap`) lists again.
"""

from __future__ import annotations

from enum import StrEnum

from vgpuctl.value import Value


class EventType(StrEnum):
    """What happened.

    `gap`: events between the reader's last one and this one are lost, so list again. `gpu-lost`: the GPU does not
    answer any more (NVIDIA's Xid 79); `gpu-xid`: any other Xid. `vm-crashed`: QEMU ended by itself, or the guest
    panicked. `vm-defined`: a VM is new, or its definition changed (`reason`: added, updated, renamed).
    `problem-found`: what `reconcile-host` reports and the agent did not fix. `healing-stopped`: the agent fixes nothing
    by itself while there are that many problems. `autostart-failed`: a VM that should run after a boot does not.
    `planned-change-failed`: a VM is off, and what set-vm --when-off planned for it is not possible.
    `license-token-ends`: the token of a license expires within 30 days, or has expired.
    `guest-helper-up`, `guest-helper-lost`: a guest's helper reports, or does so no more; `guest-helper-bad`: it sends
    what is no report, or too much. `guest-users`: who is logged on in a guest has changed; show-vm shows who.
    `stream-begin`, `stream-end`: a controller connects its user to a port of a desktop, or to its screen (`reason`).
    `history-problem`: the history of the use of vGPUs cannot be written, or was damaged and begins again.
    `read-only-begin`: the agent cannot write its state directory, so it refuses operations until `read-only-end`.
    """

    AGENT_STARTED = "agent-started"
    GAP = "gap"
    LIBVIRT_LOST = "libvirt-lost"
    LIBVIRT_BACK = "libvirt-back"
    VM_DEFINED = "vm-defined"
    VM_STARTED = "vm-started"
    VM_STOPPED = "vm-stopped"
    VM_CRASHED = "vm-crashed"
    VM_UNDEFINED = "vm-undefined"
    GUEST_DRIVER_UP = "guest-driver-up"
    GUEST_HELPER_UP = "guest-helper-up"
    GUEST_HELPER_LOST = "guest-helper-lost"
    GUEST_HELPER_BAD = "guest-helper-bad"
    GUEST_USERS = "guest-users"
    VGPU_MADE = "vgpu-made"
    VGPU_REMOVED = "vgpu-removed"
    VGPU_LOST = "vgpu-lost"
    LICENSE_CHANGED = "license-changed"
    LICENSE_ENDS = "license-token-ends"
    GPU_LOST = "gpu-lost"
    GPU_BACK = "gpu-back"
    GPU_XID = "gpu-xid"
    ECC = "ecc"
    ROW_REMAP = "row-remap"
    THROTTLE_BEGIN = "throttle-begin"
    THROTTLE_END = "throttle-end"
    DRIFT_BEGIN = "drift-found"
    DRIFT_END = "drift-gone"
    LEAK = "leak-found"
    PROBLEM_BEGIN = "problem-found"
    PROBLEM_END = "problem-gone"
    HEALING_STOPPED = "healing-stopped"
    AUTOSTART_FAILED = "autostart-failed"
    PLANNED_CHANGE_FAILED = "planned-change-failed"
    STUCK_BEGIN = "stuck-begin"
    STUCK_END = "stuck-end"
    RESTORE_FAILED = "restore-failed"
    OPERATION_BEGIN = "operation-begin"
    OPERATION_END = "operation-end"
    READ_ONLY_BEGIN = "read-only-begin"
    READ_ONLY_END = "read-only-end"
    CORDON = "cordon"
    NVML_PAUSED = "nvml-paused"
    STREAM_BEGIN = "stream-begin"
    STREAM_END = "stream-end"
    HISTORY_PROBLEM = "history-problem"
    HISTORY_BACK = "history-back"


class Severity(StrEnum):
    """Who should look: nobody, somebody soon, somebody now."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


SEVERITIES = {
    EventType.VM_CRASHED: Severity.ERROR,
    EventType.GPU_LOST: Severity.ERROR,
    EventType.VGPU_LOST: Severity.ERROR,
    EventType.RESTORE_FAILED: Severity.ERROR,
    EventType.HEALING_STOPPED: Severity.ERROR,
    EventType.AUTOSTART_FAILED: Severity.ERROR,
    EventType.PLANNED_CHANGE_FAILED: Severity.WARNING,
    EventType.READ_ONLY_BEGIN: Severity.ERROR,
    EventType.GAP: Severity.WARNING,
    EventType.LIBVIRT_LOST: Severity.WARNING,
    EventType.GPU_XID: Severity.WARNING,
    EventType.LICENSE_ENDS: Severity.WARNING,
    EventType.GUEST_HELPER_BAD: Severity.WARNING,
    EventType.ECC: Severity.WARNING,
    EventType.ROW_REMAP: Severity.WARNING,
    EventType.THROTTLE_BEGIN: Severity.WARNING,
    EventType.DRIFT_BEGIN: Severity.WARNING,
    EventType.LEAK: Severity.WARNING,
    EventType.PROBLEM_BEGIN: Severity.WARNING,
    EventType.HISTORY_PROBLEM: Severity.WARNING,
    EventType.STUCK_BEGIN: Severity.WARNING,
}
"""The usual severity of an event; `info` for those that are not here."""

VM_STATE_TYPES = frozenset(
    {
        EventType.VM_DEFINED,
        EventType.VM_STARTED,
        EventType.VM_STOPPED,
        EventType.VM_CRASHED,
        EventType.VM_UNDEFINED,
    }
)
"""The events about a VM's life: the last one of a VM is its state."""


class Event(Value):
    """One event.

    `id`: `BOOT-NUMBER`; BOOT is new with each run of the agent, NUMBER counts its events from 1. `time`: when it
    happened, in UTC, RFC 3339 with milliseconds. `vm` is the VM's name, `gpu` a PCI address, `vgpu` the index of a
    vGPU in its VM, or without a VM its carrier. `reason`: libvirt's word or the driver's text. `operation`: the id
    of the operation that it belongs to. `count`: how many steps this event represents, of which it is the last.
    """

    id: str
    type: EventType
    severity: Severity
    time: str
    vm: str | None = None
    vm_uuid: str | None = None
    gpu: str | None = None
    vgpu: str | None = None
    reason: str | None = None
    operation: str | None = None
    count: int = 1


class Sink(Value):
    """Where the agent delivers events: host.yaml's `agent: notify:`. Either `program` or `url` is set.

    `program`: the absolute path of a program that gets each event as JSON on stdin. `url`: an https address that gets
    it by POST, signed with the key in `secret_file`. `types`: the events that it gets; empty for all.
    """

    program: str | None = None
    url: str | None = None
    secret_file: str | None = None
    types: tuple[EventType, ...] = ()
