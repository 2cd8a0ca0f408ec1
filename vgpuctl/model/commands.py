# SPDX-License-Identifier: Apache-2.0
"""The commands that hints name. For a VM: vgpuctl's where it has a record of the VM, and virsh's for any other.

stop-vm and start-vm refuse a VM without a record, or half-way; delete-vm refuses one that only got vGPUs from vgpuctl.
"""

from __future__ import annotations

from vgpuctl.model.gpu import Gpu
from vgpuctl.model.vm import PromiseState, Vm


def to_start(vm: Vm) -> str:
    """Return the command that starts a VM."""
    return f"{'virsh start' if vm.promise is None else 'vgpuctl start-vm'} {_quoted(vm)}"


def to_stop(vm: Vm, *, force: bool = False) -> str:
    """Return the command that stops a VM; by `force` its guest is not asked."""
    name = _quoted(vm)
    if vm.promise is None or vm.promise.state is not PromiseState.READY or vm.promise.exchange is not None:
        return f"virsh {'destroy' if force else 'shutdown'} {name}"
    return f"vgpuctl stop-vm {name}{' --force' if force else ''}"


def to_remove_transient(vm: Vm) -> str:
    """Return the command after which nothing is left of a VM that runs without a definition."""
    made = vm.promise is not None and vm.promise.made_vm
    return f"{'vgpuctl delete-vm' if made else 'virsh destroy'} {_quoted(vm)}"


def vfs_off_hint(gpu: Gpu) -> str:
    """Return the command that turns a GPU's VFs off."""
    if gpu.driver == "gim":
        return "set vf_num in /etc/modprobe.d or /etc/gim_config and reload gim"
    return f"vgpuctl set-mode {gpu.address} passthrough"


def vfs_on_hint(gpu: Gpu) -> str:
    """Return the command that turns a GPU's VFs on."""
    if gpu.driver == "gim":
        return "set vf_num in /etc/modprobe.d or /etc/gim_config and reload gim"
    return f"vgpuctl set-mode {gpu.address} {'vgpu' if gpu.driver == 'nvidia' else 'sriov'}"


def _quoted(vm: Vm) -> str:
    import shlex  # libvirt's hook loads this module, and quotes nothing

    return shlex.quote(vm.name)
