# SPDX-License-Identifier: Apache-2.0
"""Whether the vGPUs of a running VM can move to another host, how much they send, and whether a GPU takes them.

What a driver itself says comes first: the kernel shows for each device that VFIO has whether its driver can be asked
for its state (/sys/kernel/debug/vfio, with CONFIG_VFIO_DEBUGFS from Linux 6.8 on; the file `features` from 6.18 on).
Only root may read that, and Debian's kernels do not have it: then the facts of backends and makers count.

NVML names no VF. So a vGPU on a VF is recognised by its VM and its type, and of several alike on one GPU the next one
is taken: what they have to send together is right in any case.

Source: drivers/vfio/debugfs.c; Documentation/ABI/testing/debugfs-vfio.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.backends import backend_for
from vgpuctl.backends.base import Movability
from vgpuctl.model.gpu import Gpu, Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_moves import NvmlMigration, NvmlMovableVgpu
from vgpuctl.model.vm import Vm
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

VFIO_DEBUG = "/sys/kernel/debug/vfio"
_STOP_COPY = "stop-copy"
_BYTES_PER_MB = 1_000_000


class VgpuMigrationFacts(Value):
    """What this host knows of one vGPU of a running VM. None: not known.

    `can_migrate`: its driver can stop it, read its state and write that on another host. `why_not`: why it cannot.
    `state_bytes`: how much its device has to send now. `read_bytes_per_second`: how fast its driver reads that.
    `metadata`: NVML's description of the vGPU, base64, which that of the other host compares with its GPUs. `fix`: what
    on this host makes it movable.
    """

    can_migrate: bool | None = None
    why_not: str | None = None
    state_bytes: int | None = None
    read_bytes_per_second: int | None = None
    metadata: str | None = None
    fix: str | None = None


def read_vgpu_migration(host: Host, snapshot: Snapshot, vm: Vm) -> Mapping[str, VgpuMigrationFacts]:
    """Return what is known of each vGPU of a VM, by carrier."""
    facts: dict[str, VgpuMigrationFacts] = {}
    by_gpu: dict[str, NvmlMigration] = {}
    taken: set[int] = set()
    for vgpu in snapshot.vgpus:
        if vgpu.vm_uuid != vm.uuid:
            continue
        if vgpu.gpu not in by_gpu:
            by_gpu[vgpu.gpu] = host.nvml.migration(vgpu.gpu) or NvmlMigration()
        of_gpu = by_gpu[vgpu.gpu]
        movable = _pick(of_gpu, vgpu, vm, taken)
        known = _find_movability(host, snapshot.gpu(vgpu.gpu), vgpu, vm)
        facts[vgpu.carrier] = VgpuMigrationFacts(
            can_migrate=known.can,
            why_not=known.why_not,
            fix=known.fix,
            state_bytes=None if movable is None else movable.state_bytes,
            read_bytes_per_second=None if movable is None else _bytes_per_second(of_gpu.read_mb_per_second),
            metadata=None if movable is None else movable.metadata,
        )
    return facts


def read_write_speed(host: Host, gpu: str) -> int | None:
    """Return how many bytes a second a GPU's driver takes of a vGPU's state; None: not known."""
    migration = host.nvml.migration(gpu)
    return None if migration is None else _bytes_per_second(migration.write_mb_per_second)


def params_of(vm: Vm, carrier: str) -> str:
    """Return the parameters that a VM's record has for one of its vGPUs."""
    vgpus = () if vm.record is None else vm.record.vgpus
    return next((v.params for v in vgpus if v.carrier == carrier), "")


def _find_movability(host: Host, gpu: Gpu | None, vgpu: Vgpu, vm: Vm) -> Movability:
    params = params_of(vm, vgpu.carrier)
    known = Movability() if gpu is None else backend_for(vgpu.backend).movability(gpu, vgpu.function, params)
    features = _read_features(host, vgpu.carrier)
    if features is None or (known.can is False and params):
        return known
    if _STOP_COPY in features:
        return Movability(True)
    why_not = known.why_not or f"its driver cannot be asked for its state ({VFIO_DEBUG}/{vgpu.carrier})"
    return Movability(False, why_not, known.fix)


def _read_features(host: Host, carrier: str) -> frozenset[str] | None:
    """Return what VFIO's driver of a device can do for its migration; None where the kernel does not show it."""
    directory = f"{VFIO_DEBUG}/{carrier}"
    try:
        if "migration" not in host.sysfs.listdir(directory):
            return frozenset()
        names = host.sysfs.listdir(f"{directory}/migration")
        if "features" not in names:
            return frozenset({_STOP_COPY})  # before 6.18: a driver that has the directory can do at least that
        return frozenset(host.sysfs.read(f"{directory}/migration/features").split())
    except OSError:
        return None


def _pick(of_gpu: NvmlMigration, vgpu: Vgpu, vm: Vm, taken: set[int]) -> NvmlMovableVgpu | None:
    """Return NVML's entry for a vGPU, which no other one of the VM has got."""
    for entry in of_gpu.vgpus:
        is_same = entry.mdev_uuid == vgpu.carrier
        if entry.mdev_uuid is None:
            type_id = None if vgpu.type_id is None else vgpu.type_id.rpartition("-")[2]
            is_same = entry.vm_uuid == vm.uuid and type_id in (None, str(entry.type_id))
        if is_same and id(entry) not in taken:
            taken.add(id(entry))
            return entry
    return None


def _bytes_per_second(mb_per_second: int | None) -> int | None:
    return None if mb_per_second is None else mb_per_second * _BYTES_PER_MB
