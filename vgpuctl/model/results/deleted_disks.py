# SPDX-License-Identifier: Apache-2.0
"""Results about disks in the bin."""

from __future__ import annotations

from vgpuctl.value import Value


class DeletedDiskResult(Value):
    """A disk in the bin. `disk`: the name of its volume before; `account`: who deleted it, of VM `vm`.

    `capacity_bytes`: the size that a guest saw, null for a cloud-init seed; `allocated_bytes`: the space that it takes.
    `purge_at`: from then on, `expired`, the host agent deletes it for good. Times are in UTC.
    """

    id: str
    vm: str
    vm_uuid: str
    account: str
    pool: str
    disk: str
    path: str
    capacity_bytes: int | None
    allocated_bytes: int | None
    deleted_at: str
    purge_at: str
    expired: bool


class RestoredDiskResult(Value):
    """A disk that was in the bin. `path`: where it is, or would be in a dry run."""

    id: str
    vm: str
    vm_uuid: str
    pool: str
    disk: str
    path: str


class PurgedResult(Value):
    """The disks that were deleted for good, or would be in a dry run."""

    disks: tuple[DeletedDiskResult, ...]
