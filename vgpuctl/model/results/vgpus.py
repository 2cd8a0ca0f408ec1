# SPDX-License-Identifier: Apache-2.0
"""vGPUs: the `data` of create-vgpu, ensure-vgpu, delete-vgpu and list-vgpus, and what other commands say of a vGPU."""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.model.gpu import Backend, Ownership
from vgpuctl.model.results.fields import ABSENT, Absent
from vgpuctl.value import Value


class VgpuResult(Value):
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


class NamedVgpuResult(VgpuResult):
    """A vGPU without a VM. `hostdev`: the element for a VM's definition; `usage`: how a VM gets it."""

    hostdev: str
    usage: tuple[str, ...]


class ListedVgpuResult(VgpuResult):
    """Any vGPU. `owner` and `labels` are its VM's.

    `hostdev`, null, and `usage`, empty, but for one that host.yaml keeps: see `NamedVgpuResult`.
    """

    hostdev: str | None
    usage: tuple[str, ...]
    owner: str | None
    labels: Mapping[str, str]


class EnsuredVgpuResult(VgpuResult):
    """A vGPU without a VM that was ensured. `before` and `after` are null where it is not there.

    `hostdev` and `usage` as in `NamedVgpuResult`, unless it was removed.
    """

    hostdev: str | Absent = ABSENT
    usage: tuple[str, ...] | Absent = ABSENT
    before: NamedVgpuResult | None = None
    after: NamedVgpuResult | None = None


class AbsentVgpuResult(Value):
    """A vGPU without a VM that is not there and was not to be."""

    name: str
    present: bool = False
    before: None = None
    after: None = None
