# SPDX-License-Identifier: Apache-2.0
"""One look at a host: what the kernel, libvirt and the claims said, joined. Plans are made from nothing else."""

from __future__ import annotations

from vgpuctl.model.gpu import Gpu, Vgpu
from vgpuctl.model.records import HypervisorStatus, NvmlStatus
from vgpuctl.model.vm import Claim, NamedVgpu, StuckWrite, Vm
from vgpuctl.model.wish import PlacementSpec
from vgpuctl.value import Value


class Snapshot(Value):
    """What exists and whose it is.

    `vgpus` is every carrier that is taken, by a device, a promise or a claim. `live_claims` names the carriers
    whose claiming process still lives. `warnings` say what could not be seen.
    `host_file_problem` says why host.yaml cannot be understood, and `host_file_hint` what helps: then nothing new may
    be placed. `named` are the vGPUs without a VM that it keeps, `placement` how it says that new ones are placed.
    `partial`: only some GPUs were looked at. `left_out`: the devices that could not be read, a sentence each; they are
    among the warnings too.
    """

    gpus: tuple[Gpu, ...]
    vms: tuple[Vm, ...]
    claims: tuple[Claim, ...]
    vgpus: tuple[Vgpu, ...]
    stuck: tuple[StuckWrite, ...]
    hypervisor: HypervisorStatus
    nvml: NvmlStatus
    machine_id: str
    live_claims: frozenset[str] = frozenset()
    unreadable_claims: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    host_file_problem: str | None = None
    host_file_hint: str | None = None
    named: tuple[NamedVgpu, ...] = ()
    placement: PlacementSpec = PlacementSpec()
    partial: bool = False
    left_out: tuple[str, ...] = ()

    def gpu(self, address: str) -> Gpu | None:
        """Return the GPU of that address."""
        return next((g for g in self.gpus if g.address == address), None)

    def vm(self, name_or_uuid: str) -> Vm | None:
        """Return the VM of that name or uuid."""
        return next((v for v in self.vms if name_or_uuid in (v.name, v.uuid)), None)

    def taken_on(self, address: str) -> tuple[Vgpu, ...]:
        """Return the vGPUs on one GPU."""
        return tuple(v for v in self.vgpus if v.gpu == address)
