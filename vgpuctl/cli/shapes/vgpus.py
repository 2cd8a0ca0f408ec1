# SPDX-License-Identifier: Apache-2.0
"""vGPUs: the `data` of create-vgpu, ensure-vgpu, delete-vgpu and list-vgpus, and what other commands say of a vGPU."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from vgpuctl.cli.shapes.work import WorkShape

OwnerWord = Literal["managed", "unmanaged", "leaked"]
BackendWord = Literal["mdev-pf", "mdev-vf", "vendor-vf", "sriov-vf", "passthrough"]


class VgpuShape(TypedDict):
    """A carrier that is taken: by a device (`present`), by a VM's promise, or by a claim.

    `carrier` is the mdev's UUID, or the address of the function; `reason` says why it is leaked. `name` is that of a
    vGPU which host.yaml keeps without a VM; then `vm` is the VM that refers to it. `placement_id` is where it is, or is
    to be, on a mixed-size GPU, `gpu_instance_id` its GPU instance with MIG; null also where the driver does not tell.
    `companions`: the other functions of the slot, such as audio, that go with a GPU that is passed through.
    """

    carrier: str
    profile: str | None
    gpu: str
    function: str
    backend: BackendWord | None
    framebuffer_mib: int | None
    vm: str | None
    owner: OwnerWord
    present: bool
    reason: str | None
    name: str | None
    placement_id: int | None
    gpu_instance_id: int | None
    companions: list[str]


class NamedVgpuShape(VgpuShape):
    """A vGPU without a VM. `hostdev`: the element for a VM's definition; `usage`: how a VM gets it."""

    hostdev: str
    usage: list[str]


class ListedVgpuShape(VgpuShape):
    """Any vGPU. `hostdev`, null, and `usage`, empty, but for one that host.yaml keeps: see `NamedVgpuShape`."""

    hostdev: str | None
    usage: list[str]


class CreatedVgpuShape(WorkShape, NamedVgpuShape):
    """A vGPU without a VM that was made; in a dry run as it would be."""


class DeletedVgpuShape(WorkShape, VgpuShape):
    """A vGPU without a VM that was removed; in a dry run as it is now."""


class EnsuredVgpuShape(WorkShape, VgpuShape):
    """A vGPU without a VM that was ensured. `before` and `after` are null where it is not there.

    `hostdev` and `usage` as in `NamedVgpuShape`, unless it was removed.
    """

    before: dict[str, object] | None
    after: dict[str, object] | None
    hostdev: NotRequired[str]
    usage: NotRequired[list[str]]


class AbsentVgpuShape(WorkShape):
    """A vGPU without a VM that is not there and was not to be."""

    name: str
    present: bool
    before: dict[str, object] | None
    after: dict[str, object] | None
