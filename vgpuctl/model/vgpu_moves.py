# SPDX-License-Identifier: Apache-2.0
"""What NVML reports about moving vGPUs between hosts."""

from __future__ import annotations

from vgpuctl.value import Value


class NvmlMovableVgpu(Value):
    """A vGPU that a VM uses, for its move to another host. NVML names no VF; `mdev_uuid` None: it is no mdev.

    `state_bytes`: how much its device would send now. `metadata`: NVML's description of it, base64.
    """

    vm_uuid: str | None
    mdev_uuid: str | None
    type_id: int | None
    state_bytes: int | None
    metadata: str | None


class NvmlMigration(Value):
    """How fast a GPU's driver reads and writes the state of its vGPUs, and those that VMs use.

    `streams`: it reads some of it while the VM runs.
    """

    read_mb_per_second: int | None = None
    write_mb_per_second: int | None = None
    streams: bool | None = None
    vgpus: tuple[NvmlMovableVgpu, ...] = ()


class NvmlPairing(Value):
    """Whether a GPU takes a vGPU of another host: alive, or saved. `limits`: host-driver, guest-driver, gpu, other."""

    live: bool
    saved: bool
    limits: tuple[str, ...]
