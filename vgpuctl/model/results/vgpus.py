# SPDX-License-Identifier: Apache-2.0
"""vGPUs: the `data` of create-vgpu, ensure-vgpu, delete-vgpu and list-vgpus, and a vGPU in other results."""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.model.gpu import Backend, Ownership
from vgpuctl.model.results.fields import ABSENT, Absent
from vgpuctl.value import Value


class VgpuResult(Value):
    """A carrier that is in use: by a device (`present`), by a VM's record, or by a claim.

    `carrier`: the mdev's UUID, or the address of the function. `reason`: why it is leaked. `name`: the name in
    host.yaml of a vGPU without a VM; `vm` is then the VM that refers to it. `placement_id`: its current or reserved
    placement on a mixed-size GPU. `gpu_instance_id`: its GPU instance with MIG. Both are null if the driver does not
    report them. `companions`: the other functions of the slot, such as audio, that are passed through with a GPU.
    `attached`: whether the running VM has it; false if another program took it out of the VM's definition, null while
    the VM is off or if it has none. `other_vms`: other VMs that name this device too, such as a clone of its VM.
    """

    carrier: str
    profile: str | None
    gpu: str
    function: str
    backend: Backend | None
    framebuffer_mib: int | None
    vm: str | None
    ownership: Ownership
    present: bool
    reason: str | None
    name: str | None
    placement_id: int | None
    gpu_instance_id: int | None
    companions: tuple[str, ...]
    attached: bool | None
    other_vms: tuple[str, ...]


class NamedVgpuResult(VgpuResult):
    """A vGPU without a VM. `hostdev`: the element for a VM's definition; `usage`: how a VM gets it."""

    hostdev: str
    usage: tuple[str, ...]


class ListedVgpuResult(VgpuResult):
    """Any vGPU. `owner` and `labels` are its VM's.

    `hostdev` is null and `usage` empty except for a vGPU of host.yaml: see `NamedVgpuResult`.
    """

    hostdev: str | None
    usage: tuple[str, ...]
    owner: str | None
    labels: Mapping[str, str]


class EnsuredVgpuResult(VgpuResult):
    """A vGPU without a VM that was ensured. `before` and `after` are null if it does not exist.

    `hostdev` and `usage` as in `NamedVgpuResult`, unless it was removed.
    """

    hostdev: str | Absent = ABSENT
    usage: tuple[str, ...] | Absent = ABSENT
    before: NamedVgpuResult | None = None
    after: NamedVgpuResult | None = None


class AbsentVgpuResult(Value):
    """A vGPU without a VM that does not exist, as requested."""

    name: str
    present: bool = False
    before: None = None
    after: None = None
