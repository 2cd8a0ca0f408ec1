# SPDX-License-Identifier: Apache-2.0
"""Why a VM cannot leave its host now, as far as its own host knows: every reason, and what helps against each.

What libvirt refuses is from its source (qemuMigrationSrcIsAllowed in qemu_migration.c). It names one reason at a time.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from vgpuctl.backends import backend_for
from vgpuctl.domain.move_facts import MoveFacts
from vgpuctl.domain.record import TEXT_KIND
from vgpuctl.errors import Unmanaged
from vgpuctl.model import hint_commands
from vgpuctl.model.numbers import count_text
from vgpuctl.model.port_values import DomainLeftovers
from vgpuctl.model.results.migration import MigrationReasonResult
from vgpuctl.model.vm import NOT_RUNNING_STATES, AssignedVgpu, RecordState, Vm, VmState
from vgpuctl.observe.vgpu_migration import VgpuMigrationFacts
from vgpuctl.operations.plans.remove import own_record, virsh_command
from vgpuctl.value import EMPTY_MAPPING, Value

Texts = Iterator[tuple[str, str | None]]
"""A sentence without its end, and what helps."""
DETACHED_WITHOUT_STATE = "its driver cannot save the device's state"


class SourceFacts(Value):
    """What a VM's host knows of it before it moves. `domain`: of its live XML, if it runs.

    `blockers`: what QEMU says prevents it, None where QEMU was not asked or does not say. `vgpus`: what drivers say, by
    carrier. `has_old_programs`: this host's libvirt, QEMU or kernel is too old to move them, which the target's checks
    say with the versions. `work`: why another operation, or an earlier one, prevents it, with what helps.
    """

    host: str
    vm: Vm
    domain: MoveFacts
    leftovers: DomainLeftovers = DomainLeftovers()
    blockers: tuple[str, ...] | None = None
    vgpus: Mapping[str, VgpuMigrationFacts] = EMPTY_MAPPING
    has_old_programs: bool = False
    work: tuple[tuple[str, str | None], ...] = ()


def find_source_reasons(facts: SourceFacts, *, offline: bool) -> tuple[MigrationReasonResult, ...]:
    """Return every reason why the VM cannot leave now."""
    texts = list(_record_reasons(facts.vm))
    if facts.vm.record is not None:  # what else a VM has that vgpuctl does not manage is its manager's
        is_ready = facts.vm.record.state is RecordState.READY  # else nobody may start it, whatever its state is
        texts += [*facts.work, *(_state_reasons(facts, offline=offline) if is_ready else ())]
        texts += _kept_reasons(facts, offline=offline)
        texts += _offline_reasons(facts) if offline else _live_reasons(facts)
    return tuple(MigrationReasonResult(facts.host, what, hint) for what, hint in dict.fromkeys(texts))


def find_unsendable(facts: SourceFacts) -> tuple[str, ...]:
    """Return what of a running VM QEMU cannot send, to another host or into a file."""
    return tuple(dict.fromkeys(what for what, _ in _live_reasons(facts)))


def find_source_warnings(facts: SourceFacts, *, offline: bool) -> tuple[MigrationReasonResult, ...]:
    """Return what does not prevent it, and may surprise."""
    return tuple(MigrationReasonResult(facts.host, what, hint) for what, hint in _warnings(facts, offline=offline))


def _record_reasons(vm: Vm) -> Texts:
    """Yield why the VM is not one that vgpuctl moves. One that it only gave vGPUs to stays its creator's."""
    record = vm.record
    if record is None or not record.created_vm:
        try:
            own_record(vm, "move")
        except Unmanaged as error:
            yield error.message, error.hint
            return
        name, only = shlex.quote(vm.name), f"{vm.name} was not created by vgpuctl, which only"
        if record is not None and record.adopted_vgpus():
            yield (
                f"{only} adopted it, and moves only VMs that it created",
                f"vgpuctl adopt {name} --release; make the vGPU on the other host as you made it here; then "
                f"{virsh_command(vm, 'move')}",
            )
            return
        profile = next((v.profile for v in (() if record is None else record.vgpus) if v.profile), "PROFILE")
        yield (
            f"{only} attached vGPUs to it, and moves only VMs that it created",
            f"vgpuctl detach-vgpu {name}; then {virsh_command(vm, 'move')}; then on the other host: vgpuctl "
            f"attach-vgpu {name} --profile {profile}",
        )
        return
    if record.state is RecordState.MOVING and record.migration is not None:
        peer, leaves = record.migration.peer, record.migration.leaves
        yield hint_commands.moving_text(vm.name, peer, leaves=leaves), hint_commands.end_move_hint(vm, peer)
    elif record.state is not RecordState.READY:
        yield hint_commands.unfinished_text(vm.name, record)


def _state_reasons(facts: SourceFacts, *, offline: bool) -> Texts:
    vm = facts.vm
    if not vm.persistent:
        yield (
            f"{vm.name} is transient: it was undefined while running",
            f"virsh dumpxml --inactive --security-info {shlex.quote(vm.name)} > FILE, then virsh define FILE",
        )
    if offline:
        if vm.state is VmState.UNKNOWN:
            yield f"the state of {vm.name} is not known", hint_commands.run_command(vm)
        return
    if vm.state is VmState.STOPPED and facts.leftovers.managed_save:
        return  # it is not off in the way that --offline wants
    if vm.state is VmState.STOPPED:
        yield f"{vm.name} is off", f"add --offline, or {hint_commands.start_command(vm)} first"
    elif vm.state is not VmState.RUNNING:
        name, why = shlex.quote(vm.name), ""
        if vm.state is VmState.PAUSED:
            why = f"virsh domstate {name} --reason; unless it says migration or post-copy: "
        what = f"{vm.name} is {vm.state}: only a VM that runs can move while it runs"
        yield what, f"{why}{hint_commands.run_command(vm)}"


def _kept_reasons(facts: SourceFacts, *, offline: bool) -> Texts:
    """Yield what the VM has on this host that no move takes along."""
    name = shlex.quote(facts.vm.name)
    if facts.leftovers.managed_save:
        what = f"{facts.vm.name} is saved (save-vm): only this host can restore it"
        stop = f", then vgpuctl stop-vm {name}" if offline else ""
        yield what, f"vgpuctl start-vm {name}{stop}"
    if facts.leftovers.snapshots:
        names = facts.leftovers.snapshots
        yield (
            f"{facts.vm.name} has {count_text(len(names), 'snapshot')} ({', '.join(names)}), and libvirt moves no VM "
            "with snapshots",
            "if nobody needs them: "
            + "; ".join(f"virsh snapshot-delete {name} {shlex.quote(snapshot)}" for snapshot in names[:3]),
        )


def _live_reasons(facts: SourceFacts) -> Texts:
    devices = list(_device_reasons(facts))
    yield from devices
    yield from _definition_reasons(facts)
    vgpus = {v.carrier for v in (() if facts.vm.record is None else facts.vm.record.vgpus)}
    carriers = vgpus | {hostdev.carrier for hostdev in facts.vm.hostdevs}
    named = {carrier for carrier in carriers if any(carrier in what for what, _ in devices)}
    named |= vgpus if facts.has_old_programs else set()
    for blocker in facts.blockers or ():
        if not any(carrier in blocker for carrier in named):
            yield f"QEMU says: {blocker}", "add --offline"


def _device_reasons(facts: SourceFacts) -> Texts:
    record, name = facts.vm.record, _name(facts)
    assigned = {v.carrier: v for v in (() if record is None else record.vgpus)}
    by_device: dict[str, list[AssignedVgpu]] = {}
    for vgpu in assigned.values():  # a whole GPU is one device, with its audio and other functions
        device = vgpu.gpu if backend_for(vgpu.backend).takes_whole_gpu else vgpu.carrier
        by_device.setdefault(device, []).append(vgpu)
    for functions in by_device.values():
        yield from _vgpu_reasons(facts, *functions)
    for hostdev in facts.vm.hostdevs:
        if hostdev.carrier in assigned:
            continue
        if hostdev.carrier in facts.domain.nic_carriers:
            what = f"the VM's network card is the device {hostdev.carrier} of this host"
        elif hostdev.kind == TEXT_KIND:
            what = f"the VM's definition names the device {hostdev.carrier} of this host, as in <qemu:commandline>"
        else:
            what = f"the VM has the device {hostdev.carrier} of this host, which vgpuctl does not manage"
        yield f"{what}: it cannot move while the VM runs", _edit_hint(name, "remove the device")
    for device in facts.domain.other_devices:
        what = f"the VM has a device of this host, {device}: it cannot move while the VM runs"
        yield what, _edit_hint(name, "remove the device")


def _vgpu_reasons(facts: SourceFacts, vgpu: AssignedVgpu, *others: AssignedVgpu) -> Texts:
    known = facts.vgpus.get(vgpu.carrier, VgpuMigrationFacts())
    backend = backend_for(vgpu.backend)
    carriers = " with ".join(filter(None, (vgpu.carrier, ", ".join(other.carrier for other in others))))
    what = f"{vgpu.profile or ('the GPU' if backend.takes_whole_gpu else 'the VF')} on {carriers}"
    hint = f"add --offline; or {known.fix}" if known.fix else "add --offline"
    if known.can_migrate is False:
        yield f"{what} cannot move while the VM runs: {known.why_not or DETACHED_WITHOUT_STATE}", hint
    elif backend.live_move is None and not known.can_migrate:
        yield f"{what} cannot move while the VM runs: {DETACHED_WITHOUT_STATE}", hint


def _definition_reasons(facts: SourceFacts) -> Texts:
    domain, name = facts.domain, _name(facts)
    if domain.has_gl or facts.vm.render_node is not None:
        where = f" on {facts.vm.render_node}" if facts.vm.render_node else ""
        yield (
            f"QEMU draws the VM's screen with OpenGL{where} (virtio-gpu), and cannot send that while the VM runs",
            "add --offline",
        )
    if domain.has_unscaled_tsc:
        what = (
            "the VM's CPU has the feature invtsc without a fixed TSC frequency: libvirt does not move it while it runs"
        )
        yield what, _edit_hint(name, "remove the feature")
    if domain.unaddressed_dimms:
        what = "a hot-plugged memory module of the VM has no slot or no address: libvirt does not move it while it runs"
        yield what, _edit_hint(name, "give it both")
    for shmem in domain.peer_shmem:
        what = f"the VM's shared memory {shmem} does not have role='master': libvirt does not move it while the VM runs"
        yield what, _edit_hint(name, "set that, or remove it")
    for directory in domain.file_systems:
        what = f"the VM mounts a directory of this host as {directory} (virtiofs or 9p): it cannot move while it runs"
        yield what, _edit_hint(name, "remove the <filesystem>")
    for disk in domain.disks:
        if disk.is_transient:
            what = (
                f"the VM's disk {disk.target} is transient: what the guest wrote to it cannot move, and a stop loses it"
            )
            first = "first copy what is needed out of the guest; then add --offline, or stop the VM and remove"
            yield what, f"{first} <transient/>: virsh edit {name}"
        if disk.has_job:
            yield (
                f"a block job copies the VM's disk {disk.target}",
                f"wait until it ends (virsh blockjob {name} {disk.target} --info), or end it (--abort)",
            )


def _edit_hint(quoted_name: str, change: str) -> str:
    return f"add --offline; or stop the VM, and {change}: virsh edit {quoted_name}"


def _offline_reasons(facts: SourceFacts) -> Texts:
    """Yield what is lost without a running QEMU that sends it."""
    if facts.leftovers.tpm or facts.domain.has_tpm:
        is_off = facts.vm.state in NOT_RUNNING_STATES
        hint = f"{'start it, and ' if is_off else ''}move it without --offline: QEMU then sends the TPM's state"
        yield "the state of the VM's TPM, such as BitLocker's keys, is on this host: --offline does not copy it", hint


def _warnings(facts: SourceFacts, *, offline: bool) -> Texts:
    vm, name = facts.vm, _name(facts)
    if facts.leftovers.checkpoints:
        names = ", ".join(facts.leftovers.checkpoints)
        what = f"the VM's checkpoints ({names}) stay behind: the next backup is a full one"
        yield what, f"virsh checkpoint-list {name} shows them"
    if not offline:
        if facts.blockers is None and vm.state not in NOT_RUNNING_STATES:
            yield "whether QEMU can send this VM is not known: QEMU does not say what blocks it", None
        for vgpu in () if vm.record is None else vm.record.vgpus:
            if backend_for(vgpu.backend).live_move and facts.vgpus.get(vgpu.carrier) in (None, VgpuMigrationFacts()):
                yield f"whether the driver of {vgpu.carrier} can send the vGPU's state is not known", None
        return
    if facts.leftovers.nvram is not None:
        what = f"the settings of the VM's firmware ({facts.leftovers.nvram}) stay behind"
        yield f"{what}, such as the order of boot entries", None
    assigned = {v.carrier for v in (() if vm.record is None else vm.record.vgpus)}
    others = (*(h.carrier for h in vm.hostdevs if h.carrier not in assigned), *facts.domain.other_devices)
    for device in dict.fromkeys(others):
        yield f"the VM has the device {device} of this host, and starts only where there is a device of this name", None
    for directory in facts.domain.file_systems:
        yield f"the directory of this host that the VM mounts as {directory} must be on the other host, too", None


def _name(facts: SourceFacts) -> str:
    return shlex.quote(facts.vm.name)
