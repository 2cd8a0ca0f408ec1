# SPDX-License-Identifier: Apache-2.0
"""A VM that moves to another host: the mark in its record, what libvirt is asked for, and how far it is."""

from __future__ import annotations

from enum import StrEnum

from vgpuctl.value import Value


class MigrationRole(StrEnum):
    """What one host's record of a VM says about its move.

    `leaving`: on the source, until the target has it. `left`: on the source, once it is certain that the target has all
    of it: when all disks of a VM that is off were sent, and before one that is paused is forced off.
    `arriving`: on the target, made ready for it, and no memory has come. `incoming`: in the definition of a VM whose
    memory is on its way to the target; libvirt may start that one.
    `arrived`: all of it has come to the target; libvirt itself writes this when nothing is left to send (its flag
    PERSIST_DEST). The VM is paused then, until the source says that it does not run there.
    """

    LEAVING = "leaving"
    LEFT = "left"
    ARRIVING = "arriving"
    INCOMING = "incoming"
    ARRIVED = "arrived"


SOURCE_ROLES = frozenset({MigrationRole.LEAVING, MigrationRole.LEFT})
"""Those of the host from which a VM moves."""


class MigrationMark(Value):
    """A move, as both hosts record it. `id`: the same on both. `peer`, `peer_machine_id`: the other host.

    `copies_disks`: the target has files of its own, and those of the source go when the target has the VM.
    `is_offline`: the VM is off while it moves; whoever copies its disks says when all have come.
    """

    id: str
    role: MigrationRole
    peer: str
    peer_machine_id: str
    copies_disks: bool = False
    is_offline: bool = False

    @property
    def leaves(self) -> bool:
        """Whether the VM moves from this host to the other one."""
        return self.role in SOURCE_ROLES


class MigrationRequest(Value):
    """What libvirt is asked for. The VM is paused on the target when all has come, and its source stays defined.

    `target_uri`: the target's libvirt, as the source reaches it. `live_xml`: the definition with which it comes to the
    target, `config_xml`: the one that it keeps there; both have secrets. `migrate_uri`: where memory is sent to, None:
    the target's libvirt says that. `copied_disks`: names of disks in the guest (vda) whose content is sent,
    too; with `copies_top_only` without that of their base images, which the target has. `tls`: memory and disks are
    encrypted, with the certificates that both hosts have. `max_downtime_ms`: the VM stands still for at most so long;
    None: as QEMU decides, which is 300. `parallel`: connections at once for memory.
    """

    target_uri: str
    live_xml: str
    config_xml: str
    migrate_uri: str | None = None
    copied_disks: tuple[str, ...] = ()
    copies_top_only: bool = False
    tls: bool = True
    max_downtime_ms: int | None = None
    bandwidth_mib_s: int | None = None
    parallel: int | None = None


class MigrationProgress(Value):
    """How far a running migration is. None: QEMU does not say.

    `memory_remaining_bytes` grows again while the guest writes. `device_bytes`: the state of devices that was sent.
    `expected_downtime_ms`: how long the VM would stand still if it were switched over now.
    """

    elapsed_ms: int | None = None
    memory_total_bytes: int | None = None
    memory_remaining_bytes: int | None = None
    disk_total_bytes: int | None = None
    disk_remaining_bytes: int | None = None
    dirty_bytes_per_second: int | None = None
    bandwidth_bytes_per_second: int | None = None
    device_bytes: int | None = None
    expected_downtime_ms: int | None = None
    iteration: int | None = None
