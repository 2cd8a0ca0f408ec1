# SPDX-License-Identifier: Apache-2.0
"""VMs: definitions that would harm the host, lost vGPUs, locked memory; and what earlier commands left behind.

libvirt detaches a function with managed='yes' from its driver at the start of the VM. NVIDIA's vGPU driver does not
survive that on a VF that it drives itself: the start hangs in the kernel.

VFIO locks all memory of a VM with devices when the VM starts (kernel vfio.rst); none can be swapped out.

mdevctl's definitions are here too: an mdev that it creates at boot takes the place of a VM's vGPU, and is unmanaged for
vgpuctl.
"""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote

from vgpuctl.backends import backend_for
from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    fail,
    not_applicable,
    ok,
    require_snapshot,
    shorten,
    unknown,
    warn,
)
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.gpu import Vgpu
from vgpuctl.model.hint_commands import (
    end_migration_command,
    moving_text,
    recreate_vgpu_command,
    run_command,
    start_command,
    stop_command,
)
from vgpuctl.model.numbers import count_text, format_mib, parse_meminfo_mib
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import UNRESPONSIVE_STATES, RecordState, Vm, VmState
from vgpuctl.observe.definition import (
    find_endangered,
    find_harmful_hostdevs,
    find_unreferenced_vgpus,
    lost_text,
    removal_command,
    require_function,
)
from vgpuctl.observe.mdevctl import MDEVCTL_DIRECTORY

MEMINFO = "/proc/meminfo"
_NO_VMS = unknown("the VMs are not known: libvirt does not answer")


def _require_vms(check: Callable[[CheckContext, Snapshot], Finding]) -> Callable[[CheckContext, Snapshot], Finding]:
    """Return a check function that runs only when libvirt answers, and gives `unknown` otherwise."""

    def run(context: CheckContext, snapshot: Snapshot) -> Finding:
        return check(context, snapshot) if snapshot.hypervisor.available else _NO_VMS

    return run


def _check_managed_vfs(context: CheckContext, snapshot: Snapshot) -> Finding:
    vgpu_vfs = {f.address for g in snapshot.gpus if backend_for(g.backend).functions_stay_bound for f in g.functions}
    if not vgpu_vfs:
        return not_applicable("no GPU here has vendor-specific VFs")
    if not snapshot.hypervisor.available:
        return _NO_VMS
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


@_require_vms
def _check_lost_vgpus(context: CheckContext, snapshot: Snapshot) -> Finding:
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


@_require_vms
def _check_shared_vgpus(context: CheckContext, snapshot: Snapshot) -> Finding:
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


@_require_vms
def _check_vm_states(context: CheckContext, snapshot: Snapshot) -> Finding:
    with_devices = [vm for vm in snapshot.vms if vm.record is not None or vm.hostdevs]
    moves = [(vm, vm.move) for vm in with_devices if vm.move is not None]
    if moves:  # a paused one must not run before its other host is asked
        lines = [f"VM {moving_text(vm.name, mark.peer, leaves=mark.leaves)}" for vm, mark in moves]
        commands = [end_migration_command(vm.name, mark.peer) for vm, mark in moves[:3]]
        commands += ["vgpuctl list-vms shows those of the others"] if len(moves) > len(commands) else []
        return warn(*shorten(lines), fix=f"if no migrate-vm works on them any more: {'; '.join(commands)}")
    unresponsive = [vm for vm in with_devices if vm.state in UNRESPONSIVE_STATES]
    if unresponsive:
        first = unresponsive[0]
        return warn(
            *shorten([f"VM {vm.name} is {vm.state}" for vm in unresponsive]),
            f"virsh domstate --reason {quote(first.name)} shows why; QEMU pauses a VM whose disk is full",
            fix=run_command(first),
        )
    return ok(f"none of {count_text(len(with_devices), 'VM')} with devices is paused, asleep or crashed")


def _check_locked_memory(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not snapshot.hypervisor.available:
        return _NO_VMS
    vms = [vm for vm in snapshot.vms if vm.hostdevs]
    if not vms:
        return not_applicable("no VM here has a device")
    meminfo = context.file(MEMINFO)
    total, free = (parse_meminfo_mib(meminfo.text or "", name) for name in ("MemTotal", "MemAvailable"))
    if total is None or free is None:
        return unknown(meminfo.problem or f"{MEMINFO} has no MemTotal or MemAvailable")
    needed = sum(vm.memory_mib for vm in vms)
    vms_line = f"{len(vms)} VM{'s' if len(vms) > 1 else ''} with devices: {format_mib(needed)}, all of it locked"
    host_line = f"{MEMINFO}: MemTotal {format_mib(total)}, MemAvailable {format_mib(free)}"
    if needed > total:
        return warn(vms_line, host_line, fix="they cannot all run at the same time: give them less memory")
    too_big = [vm for vm in vms if vm.state is VmState.STOPPED and vm.memory_mib > free]
    if too_big:
        vm_names = ", ".join(f"{vm.name} ({format_mib(vm.memory_mib)})" for vm in too_big)
        return warn(
            vms_line,
            host_line,
            f"not enough free memory to start: {vm_names}",
            fix="stop other VMs before you start these",
        )
    return ok(vms_line, host_line)


def _check_stuck_writes(context: CheckContext, snapshot: Snapshot) -> Finding:
    if context.claims_problem is not None:
        return unknown(context.claims_problem, fix="run it as root")
    if snapshot.stuck_writes:
        lines = [
            f"process {w.process.pid} waits in the kernel writing {w.path} (GPU {w.gpu})" for w in snapshot.stuck_writes
        ]
        return fail(*shorten(lines), fix="stop the VM or the process that holds the device: fuser -v /dev/vfio/*")
    return ok("no write waits in the kernel")


def _check_leftovers(context: CheckContext) -> Finding:
    if context.claims_problem is not None:
        return unknown(context.claims_problem, fix="run it as root")
    if context.leftovers is None:
        return unknown(context.leftovers_problem)
    reported_elsewhere = ("stuck-write", "copied-record", "vgpu-missing", "vgpu-changed", "vgpu-conflict")
    reported = [leftover for leftover in context.leftovers if leftover.kind not in reported_elsewhere]
    if reported:
        by_hand = [
            leftover.action.removeprefix("nothing: ") for leftover in reported if leftover.action.startswith("nothing")
        ]
        commands = ["vgpuctl reconcile-host"] if len(by_hand) < len(reported) else []
        lines = [f"{leftover.kind}: {leftover.description}" for leftover in reported]
        return warn(*shorten(lines), fix="; ".join(dict.fromkeys([*commands, *by_hand])))
    return ok("nothing is leaked, half created or half removed")


def _check_claims(context: CheckContext, snapshot: Snapshot) -> Finding:
    if context.claims_problem is not None:
        return unknown(context.claims_problem, fix="run it as root")
    if snapshot.unreadable_claims:
        names = [f"/run/vgpuctl/claims/{c}" for c in snapshot.unreadable_claims]
        return fail(
            *shorten(names),
            "the carriers that they claim count as taken",
            fix="check the file and its carrier; remove the file when no VM uses the carrier",
        )
    return ok(f"{count_text(len(snapshot.claims), 'claim')}, all readable")


def _check_host_vgpus(context: CheckContext, snapshot: Snapshot) -> Finding:
    if snapshot.host_file_problem is not None:
        return unknown(snapshot.host_file_problem)
    if not snapshot.host_vgpus:
        return not_applicable("host.yaml has no vGPU")
    vgpu_by_carrier = {v.carrier: v for v in snapshot.vgpus}
    lines = []
    fix = "vgpuctl restore-host"
    for entry in snapshot.host_vgpus:
        vgpu = vgpu_by_carrier.get(entry.carrier)
        if vgpu is None or vgpu.name != entry.name:
            lines.append(f"{entry.name}: {entry.carrier} is the vGPU of {vgpu.holder_text if vgpu else 'none'}")
            fix = (
                "remove entries whose place another vGPU has from /etc/vgpuctl/host.yaml; then run vgpuctl restore-host"
            )
        elif entry.gpu in context.absent_gpus:
            lines.append(f"{entry.name}: the GPU {entry.gpu} is no longer on this host")
            fix = recreate_vgpu_command(entry)
        elif vgpu.reason is not None or not vgpu.present:
            lines.append(f"{entry.name}: {vgpu.reason or f'{entry.profile} on {entry.gpu} is missing'}")
    if lines:
        return warn(*shorten(lines), fix=fix)
    return ok(f"all {len(snapshot.host_vgpus)} exist")


def _check_mdevctl(context: CheckContext, snapshot: Snapshot) -> Finding:
    folder = context.folder(MDEVCTL_DIRECTORY)
    if folder.problem is not None:
        return unknown(folder.problem)
    parents = {
        f.address: g.address for g in snapshot.gpus if backend_for(g.backend).carrier_has_uuid for f in g.functions
    }
    defined = [f"{MDEVCTL_DIRECTORY}/{name} (GPU {parents[name]})" for name in folder.names or () if name in parents]
    if defined:
        return warn(
            *shorten(defined),
            "mdevctl creates these at boot, and they take room; vgpuctl treats them as unmanaged",
            fix="mdevctl list --defined; mdevctl undefine -u UUID",
        )
    return ok(f"{MDEVCTL_DIRECTORY} has no definition on a GPU of this host")


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
    Check(
        id="locked-memory",
        title="the memory that VMs with devices lock",
        looks_at=f"the VMs' memory, `{MEMINFO}`",
        run=require_snapshot(_check_locked_memory),
        paths=PathsToRead(files=(MEMINFO,)),
        needs_vms=True,
    ),
    Check(
        id="stuck-writes",
        title="writes that wait in the kernel",
        looks_at="`/run/vgpuctl/stuck`",
        run=require_snapshot(_check_stuck_writes),
        explains=("stuck", "device-failed"),
    ),
    Check(
        id="leftovers",
        title="what is leaked, half created or half removed",
        looks_at="what reconcile-host would do",
        run=_check_leftovers,
        explains=("no-capacity",),
        needs_vms=True,
        needs_leftovers=True,
    ),
    Check(
        id="claims",
        title="vgpuctl's claims",
        looks_at="`/run/vgpuctl/claims`",
        run=require_snapshot(_check_claims),
        explains=("no-capacity",),
    ),
    Check(
        id="kept-vgpus",
        title="the vGPUs of host.yaml",
        looks_at="`vgpus:` of `/etc/vgpuctl/host.yaml`",
        run=require_snapshot(_check_host_vgpus),
        explains=("no-capacity",),
        needs_vms=True,
    ),
    Check(
        id="mdevctl",
        title="mdevctl's devices on vgpuctl's GPUs",
        looks_at=f"`{MDEVCTL_DIRECTORY}/PARENT`",
        run=require_snapshot(_check_mdevctl),
        paths=PathsToRead(folders=(MDEVCTL_DIRECTORY,)),
        explains=("no-capacity",),
    ),
)
