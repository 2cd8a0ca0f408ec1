# SPDX-License-Identifier: Apache-2.0
"""The libvirt constants that vgpuctl uses; a test compares each with the installed binding.

They are part of libvirt's public interface (libvirt-domain.h, libvirt-storage.h, virterror.h) and never change, so the
modules that use them need not load libvirt.
"""

from __future__ import annotations

from vgpuctl.model.port_values import DomainEventKind
from vgpuctl.model.vm import VmState

VIR_ERR_INTERNAL_ERROR = 1
VIR_ERR_NO_SUPPORT = 3
VIR_ERR_INVALID_CONN = 6
VIR_ERR_INVALID_ARG = 8
VIR_ERR_OPERATION_FAILED = 9
VIR_ERR_DOM_EXIST = 28
VIR_ERR_OPERATION_DENIED = 29
VIR_ERR_SYSTEM_ERROR = 38
VIR_ERR_RPC = 39
VIR_ERR_NO_DOMAIN = 42
VIR_ERR_NO_NETWORK = 43
VIR_ERR_AUTH_FAILED = 45
VIR_ERR_NO_STORAGE_POOL = 49
VIR_ERR_NO_STORAGE_VOL = 50
VIR_ERR_OPERATION_INVALID = 55
VIR_ERR_CONFIG_UNSUPPORTED = 67
VIR_ERR_OPERATION_TIMEOUT = 68
VIR_ERR_ARGUMENT_UNSUPPORTED = 74
VIR_ERR_AUTH_CANCELLED = 79
VIR_ERR_NO_DOMAIN_METADATA = 80
VIR_ERR_OPERATION_UNSUPPORTED = 84
VIR_ERR_AGENT_UNRESPONSIVE = 86
VIR_ERR_ACCESS_DENIED = 88
VIR_ERR_STORAGE_VOL_EXIST = 90
VIR_ERR_XML_INVALID_SCHEMA = 92
VIR_ERR_AUTH_UNAVAILABLE = 94
VIR_ERR_AGENT_UNSYNCED = 97
VIR_ERR_DEVICE_MISSING = 99

VIR_DOMAIN_XML_SECURE = 1
VIR_DOMAIN_XML_INACTIVE = 2
VIR_DOMAIN_XML_MIGRATABLE = 8
VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE = 0
VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT = 1
VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_ARP = 2
VIR_DOMAIN_DEFINE_VALIDATE = 1
VIR_DOMAIN_OPEN_GRAPHICS_SKIPAUTH = 1
VIR_DOMAIN_METADATA_ELEMENT = 2
VIR_DOMAIN_AFFECT_LIVE = 1
VIR_DOMAIN_AFFECT_CONFIG = 2
VIR_DOMAIN_BLOCK_RESIZE_BYTES = 1
VIR_DOMAIN_UNDEFINE_MANAGED_SAVE = 1
VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA = 2
VIR_DOMAIN_UNDEFINE_NVRAM = 4
VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA = 16
VIR_DOMAIN_UNDEFINE_TPM = 32

VIR_MIGRATE_LIVE = 1
VIR_MIGRATE_PEER2PEER = 2
VIR_MIGRATE_PERSIST_DEST = 8
VIR_MIGRATE_PAUSED = 32
VIR_MIGRATE_NON_SHARED_DISK = 64
VIR_MIGRATE_NON_SHARED_INC = 128
VIR_MIGRATE_TLS = 1 << 16
VIR_MIGRATE_PARALLEL = 1 << 17
VIR_STORAGE_VOL_DOWNLOAD_SPARSE_STREAM = 1
VIR_STORAGE_VOL_UPLOAD_SPARSE_STREAM = 1
VIR_STREAM_RECV_STOP_AT_HOLE = 1
VIR_DOMAIN_JOB_NONE = 0
VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT = 5

VIR_DOMAIN_EVENT_ID_LIFECYCLE = 0
VIR_DOMAIN_EVENT_ID_REBOOT = 1
VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED = 15
VIR_DOMAIN_EVENT_ID_DEVICE_ADDED = 19
VIR_DOMAIN_EVENT_ID_DEVICE_REMOVAL_FAILED = 22
VIR_DOMAIN_EVENT_ID_METADATA_CHANGE = 23
VIR_DOMAIN_EVENT_DEFINED = 0
VIR_DOMAIN_EVENT_UNDEFINED = 1
VIR_DOMAIN_EVENT_STARTED = 2
VIR_DOMAIN_EVENT_SUSPENDED = 3
VIR_DOMAIN_EVENT_RESUMED = 4
VIR_DOMAIN_EVENT_STOPPED = 5
VIR_DOMAIN_EVENT_SHUTDOWN = 6
VIR_DOMAIN_EVENT_PMSUSPENDED = 7
VIR_DOMAIN_EVENT_CRASHED = 8
VIR_CONNECT_CLOSE_REASON_ERROR = 0
VIR_CONNECT_CLOSE_REASON_EOF = 1
VIR_CONNECT_CLOSE_REASON_KEEPALIVE = 2
VIR_CONNECT_CLOSE_REASON_CLIENT = 3

VIR_DOMAIN_RUNNING = 1
VIR_DOMAIN_BLOCKED = 2
VIR_DOMAIN_PAUSED = 3
VIR_DOMAIN_SHUTDOWN = 4
VIR_DOMAIN_SHUTOFF = 5
VIR_DOMAIN_CRASHED = 6
VIR_DOMAIN_PMSUSPENDED = 7

VM_STATES = {
    VIR_DOMAIN_RUNNING: VmState.RUNNING,
    VIR_DOMAIN_BLOCKED: VmState.RUNNING,
    VIR_DOMAIN_PAUSED: VmState.PAUSED,
    VIR_DOMAIN_SHUTDOWN: VmState.SHUTTING_DOWN,
    VIR_DOMAIN_SHUTOFF: VmState.STOPPED,
    VIR_DOMAIN_CRASHED: VmState.CRASHED,
    VIR_DOMAIN_PMSUSPENDED: VmState.PMSUSPENDED,
}

EVENT_KINDS = {
    VIR_DOMAIN_EVENT_DEFINED: DomainEventKind.DEFINED,
    VIR_DOMAIN_EVENT_UNDEFINED: DomainEventKind.UNDEFINED,
    VIR_DOMAIN_EVENT_STARTED: DomainEventKind.STARTED,
    VIR_DOMAIN_EVENT_SUSPENDED: DomainEventKind.SUSPENDED,
    VIR_DOMAIN_EVENT_RESUMED: DomainEventKind.RESUMED,
    VIR_DOMAIN_EVENT_STOPPED: DomainEventKind.STOPPED,
    VIR_DOMAIN_EVENT_SHUTDOWN: DomainEventKind.SHUTDOWN,
    VIR_DOMAIN_EVENT_PMSUSPENDED: DomainEventKind.PMSUSPENDED,
    VIR_DOMAIN_EVENT_CRASHED: DomainEventKind.CRASHED,
}
EVENT_REASONS = {
    DomainEventKind.DEFINED: ("added", "updated", "renamed", "from snapshot"),
    DomainEventKind.UNDEFINED: ("removed", "renamed"),
    DomainEventKind.STARTED: ("booted", "migrated", "restored", "from snapshot", "wakeup", "recovered"),
    DomainEventKind.SUSPENDED: (
        "paused", "migrated", "I/O error", "watchdog", "restored", "from snapshot", "API error", "post-copy",
        "post-copy failed", "guest shutdown",
    ),
    DomainEventKind.RESUMED: ("unpaused", "migrated", "from snapshot", "post-copy", "post-copy failed"),
    DomainEventKind.STOPPED: (
        "shutdown", "destroyed", "crashed", "migrated", "saved", "failed", "from snapshot", "recovered",
    ),
    DomainEventKind.SHUTDOWN: ("finished", "guest", "host"),
    DomainEventKind.PMSUSPENDED: ("memory", "disk"),
    DomainEventKind.CRASHED: ("panicked", "crashloaded"),
}  # fmt: skip
"""The words for the numbers of an event's detail (virDomainEvent…DetailType in libvirt-domain.h), in their order."""

SHUTOFF_REASONS = (
    None, "shutdown", "destroyed", "crashed", "migrated", "saved", "failed", "from snapshot", "daemon",
)  # fmt: skip
"""The words for the numbers of virDomainShutoffReason, in their order; 0 is unknown."""


def stop_reason(state: int, detail: int) -> str | None:
    """Return the word for why a domain is off; None for other states and for a reason that is not known."""
    is_known = state == VIR_DOMAIN_SHUTOFF and 0 <= detail < len(SHUTOFF_REASONS)
    return SHUTOFF_REASONS[detail] if is_known else None


CLOSE_REASONS = {
    VIR_CONNECT_CLOSE_REASON_ERROR: "an error on the connection",
    VIR_CONNECT_CLOSE_REASON_EOF: "libvirt's daemon ended",
    VIR_CONNECT_CLOSE_REASON_KEEPALIVE: "libvirt's daemon does not answer",
    VIR_CONNECT_CLOSE_REASON_CLIENT: "this process closed the connection",
}

PERMISSION_ERRORS = frozenset(
    {
        VIR_ERR_OPERATION_DENIED,
        VIR_ERR_AUTH_FAILED,
        VIR_ERR_AUTH_CANCELLED,
        VIR_ERR_AUTH_UNAVAILABLE,
        VIR_ERR_ACCESS_DENIED,
    }
)
"""The caller lacks a permission, whatever the call."""

ERROR_HINTS = {
    VIR_ERR_OPERATION_TIMEOUT: "another job is using the VM; try again",
    VIR_ERR_CONFIG_UNSUPPORTED: "'virt-host-validate qemu' shows what the host lacks",
    VIR_ERR_XML_INVALID_SCHEMA: "this libvirt is too old for the definition; --print-xml shows it",
    VIR_ERR_DEVICE_MISSING: "a device of the VM is missing; 'vgpuctl start-vm' creates it again",
}
