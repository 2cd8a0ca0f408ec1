# SPDX-License-Identifier: Apache-2.0
"""VMs whose definition would harm the host, and VMs that lost a vGPU.

libvirt detaches a function with managed='yes' from its driver at the start of the VM. NVIDIA's vGPU driver does not
survive that on a VF that it drives itself: the start hangs in the kernel.
"""

from __future__ import annotations

from shlex import quote

from vgpuctl.backends import backend_for
from vgpuctl.doctor.check import Check, CheckContext, Finding, fail, not_applicable, ok, require_snapshot, unknown, warn
from vgpuctl.doctor.gpus import shorten
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.gpu import Vgpu
from vgpuctl.model.hint_commands import run_command, start_command, stop_command
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import UNRESPONSIVE_STATES, RecordState, Vm, VmState
from vgpuctl.observe.definition import find_harmful_hostdevs, find_unreferenced_vgpus, lost_text, removal_command
from vgpuctl.observe.functions import find_endangered, require_function


def _check_managed_vfs(context: CheckContext, snapshot: Snapshot) -> Finding:
    vgpu_vfs = {f.address for g in snapshot.gpus if backend_for(g.backend).functions_stay_bound for f in g.functions}
    if not vgpu_vfs:
        return not_applicable("no GPU here has vendor-specific VFs")
    if not snapshot.hypervisor.available:
        return unknown("the VMs are not known: libvirt does not answer")
    problems = [
        f"VM {vm.name}: {hostdev.carrier} with managed='yes'"
        for vm in snapshot.vms
        for hostdev in find_harmful_hostdevs(vm, snapshot.gpus)
    ]
    if problems:
        return fail(
            *shorten(problems),
            fix="set managed='no' with virsh edit VM before you start it: otherwise the start hangs in the kernel "
            "until the"
            " host is rebooted",
        )
    return ok(f"no VM would unbind one of {len(vgpu_vfs)} vendor-specific VFs from its driver")


def _check_lost_vgpus(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not snapshot.hypervisor.available:
        return unknown("the VMs are not known: libvirt does not answer")
    running = {vm.uuid: vm.name for vm in snapshot.vms if vm.state is VmState.RUNNING}
    lost = [v for v in snapshot.vgpus if v.vm_uuid in running and (not v.present or v.attached is False)]
    if lost:
        lines = [
            f"VM {running[v.vm_uuid or '']} runs, but "
            + (f"{v.profile or v.backend} on {v.function} is gone" if not v.present else f"lacks {_vgpu_text(v)}")
            for v in lost
        ]
        victim = next(vm for vm in snapshot.vms if vm.uuid == lost[0].vm_uuid)
        between = "".join(f"{error.hint}, then " for error in _absent_functions(snapshot, victim)[:1])
        fix = f"{stop_command(victim)}, then {between}{start_command(victim)}, which gives it back"
        return fail(*shorten(lines), fix=fix)
    changed = [(vm, line) for vm in snapshot.vms if vm.uuid not in running for line in _changed_definition(vm)]
    if changed:
        fix = f"put it back: {start_command(changed[0][0])}"
        return fail(*shorten([line for _, line in changed]), fix=fix)
    stopped = [vm for vm in snapshot.vms if vm.state is VmState.STOPPED]
    elsewhere = {vm.name for vm in context.displaced}
    gone = [(vm, error) for vm in stopped if vm.name not in elsewhere for error in _absent_functions(snapshot, vm)]
    if gone:
        lines = [f"VM {vm.name} is off, and cannot start: {error.message}" for vm, error in gone]
        return fail(*shorten(lines), fix="; ".join(dict.fromkeys(str(error.hint) for _, error in gone)))
    off = {vm.uuid: vm.name for vm in stopped}
    missing = sorted({off[v.vm_uuid] for v in snapshot.vgpus if v.vm_uuid in off and v.needs_device})
    if context.displaced:
        lines = [f"{vm.name} needs another place: {vm.reason}" for vm in context.displaced]
        command = context.displaced[0].fix or "vgpuctl list-profiles"
        finding = warn if command.startswith("vgpuctl start-vm") else fail
        return finding(*shorten(lines), fix=command)
    if missing:
        first = quote(missing[0])
        return warn(
            f"{count_text(len(missing), 'VM')} that {'is' if len(missing) == 1 else 'are'} off "
            f"{'lacks its' if len(missing) == 1 else 'lack their'} vGPUs, as after a boot without the boot unit",
            *shorten(missing),
            fix=f"all of them now: vgpuctl restore-host; those of one VM at its start: vgpuctl start-vm {first}",
        )
    return ok(f"{count_text(len(running), 'VM')} running, and no VM has lost a vGPU")


def _absent_functions(snapshot: Snapshot, vm: Vm) -> list[VgpuctlError]:
    """Return why a VM cannot start with a vGPU that it lacks: what carries it, and no start creates again, is gone."""
    if vm.record is None or vm.record.state is not RecordState.READY:
        return []
    absent = {v.carrier for v in snapshot.vgpus if v.vm_uuid == vm.uuid and not v.present}
    if not vm.record.always_reserves:  # it takes any place of the same kind; is there one at all?
        here = [backend_for(backend) for backend in {g.backend for g in snapshot.gpus}]
        absent |= {v.carrier for v in vm.record.vgpus if not any(b.accepts(backend_for(v.backend)) for b in here)}
    errors: list[VgpuctlError] = []
    for vgpu in (v for v in vm.record.vgpus if v.carrier in absent):
        try:
            require_function(snapshot, vgpu)
        except VgpuctlError as error:
            errors.append(error)
    return errors


def _vgpu_text(vgpu: Vgpu) -> str:
    return f"{vgpu.profile or vgpu.backend} ({vgpu.carrier}), which its record has"


def _changed_definition(vm: Vm) -> list[str]:
    """Return what another program changed in the definition of a VM that is off."""
    record = vm.record
    if record is None or record.state is not RecordState.READY:
        return []
    missing = find_unreferenced_vgpus(vm, record)
    return [f"the definition of VM {vm.name} lacks {lost_text(missing)}: another program removed it"] if missing else []


def _check_shared_vgpus(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not snapshot.hypervisor.available:
        return unknown("the VMs are not known: libvirt does not answer")
    endangered = find_endangered(snapshot)
    if endangered:
        fix = removal_command(endangered[0].vm, endangered[0].function)
        return fail(*shorten([e.text for e in endangered]), fix=fix)
    shared = [v for v in snapshot.vgpus if v.other_vms]
    if not shared:
        return ok("no VM names a device that another VM needs")
    other = next(vm for vm in snapshot.vms if vm.name == shared[0].other_vms[0])
    lines = [f"{', '.join(filter(None, (v.vm or v.name, *v.other_vms)))}: {v.profile or v.carrier} on {v.function}"
             for v in shared]  # fmt: skip
    return warn(
        *shorten(lines),
        f"only one of them can run; {other.name} is {other.state}",
        fix=removal_command(other, shared[0].carrier),
    )


def _check_vm_states(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not snapshot.hypervisor.available:
        return unknown("the VMs are not known: libvirt does not answer")
    with_devices = [vm for vm in snapshot.vms if vm.record is not None or vm.hostdevs]
    unresponsive = [vm for vm in with_devices if vm.state in UNRESPONSIVE_STATES]
    if unresponsive:
        first = unresponsive[0]
        return warn(
            *shorten([f"VM {vm.name} is {vm.state}" for vm in unresponsive]),
            "virsh domstate --reason VM shows why; QEMU pauses a VM whose disk is full",
            fix=run_command(first),
        )
    return ok(f"none of {count_text(len(with_devices), 'VM')} with devices is paused, asleep or crashed")


CHECKS = (
    Check(
        id="lost-vgpus",
        title="the vGPUs of each VM",
        looks_at="the vGPUs of VMs: devices in `/sys/bus/mdev/devices`, types of VFs",
        run=require_snapshot(_check_lost_vgpus),
        explains=("no-capacity",),
        needs_vms=True,
        needs_types=True,
    ),
    Check(
        id="vm-states",
        title="VMs that are paused, asleep or crashed",
        looks_at="the states of VMs with vGPUs or other devices of the host",
        run=require_snapshot(_check_vm_states),
        needs_vms=True,
    ),
    Check(
        id="shared-vgpus",
        title="devices that several VMs name",
        looks_at="every device that a VM's definition names, in elements and in QEMU's arguments",
        run=require_snapshot(_check_shared_vgpus),
        explains=("in-use",),
        needs_vms=True,
    ),
    Check(
        id="managed-vfs",
        title="VMs that would unbind a vendor-specific VF from its driver",
        looks_at="`managed` of the VMs' PCI devices",
        run=require_snapshot(_check_managed_vfs),
        needs_vms=True,
    ),
)
