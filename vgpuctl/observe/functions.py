# SPDX-License-Identifier: Apache-2.0
"""Whether the function of a recorded vGPU still exists, on every backend: VFs go with a boot, cards can be pulled out.

What is not there is never started with: libvirt would only report a path of /sys that does not exist.
"""

from __future__ import annotations

from vgpuctl.backends import backend_for
from vgpuctl.errors import HostCannot, InUse
from vgpuctl.gpu.division import name_holders
from vgpuctl.gpu.profiles import vfs_off_error
from vgpuctl.makers import maker_of
from vgpuctl.model import hint_commands
from vgpuctl.model.gpu import Gpu, Ownership, Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import OFF_OR_UNKNOWN_STATES, AssignedVgpu, Vm
from vgpuctl.observe.definition import removal_command
from vgpuctl.value import Value


def require_function(snapshot: Snapshot, vgpu: AssignedVgpu) -> Gpu:
    """Return the GPU of a vGPU, if the function that carries it exists and no other VM has the whole GPU.

    Raises:
        HostCannot: the GPU or the function is gone; the hint is the command that brings it back.
        InUse: a VM has the whole GPU; names it.
    """
    gpu = snapshot.gpu(vgpu.gpu)
    if gpu is None:
        raise HostCannot(
            f"the GPU {vgpu.gpu} is no longer on this host",
            hint="vgpuctl list-gpus --all; lspci -Dnn",
            check="gpu-missing",
            gpu=vgpu.gpu,
        )
    refuse_lost_gpu(gpu)
    backend = backend_for(vgpu.backend)
    if not backend.takes_whole_gpu:
        _refuse_given_whole(snapshot, gpu, vgpu)
    if not backend.has_carrier(gpu, vgpu.function):
        raise _absent_error(gpu, vgpu)
    return gpu


def refuse_lost_gpu(gpu: Gpu) -> None:
    """Refuse a GPU that its driver lost.

    Raises:
        HostCannot: with the GPU.
    """
    if gpu.is_lost:
        raise HostCannot(
            f"{gpu.address} ({gpu.model}) cannot be used: its driver lost it, NVML answers, but not for this GPU",
            hint="journalctl -k -g 'NVRM: Xid' shows why; reboot the host, or power it off and on",
            check="gpu-lost",
            gpu=gpu.address,
        )


def _refuse_given_whole(snapshot: Snapshot, gpu: Gpu, vgpu: AssignedVgpu) -> None:
    """Refuse while another VM has all of the GPU.

    Raises:
        InUse: with the VM.
    """
    user = next((vm for vm in snapshot.vms if _has_whole_gpu(vm, gpu)), None)
    if user is None:
        return
    again = f"; then {_bring_back_command(gpu, vgpu)}" if backend_for(vgpu.backend).on_vfs else ""
    raise InUse(
        f"{vgpu.profile or vgpu.function} does not exist: VM {user.name}, which is {user.state}, has the whole GPU "
        f"{gpu.address}, and its vGPUs and VFs are gone while it runs",
        hint=f"{hint_commands.stop_command(user)}; {removal_command(user, gpu.address)}{again}",
        gpu=gpu.address,
        vm=user.name,
    )


def _has_whole_gpu(vm: Vm, gpu: Gpu) -> bool:
    return vm.state not in OFF_OR_UNKNOWN_STATES and gpu.address in (vm.live_carriers or ())


def _absent_error(gpu: Gpu, vgpu: AssignedVgpu) -> HostCannot:
    """Return why the function of a vGPU does not exist, and the command that brings it back."""
    if not backend_for(vgpu.backend).on_vfs:
        return HostCannot(
            f"{vgpu.function} is no longer on this host, although {gpu.address} is",
            hint="vgpuctl list-gpus --all; lspci -Dnn",
            check="gpu-missing",
            gpu=gpu.address,
            function=vgpu.function,
        )
    command = _bring_back_command(gpu, vgpu)
    if gpu.vfs_total and not gpu.vfs_enabled:
        return vfs_off_error(gpu, f", so {vgpu.function} does not exist", hint=command)
    return HostCannot(
        f"{vgpu.function} does not exist: {gpu.vfs_enabled} of {gpu.vfs_total} VFs of {gpu.address} ({gpu.model}) "
        f"are on, driver {gpu.driver or 'none'}",
        hint=command,
        check="vfs-off",
        gpu=gpu.address,
        function=vgpu.function,
    )


def _bring_back_command(gpu: Gpu, vgpu: AssignedVgpu) -> str:
    """Return the command that turns the VFs on as they were: the record of that is host.yaml, if it has the GPU."""
    mode = backend_for(vgpu.backend).mode
    if mode is not None and gpu.desired_mode is mode and not gpu.vfs_enabled:
        return "vgpuctl restore-host"
    return maker_of(gpu).own_vf_setting or f"vgpuctl set-mode {gpu.address} {mode}"


class Endangered(Value):
    """A VM that names a function of a GPU on which others have vGPUs or VFs. `vgpus`: those of others.

    `function`: the GPU's own, a VF under their mdevs, or another function of the GPU's slot, such as its audio.
    """

    vm: Vm
    function: str
    gpu: Gpu
    vgpus: tuple[Vgpu, ...]

    @property
    def text(self) -> str:
        """What its start would do, as a sentence."""
        others = name_holders(self.vgpus)
        if self.function == self.gpu.address:
            return (
                f"VM {self.vm.name}, which is {self.vm.state}, has all of GPU {self.function}: while it runs, "
                f"the vGPUs and VFs of {others} there are gone"
            )
        if self.gpu.find_function(self.function) is not None:
            return (
                f"VM {self.vm.name}, which is {self.vm.state}, has the VF {self.function}: while it runs, "
                f"the vGPU of {others} on that VF is gone"
            )
        return (
            f"VM {self.vm.name}, which is {self.vm.state}, has {self.function}, which is on the same card as GPU "
            f"{self.gpu.address}: it cannot start while the host's driver has that GPU for {others}"
        )


def find_endangered(snapshot: Snapshot) -> tuple[Endangered, ...]:
    """Return each VM that names a function which other VMs, or host.yaml, need on the host."""
    return tuple(
        Endangered(vm, carrier, gpu, vgpus)
        for vm in snapshot.vms
        for carrier in dict.fromkeys(h.carrier for h in vm.hostdevs if vm.refers_to(h.carrier))
        for gpu in snapshot.gpus
        if (vgpus := _vgpus_below(snapshot, gpu, carrier, vm))
    )


def _vgpus_below(snapshot: Snapshot, gpu: Gpu, function: str, vm: Vm) -> tuple[Vgpu, ...]:
    """Return the managed vGPUs of others on a GPU that need this function, and are not functions of the card."""
    is_vf = function != gpu.address and gpu.find_function(function) is not None
    if not is_vf and function.rpartition(".")[0] != gpu.address.rpartition(".")[0]:
        return ()
    others = (
        v for v in snapshot.vgpus_on(gpu.address) if v.vm_uuid != vm.uuid and not backend_for(v.backend).takes_whole_gpu
    )
    managed = (v for v in others if v.carrier != function and v.owner is Ownership.MANAGED)
    return tuple(v for v in managed if not is_vf or v.function == function)
