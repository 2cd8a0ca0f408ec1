# SPDX-License-Identifier: Apache-2.0
"""VMs: the `data` of the commands that show or change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from vgpuctl.model.results.disks import DiskResult, KeptDiskResult
from vgpuctl.model.results.fields import ABSENT, Absent
from vgpuctl.model.results.reach import GuestResult, StateWord
from vgpuctl.model.results.vgpus import VgpuResult
from vgpuctl.model.vm import RecordState
from vgpuctl.value import Value

VmOwnerWord = Literal["managed", "unmanaged", "copy"]
ReserveWord = Annotated[str, "always", "running"]


class SourceResult(Value):
    """A value and where it came from."""

    value: str | int | float | bool | tuple[str, ...] | None
    source: Annotated[str, "command-line", "host.yaml", "default"]


class VmRowResult(Value):
    """A VM in a list. `reserve` is null for one without a record.

    A vGPU that is reserved only while the VM runs is not `present` while it is off; `gpu` and `function` are its last.
    """

    name: str
    uuid: str
    state: StateWord
    owner: VmOwnerWord
    memory_mib: int
    vcpus: int
    reserve: ReserveWord | None
    vgpus: tuple[VgpuResult, ...]


class VmResult(Value):
    """A VM. `record` is how far vgpuctl got with it, null for one it did not make.

    `spread_group`: the group whose VMs are on different GPUs, null for none.
    """

    name: str
    uuid: str
    state: StateWord
    owner: VmOwnerWord
    record: RecordState | None
    memory_mib: int
    vcpus: int
    firmware: str
    networks: tuple[str, ...]
    mac_addresses: tuple[str, ...]
    reserve: ReserveWord | None
    spread_group: str | None
    vgpus: tuple[VgpuResult, ...]
    disks: tuple[DiskResult, ...]


class PlannedVmResult(Value):
    """A VM that libvirt does not show: one that would be made in a dry run, or is gone (`uuid` null: there was none).

    `sources`: where each value of the request came from. `before`, `after`: the VM before and after ensure-vm; in a dry
    run `after` is what would be. `guest`: how the guest is reached, after --wait-for.
    """

    name: str
    uuid: str | None
    state: StateWord
    vgpus: tuple[VgpuResult, ...] = ()
    disks: tuple[DiskResult | KeptDiskResult, ...] = ()
    sources: Mapping[str, SourceResult] | Absent = ABSENT
    before: VmResult | Absent | None = ABSENT
    after: VmResult | PlannedVmResult | Absent | None = ABSENT
    guest: GuestResult | Absent = ABSENT


VmReport = VmResult | PlannedVmResult
"""A VM after a change, as it is or as far as it is known."""


class ChangedVmResult(VmResult):
    """A VM that was made or ensured; the additional fields are those of `PlannedVmResult`."""

    sources: Mapping[str, SourceResult] | Absent = ABSENT
    before: VmResult | Absent | None = ABSENT
    after: VmResult | PlannedVmResult | Absent | None = ABSENT
    guest: GuestResult | Absent = ABSENT


class ManyVmResult(VmResult):
    """One of several VMs as it is. `changed`: this command made it."""

    changed: bool


class NewVmResult(Value):
    """One of several VMs that was made and cannot be shown, or with the state `absent` would be made."""

    name: str
    uuid: str
    state: StateWord
    changed: bool
    vgpus: tuple[VgpuResult, ...]


class FailedVmResult(Value):
    """One of several VMs that could not be made."""

    name: str
    code: str
    message: str
    hint: str | None


class ManyVmsResult(Value):
    """What --count asks for: every VM in the order of the names.

    When one fails there is an error instead, whose `facts` hold the same `vms` and `failed`.
    """

    vms: tuple[ManyVmResult | NewVmResult, ...]
    failed: tuple[FailedVmResult, ...]
    sources: Mapping[str, SourceResult] | Absent = ABSENT


class XmlResult(Value):
    """The domain XML that create-vm --print-xml would define."""

    xml: str
