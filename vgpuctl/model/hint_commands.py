# SPDX-License-Identifier: Apache-2.0
"""The commands that hints show. A VM with a record gets vgpuctl's command, any other VM virsh's.

stop-vm and start-vm refuse a VM without a record or with an unfinished one. delete-vm refuses a VM that vgpuctl did not
create but only gave vGPUs to.
"""

from __future__ import annotations

import shlex

from vgpuctl.model.vm import HostVgpu, RecordState, Vm, VmRecord, VmState


def start_command(vm: Vm) -> str:
    """Return the command that starts a VM."""
    return f"{'virsh start' if vm.record is None else 'vgpuctl start-vm'} {_quote_name(vm)}"


def stop_command(vm: Vm, *, force: bool = False) -> str:
    """Return the command that stops a VM, with `force` without waiting for the guest; or ends its move."""
    name = _quote_name(vm)
    if vm.record is not None and vm.record.migration is not None:
        return end_migration_command(vm.name, vm.record.migration.peer)
    if vm.record is None or vm.record.state is not RecordState.READY:
        return f"virsh {'destroy' if force else 'shutdown'} {name}"
    return f"vgpuctl stop-vm {name}{' --force' if force else ''}"


def run_command(vm: Vm) -> str:
    """Return the command that makes a VM run, from whatever state it is in. One that moves: ends the move."""
    name = _quote_name(vm)
    if vm.record is not None and vm.record.migration is not None:
        return end_migration_command(vm.name, vm.record.migration.peer)
    if vm.state is VmState.PAUSED:
        return f"virsh resume {name}"
    if vm.state is VmState.PMSUSPENDED:
        return f"virsh dompmwakeup {name}"
    if vm.state is VmState.CRASHED:
        return f"{stop_command(vm, force=True)}, then {start_command(vm)}"
    if vm.state is VmState.SHUTTING_DOWN:
        return f"vgpuctl wait {name} --for off, then {start_command(vm)}"
    return f"virsh domstate --reason {name}" if vm.state is VmState.UNKNOWN else start_command(vm)


def off_command(vm: Vm) -> str:
    """Return the command that stops a VM, from whatever state it is in; a guest that cannot react is forced off."""
    if vm.record is not None and vm.record.migration is not None:
        return stop_command(vm)
    if vm.state in (VmState.PAUSED, VmState.PMSUSPENDED):
        return f"{run_command(vm)}, then {stop_command(vm)}; or {stop_command(vm, force=True)}"
    return stop_command(vm, force=vm.state in (VmState.CRASHED, VmState.SHUTTING_DOWN))


def end_migration_command(name: str, peer: str, *, on: str | None = None) -> str:
    """Return the command that ends an interrupted move of a VM between this host, or `on` another one, and its peer."""
    command = f"end-migration {shlex.quote(name)} --with {address_of(peer)}"
    return f"vgpuctl {command}" if on is None else command_on(on, command)


def unfinished_text(name: str, record: VmRecord) -> tuple[str, str]:
    """Return what is wrong with a VM whose creation or removal did not end, and what reconcile-host does with it."""
    if record.state is not RecordState.REMOVING:
        otherwise = "vgpuctl reconcile-host keeps it if it runs, or removes it"
        hint = f"wait if a vgpuctl process still works on it; else {otherwise}"
        return f"{name} is unfinished: its record says {record.state}", hint
    disks = ", disks too" if record.disks else ""
    hint = f"vgpuctl reconcile-host finishes the deletion{disks}, if no vgpuctl process works on it any more"
    return f"{name} is half deleted: its record says {record.state}", hint


def moving_text(name: str, peer: str, *, leaves: bool) -> str:
    """Return that a VM moves, and which way. One host alone cannot tell whether that still goes on."""
    way = f"from this host to {peer}" if leaves else f"from {peer} to this host"
    return f"{name} moves {way}, or that move was interrupted"


def end_move_hint(vm: Vm, peer: str) -> str:
    """Return what to do about a VM that moves."""
    return f"wait for migrate-vm; if none works on it any more: {end_migration_command(vm.name, peer)}"


def command_on(host: str, command: str) -> str:
    """Return a command of vgpuctl for a host that is this one or another one."""
    if host.startswith("sim:"):
        return f"vgpuctl --host {shlex.quote(host)} {command}"
    return f"on {host}: vgpuctl {command}"


def address_of(host: str) -> str:
    """Return a host's name as options take it: a host that is not simulated is reached by SSH."""
    return shlex.quote(host if host.startswith("sim:") else f"ssh://{host}")


def detach_command(vm: Vm, carrier: str) -> str:
    """Return the command that takes one vGPU from a VM."""
    return f"vgpuctl detach-vgpu {_quote_name(vm)} --vgpu {carrier}"


def remove_transient_command(vm: Vm) -> str:
    """Return the command that removes a VM which runs without a definition."""
    created = vm.record is not None and vm.record.created_vm
    return f"{'vgpuctl delete-vm' if created else 'virsh destroy'} {_quote_name(vm)}"


def recreate_vgpu_command(vgpu: HostVgpu) -> str:
    """Return the commands that create a vGPU of host.yaml again where there is room."""
    params = "".join(f" --vgpu-param {shlex.quote(param)}" for param in filter(None, vgpu.params.split(",")))
    create = f"vgpuctl create-vgpu {vgpu.name} --profile {shlex.quote(vgpu.profile)}{params}"
    return f"vgpuctl delete-vgpu {vgpu.name} --yes; {create}"


def _quote_name(vm: Vm) -> str:
    return shlex.quote(vm.name)
