# SPDX-License-Identifier: Apache-2.0
"""The claims that belong to a VM's record."""

from __future__ import annotations

from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Claim, Operation, VmRecord
from vgpuctl.value import replace


def build_claims(name: str, record: VmRecord, operation: Operation) -> tuple[Claim, ...]:
    """Return the claims for a VM's record, held by the given operation."""
    return tuple(
        Claim(
            carrier=vgpu.carrier,
            backend=vgpu.backend,
            gpu=vgpu.gpu,
            function=vgpu.function,
            vm=name,
            vm_uuid=record.vm_uuid,
            profile=vgpu.profile,
            framebuffer_mib=vgpu.framebuffer_mib,
            process=operation.process,
            command=operation.command,
            placement_id=vgpu.placement_id,
            spread_group=record.spread_group,
            operation=operation.id,
        )
        for vgpu in record.vgpus
    )


def with_type_id(claim: Claim, snapshot: Snapshot) -> Claim:
    """Return the claim with the current id of its profile's type, if the snapshot has the types."""
    gpu = snapshot.gpu(claim.gpu)
    vgpu_type = next((t for t in gpu.types if t.profile == claim.profile), None) if gpu is not None else None
    return claim if vgpu_type is None else replace(claim, type_id=vgpu_type.type_id)
