# SPDX-License-Identifier: Apache-2.0
"""The claims that a VM's promise stands for."""

from __future__ import annotations

from vgpuctl.model.vm import Claim, ProcessId, Promise


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
        )
        for v in promise.vgpus
    )
