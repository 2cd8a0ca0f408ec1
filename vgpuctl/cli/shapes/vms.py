# SPDX-License-Identifier: Apache-2.0
"""VMs: the `data` of the commands that show or change them."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from vgpuctl.cli.shapes.disks import DiskShape
from vgpuctl.cli.shapes.reach import GuestShape, StateWord
from vgpuctl.cli.shapes.vgpus import VgpuShape
from vgpuctl.cli.shapes.work import SourceShape, WorkShape

VmOwnerWord = Literal["managed", "unmanaged", "copy"]


class VmRowShape(TypedDict):
    """A VM in a list. `reserve` is null for one without a record.

    A vGPU that is reserved only while the VM runs is not `present` while it is off; `gpu` and `function` are its last.
    """

    name: str
    uuid: str
    state: StateWord
    owner: VmOwnerWord
    memory_mib: int
    vcpus: int
    reserve: Literal["always", "running"] | None
    vgpus: list[VgpuShape]


class VmShape(VmRowShape):
    """A VM. `record` is how far vgpuctl got with it, null for one it did not make.

    `spread_group`: the group whose VMs are on different GPUs, null for none.
    """

    record: Literal["making", "ready", "removing"] | None
    spread_group: str | None
    firmware: str
    networks: list[str]
    mac_addresses: list[str]
    disks: list[DiskShape]


class ChangedVmShape(WorkShape):
    """A VM that was made, changed or removed, or would be in a dry run.

    `uuid` is null when there was no VM to remove. In a dry run `after` is what would be.
    """

    name: NotRequired[str]
    uuid: NotRequired[str | None]
    state: StateWord
    vgpus: NotRequired[list[VgpuShape]]
    disks: NotRequired[list[DiskShape]]
    guest: NotRequired[GuestShape]
    sources: NotRequired[dict[str, SourceShape]]
    before: NotRequired[dict[str, object] | None]
    after: NotRequired[dict[str, object] | None]


class ManyVmShape(TypedDict):
    """One of several VMs: as it is, or with the state `absent` as it would be. `changed`: this command made it."""

    name: str
    uuid: str
    state: StateWord
    changed: bool
    vgpus: list[VgpuShape]
    owner: NotRequired[VmOwnerWord]
    record: NotRequired[Literal["making", "ready", "removing"] | None]
    reserve: NotRequired[Literal["always", "running"] | None]
    spread_group: NotRequired[str | None]
    memory_mib: NotRequired[int]
    vcpus: NotRequired[int]
    disks: NotRequired[list[DiskShape]]


class FailedVmShape(TypedDict):
    """One of several VMs that could not be made."""

    name: str
    code: str
    message: str
    hint: str | None


class ManyVmsShape(WorkShape):
    """What --count asks for: every VM in the order of the names.

    When one fails there is an error instead, whose `facts` hold the same `vms` and `failed`.
    """

    vms: list[ManyVmShape]
    failed: list[FailedVmShape]
    sources: NotRequired[dict[str, SourceShape]]


class AttachedVmShape(WorkShape, VmShape):
    """A VM whose vGPUs or disk changed. In a dry run the VM is as it is now, after set-profile as it would be."""


class XmlShape(TypedDict):
    """The domain XML that create-vm --print-xml would define."""

    xml: str
