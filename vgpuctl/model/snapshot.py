# SPDX-License-Identifier: Apache-2.0
"""The observed state of a host: kernel, libvirt and claims joined. Every plan is made from a snapshot alone."""

from __future__ import annotations

from vgpuctl.model.gpu import Gpu, Vgpu, address_of_render_link
from vgpuctl.model.port_values import HypervisorStatus, NvmlStatus
from vgpuctl.model.request import PlacementSpec
from vgpuctl.model.vm import Claim, HostVgpu, StuckWrite, Vm
from vgpuctl.value import Value


class Snapshot(Value):
    """What exists and who owns it.

    `vgpus`: one entry for each carrier (an mdev, a VF or a whole function) that a device, a VM's record or a claim
    occupies. `live_claim_carriers`: the carriers whose claiming process is still alive. `unreadable_claims`: the names
    of claim files that could not be read. `stuck_writes`: writes to sysfs that still block in the kernel after their
    deadline. `warnings`: what could not be read. `host_file_problem`: why host.yaml is invalid; then nothing new may be
    placed, and `host_file_hint` says how to fix it. `host_vgpus`: the vGPUs in `vgpus:` of host.yaml, which belong to
    no VM; `placement_spec`: the section `placement:`. `partial`: only some GPUs were read. `unreadable_devices`: the
    sentences of `warnings` that are about devices; `unread` those about VMs, and claims that may not be read.
    `refusing_gpus`: the GPUs whose driver has just refused to make a vGPU although it reported room; nothing is placed
    there. `nvswitches`: the addresses of NVSwitches, None where the devices of the host were not listed.
    """

    gpus: tuple[Gpu, ...]
    vms: tuple[Vm, ...]
    claims: tuple[Claim, ...]
    vgpus: tuple[Vgpu, ...]
    stuck_writes: tuple[StuckWrite, ...]
    hypervisor: HypervisorStatus
    nvml: NvmlStatus
    machine_id: str
    live_claim_carriers: frozenset[str] = frozenset()
    unreadable_claims: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    host_file_problem: str | None = None
    host_file_hint: str | None = None
    host_vgpus: tuple[HostVgpu, ...] = ()
    placement_spec: PlacementSpec = PlacementSpec()
    partial: bool = False
    unreadable_devices: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    refusing_gpus: frozenset[str] = frozenset()
    nvswitches: tuple[str, ...] | None = None

    @property
    def unread_texts(self) -> tuple[str, ...]:
        """What of libvirt, the devices, the claims and host.yaml was not read, as sentences; empty if all was."""
        texts = [*self.unread, *self.unreadable_devices, *(f"the claim on {c}" for c in self.unreadable_claims)]
        for gpu in self.gpus:
            texts += [*gpu.problems, *(f"{f.address}: {f.problem}" for f in gpu.functions if f.problem)]
        texts += [] if self.hypervisor.available else [f"libvirt: {self.hypervisor.reason}"]
        return tuple(texts) if self.host_file_problem is None else (*texts, self.host_file_problem)

    def gpu(self, address: str) -> Gpu | None:
        """Return the GPU of that address."""
        return next((g for g in self.gpus if g.address == address), None)

    def vm(self, name_or_uuid: str) -> Vm | None:
        """Return the VM of that name or uuid."""
        return next((v for v in self.vms if name_or_uuid in (v.name, v.uuid)), None)

    def vms_by_uuid(self) -> dict[str, Vm]:
        """Return the VMs by uuid, for whoever looks for many."""
        return {vm.uuid: vm for vm in self.vms}

    def vgpus_on(self, address: str) -> tuple[Vgpu, ...]:
        """Return the vGPUs on one GPU."""
        return tuple(v for v in self.vgpus if v.gpu == address)

    def vms_drawn_by(self, gpu: Gpu) -> tuple[Vm, ...]:
        """Return the VMs, running or not, for which QEMU draws on a GPU (mode virtio-gpu)."""
        paths = gpu.render_paths
        return tuple(vm for vm in self.vms if vm.render_node in paths) if paths else ()

    def render_gpu(self, vm: Vm) -> str | None:
        """Return the address of the GPU on which QEMU draws for a VM; the device node where that is not known now."""
        node = vm.render_node
        by_node = (g.address for g in self.gpus if node in g.render_paths)
        return node and (address_of_render_link(node) or next(by_node, node))
