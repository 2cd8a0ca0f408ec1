# SPDX-License-Identifier: Apache-2.0
"""All ports of one host together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Protocol

from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.snapshot import Snapshot
    from vgpuctl.ports.devices import Nvml, Sysfs, UsageHistory, UsageReader, VendorCommands
    from vgpuctl.ports.guests import DomainJoins, DriverDiscs, GuestAgent, GuestChannels, GuestHelpers, GuestReports
    from vgpuctl.ports.libvirt import DomainEvents, Hypervisor, Storage, VolumeBin
    from vgpuctl.ports.run_directory import Claims, Operations, OperationsState
    from vgpuctl.ports.system import (
        AuditLog,
        Clock,
        HostFile,
        ImageFolders,
        KernelMessages,
        Processes,
        Scratch,
        System,
        SystemLog,
        UnfinishedFiles,
    )


class Snapshots(Protocol):
    """Keeps the snapshots of a host for the next reader."""

    def get(self, scope: Hashable, state: OperationsState, observe: Callable[[], Snapshot]) -> Snapshot:
        """Return a snapshot of this scope: one of before, or the one that `observe` reads now."""


class Host(Value):
    """One host. `read_only_reason` says why commands that change the host are refused; None when they are allowed.

    `unprivileged_user` is the user who runs this without root, which a change needs; None for root.

    `host_file`, `vendor_commands`, `system_log`, `unfinished_files` and `volume_bin` are None where vgpuctl cannot
    reach host.yaml, the drivers' commands, the kernel's log, unfinished files or deleted disks (a captured tree).
    `usage` and `usage_history` are None where the use of GPUs cannot be read (a captured tree).
    `guest_reports`, `guest_channels`: what helpers in guests report, and their channels; `guest_agent`: the QEMU guest
    agents; `driver_discs`, `domain_joins`: drivers and blobs for guests; `image_folders`: for images of a controller;
    None as above.
    `guest_helpers`: None in every process but the agent, which holds the channels.
    `domain_events` and `kernel_messages` tell the agent what happens; None where nothing can happen. `given_files`: the
    texts of files that a caller elsewhere sent, by path; None: the caller's files are on this machine. `snapshots`:
    keeps snapshots for readers in the agent; None: each call reads the host again, as whatever changes it must. `close`
    closes what the ports keep open, None where they keep nothing; none of them can be used afterwards.
    """

    name: str
    sysfs: Sysfs
    nvml: Nvml
    hypervisor: Hypervisor
    storage: Storage
    processes: Processes
    operations: Operations
    claims: Claims
    clock: Clock
    machine_id: str
    new_uuid: Callable[[], str]
    scratch: Scratch | None = None
    read_only_reason: str | None = None
    unprivileged_user: str | None = None
    audit_log: AuditLog | None = None
    system: System | None = None
    host_file: HostFile | None = None
    vendor_commands: VendorCommands | None = None
    system_log: SystemLog | None = None
    unfinished_files: UnfinishedFiles | None = None
    domain_events: DomainEvents | None = None
    volume_bin: VolumeBin | None = None
    kernel_messages: KernelMessages | None = None
    usage: UsageReader | None = None
    usage_history: UsageHistory | None = None
    guest_reports: GuestReports | None = None
    guest_channels: GuestChannels | None = None
    guest_helpers: GuestHelpers | None = None
    driver_discs: DriverDiscs | None = None
    domain_joins: DomainJoins | None = None
    image_folders: ImageFolders | None = None
    guest_agent: GuestAgent | None = None
    given_files: Mapping[str, str] | None = None
    snapshots: Snapshots | None = None
    close: Callable[[], None] | None = None


def for_another_operation(host: Host) -> Host:
    """Return the same host for work that is an operation of its own, such as one of several threads."""
    operations = host.operations.another()
    return replace(host, operations=operations, claims=host.claims.of_operation(operations))
