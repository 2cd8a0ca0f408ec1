# SPDX-License-Identifier: Apache-2.0
"""GPUs, VMs and snapshots as plain values, for tests of code without I/O."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from vgpuctl.model.gpu import Backend, Gpu, GpuFunction, GpuMode, Mdev, Ownership, Vgpu, VgpuType
from vgpuctl.model.port_values import HypervisorStatus, NvmlStatus
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, HostdevRef, ProcessId, RecordState, Vm, VmRecord, VmState
from vgpuctl.observe.ownership import resolve_ownership
from vgpuctl.value import replace

MACHINE = "0123456789abcdef0123456789abcdef"
A4C = VgpuType("468", "GRID A100-4C", "A100-4C", 4096, 10)
A5C = VgpuType("469", "GRID A100-5C", "A100-5C", 5120, 8)
T2Q = VgpuType("nvidia-223", "GRID T4-2Q", "T4-2Q", 2048, 8)
T4Q = VgpuType("nvidia-224", "GRID T4-4Q", "T4-4Q", 4096, 4)
ME = ProcessId(100, 1)


def vm_uuid(number: int) -> str:
    """Return the uuid of test VM `number`."""
    return str(uuid.UUID(int=number))


def a100(address: str = "0000:3b:00.0", types: tuple[VgpuType, ...] = (A4C, A5C), vfs: int = 16, **more: Any) -> Gpu:
    """Return an A100 with vendor-specific VFIO; every VF offers every type."""
    stem = address[:-4]
    functions = tuple(
        GpuFunction(
            f"{stem}{n // 8:02x}.{n % 8}",
            f"/sys/bus/pci/devices/{stem}{n // 8:02x}.{n % 8}",
            driver="nvidia",
            iommu_group=n,
            has_vfio_dev=True,
            available_instances={t.type_id: 1 for t in types},
        )
        for n in range(4, 4 + vfs)
    )
    values: dict[str, Any] = {
        "address": address,
        "path": f"/sys/bus/pci/devices/{address}",
        "model": "NVIDIA A100-PCIE-40GB",
        "driver": "nvidia",
        "backend": Backend.VENDOR_VF,
        "mode": GpuMode.VGPU,
        "vendor_id": "10de",
        "device_id": "20f1",
        "framebuffer_mib": 40960,
        "vfs_total": vfs,
        "vfs_enabled": vfs,
        "functions": functions,
        "types": types,
    }
    return Gpu(**{**values, **more})


def t4(address: str = "0000:5e:00.0", available: dict[str, int] | None = None, **more: Any) -> Gpu:
    """Return a T4 with mdevs on the PF."""
    numbers = {T2Q.type_id: 8, T4Q.type_id: 4} if available is None else available
    own = GpuFunction(
        address, f"/sys/bus/pci/devices/{address}", driver="nvidia", iommu_group=3, available_instances=numbers
    )
    values: dict[str, Any] = {
        "address": address,
        "path": own.path,
        "model": "Tesla T4",
        "driver": "nvidia",
        "backend": Backend.MDEV_PF,
        "mode": GpuMode.VGPU,
        "vendor_id": "10de",
        "device_id": "1eb8",
        "functions": (own,),
        "types": (T2Q, T4Q),
    }
    return Gpu(**{**values, **more})


def changed(gpu: Gpu, number: int, **changes: Any) -> Gpu:
    """Return the GPU with changes to its function `number`."""
    functions = list(gpu.functions)
    functions[number] = replace(functions[number], **changes)
    return replace(gpu, functions=tuple(functions))


def with_mdevs(gpu: Gpu, number: int, *mdevs: tuple[str, str]) -> Gpu:
    """Return the GPU with (uuid, type id) on its function `number`."""
    return changed(gpu, number, mdevs=tuple(Mdev(u, t) for u, t in mdevs))


def taken(gpu: Gpu, wanted: VgpuType | None, number: int = 0, **more: Any) -> Vgpu:
    """Return a present vGPU on function `number`, assigned to test VM `number`."""
    function = gpu.functions[number].address
    values: dict[str, Any] = {
        "carrier": function,
        "gpu": gpu.address,
        "function": function,
        "owner": Ownership.MANAGED,
        "present": True,
        "backend": gpu.backend,
        "type_id": wanted.type_id if wanted else None,
        "profile": wanted.profile if wanted else None,
        "framebuffer_mib": wanted.framebuffer_mib if wanted else None,
        "vm": f"vdi-{number:03d}",
        "vm_uuid": vm_uuid(number),
    }
    return Vgpu(**{**values, **more})


def assigned(gpu: Gpu, wanted: VgpuType, number: int = 0, **more: Any) -> AssignedVgpu:
    """Return an assigned vGPU on function `number` of a GPU."""
    function = gpu.functions[number].address
    values: dict[str, Any] = {
        "index": 0,
        "backend": gpu.backend,
        "gpu": gpu.address,
        "function": function,
        "carrier": function,
        "profile": wanted.profile,
        "framebuffer_mib": wanted.framebuffer_mib,
    }
    return AssignedVgpu(**{**values, **more})


def vm(number: int, *vgpus: AssignedVgpu, record: RecordState | None = RecordState.READY, **more: Any) -> Vm:
    """Return test VM `number` with these vGPUs in its record; with `record` None it has no record."""
    own = VmRecord(record, vm_uuid(number), MACHINE, vgpus, (), "{}") if record is not None else None
    refs = tuple(HostdevRef("mdev" if "mdev" in v.backend else "pci", v.carrier, False) for v in vgpus)
    values: dict[str, Any] = {
        "name": f"vdi-{number:03d}",
        "uuid": vm_uuid(number),
        "state": VmState.RUNNING,
        "memory_mib": 1024,
        "vcpus": 1,
        "hostdevs": refs,
        "record": own,
    }
    return Vm(**{**values, **more})


def claim(of: AssignedVgpu, number: int, operation: str | None = "mine") -> Claim:
    """Return test VM `number`'s claim on a carrier; `operation`: the id of the one that wrote it."""
    return Claim(
        carrier=of.carrier,
        backend=of.backend,
        gpu=of.gpu,
        function=of.function,
        vm=f"vdi-{number:03d}",
        vm_uuid=vm_uuid(number),
        profile=of.profile,
        framebuffer_mib=of.framebuffer_mib,
        process=ME,
        command="vgpuctl create-vm",
        operation=operation,
    )


def snapshot(*gpus: Gpu, vms: Iterable[Vm] = (), claims: Iterable[Claim] = (), **more: Any) -> Snapshot:
    """Return a snapshot of a host with these GPUs, VMs and claims."""
    live = frozenset(more.pop("live", ()))
    status = HypervisorStatus(available=True, uri="qemu:///system", libvirt_version=10_000_000)
    vms, claims = tuple(vms), tuple(claims)
    values: dict[str, Any] = {
        "gpus": gpus,
        "vms": vms,
        "claims": claims,
        "vgpus": resolve_ownership(gpus, vms, claims, live),
        "stuck_writes": (),
        "hypervisor": status,
        "nvml": NvmlStatus(available=True),
        "machine_id": MACHINE,
        "live_claim_carriers": live,
    }
    return Snapshot(**{**values, **more})
