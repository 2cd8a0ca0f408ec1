# SPDX-License-Identifier: Apache-2.0
"""The claims that a VM's promise stands for."""

from __future__ import annotations

from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Claim, ProcessId, Promise
from vgpuctl.value import replace


def claims_for(name: str, promise: Promise, process: ProcessId, command: str) -> tuple[Claim, ...]:
    """Return the claims that a VM's promise stands for, as a process would hold them."""
    return tuple(
        Claim(
            carrier=v.carrier,
            backend=v.backend,
            gpu=v.gpu,
            function=v.function,
            vm=name,
            vm_uuid=promise.vm_uuid,
            profile=v.profile,
            framebuffer_mib=v.framebuffer_mib,
            process=process,
            command=command,
            placement_id=v.placement_id,
            spread_group=promise.spread_group,
        )
        for v in promise.vgpus
    )


def typed(claim: Claim, snapshot: Snapshot) -> Claim:
    """Return a claim with the id that its profile's type has now, where the snapshot has read the types."""
    gpu = snapshot.gpu(claim.gpu)
    known = next((t for t in gpu.types if t.profile == claim.profile), None) if gpu is not None else None
    return claim if known is None else replace(claim, type_id=known.type_id)
