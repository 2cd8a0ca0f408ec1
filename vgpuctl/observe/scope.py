# SPDX-License-Identifier: Apache-2.0
"""How much of the host a snapshot reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.gpu import Gpu
    from vgpuctl.model.vm import HostVgpu


class ReadScope(Value):
    """How much to read.

    `types`: also the vGPU types and how many can be created now (thousands of files on a large mdev host).
    `every_function`: also SR-IOV functions of other classes and endpoints on vfio-pci or no driver (`--all`).
    `models`: also product names for people.
    `gpu_addresses`: only these GPUs.
    `type_ids`: availability files of only these types.
    `cached_gpus`: GPUs read a moment ago. What does not change (names, types, NVML facts) is taken from them. Used for
    snapshots under the host lock, together with `type_ids`: these take milliseconds.
    `profiles`: availability of only those types that one of these texts names.
    `functions`: only these VFs of a GPU in `cached_gpus` with NVIDIA's vendor-specific VFIO. A caller that creates a
    device needs the current state of its own VF; for the others the claims are enough, without mixed sizes and MIG. A
    card may have 48 VFs.
    `carriers`: only the claims on these.
    `named`: the vGPUs of host.yaml, read a moment ago; the file is then not read, which saves most of a short command's
    time. None: the file is read. A caller that neither places VMs nor shows GPUs, such as libvirt's hook mostly, passes
    an empty tuple: the claims on these vGPUs are enough for it.
    `vm`: of the devices, only the GPUs of the VM of this name or uuid, and the claims there. All VMs are read.
    `nvlinks`: also which GPUs NVLink connects, in order to choose several for one VM.
    """

    types: bool = False
    every_function: bool = False
    models: bool = True
    gpu_addresses: frozenset[str] | None = None
    type_ids: frozenset[str] | None = None
    cached_gpus: tuple[Gpu, ...] = ()
    profiles: frozenset[str] | None = None
    functions: frozenset[str] | None = None
    carriers: frozenset[str] | None = None
    cached_vgpus: tuple[HostVgpu, ...] | None = None
    nvlinks: bool = False
    vm: str | None = None
