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
from vgpuctl.model.migration import SOURCE_ROLES
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
        action = "adopted it" if record is not None and record.adopted_vgpus() else "attached vGPUs"
        name = shlex.quote(vm.name)
        give_up = f"vgpuctl adopt {name} --release" if action == "adopted it" else f"vgpuctl detach-vgpu {name}"
        yield (
            f"{vm.name} was not created by vgpuctl, which only {action}: vgpuctl moves only VMs that it created",
            f"{give_up}; make its vGPU on the other host, then {virsh_command(vm, 'move')}",
        )
        return
    if record.state is RecordState.MOVING and record.migration is not None:
        way = "to" if record.migration.role in SOURCE_ROLES else "from"
        yield (
            f"{vm.name} is already moving {way} {record.migration.peer}",
            hint_commands.end_migration_command(vm.name, record.migration.peer),
        )
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
        yield f"{vm.name} is {vm.state}: only a VM that runs can move while it runs", hint_commands.run_command(vm)


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
            "; ".join(f"virsh snapshot-delete {name} {shlex.quote(snapshot)}" for snapshot in names[:3]),
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
            what = f"its network card is the device {hostdev.carrier} of this host, which cannot move while the VM runs"
        elif hostdev.kind == TEXT_KIND:
            what = f"its definition names {hostdev.carrier} in a text, such as <qemu:commandline>"
        else:
            what = f"it has the device {hostdev.carrier} of this host, which vgpuctl does not manage"
        yield what, f"add --offline; or remove it: virsh edit {name}"
    for device in facts.domain.other_devices:
        yield f"it has a device of this host: {device}", f"add --offline; or remove it: virsh edit {name}"


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
    edit = f"add --offline; or stop the VM, and virsh edit {name}"
    if domain.has_gl or facts.vm.render_node is not None:
        where = f" on {facts.vm.render_node}" if facts.vm.render_node else ""
        yield f"QEMU draws for it with OpenGL{where} (virtio-gpu), and cannot send what it has drawn", "add --offline"
    if domain.has_unscaled_tsc:
        yield "its CPU has invtsc without a fixed TSC frequency: libvirt does not move it alive", edit
    if domain.unaddressed_dimms:
        yield "a hot-plugged memory module has no slot or address in the XML", edit
    for shmem in domain.peer_shmem:
        yield f"its shared memory {shmem} does not have role='master'", edit
    for directory in domain.file_systems:
        yield f"its guest has a directory of this host mounted ({directory}: virtiofs or 9p)", edit
    for disk in domain.disks:
        if disk.is_transient:
            yield f"its disk {disk.target} is transient", edit
        if disk.has_job:
            yield f"a block job copies its disk {disk.target}", f"virsh blockjob {name} {disk.target} --info shows it"


def _offline_reasons(facts: SourceFacts) -> Texts:
    """Yield what is lost without a running QEMU that sends it."""
    if facts.leftovers.tpm or facts.domain.has_tpm:
        is_off = facts.vm.state in NOT_RUNNING_STATES
        hint = f"{'start it, and ' if is_off else ''}move it without --offline: QEMU then sends the TPM's state"
        yield "the state of its TPM, such as BitLocker's keys, is on this host, and --offline does not copy it", hint


def _warnings(facts: SourceFacts, *, offline: bool) -> Texts:
    vm, name = facts.vm, _name(facts)
    if facts.leftovers.checkpoints:
        names = ", ".join(facts.leftovers.checkpoints)
        yield f"its checkpoints ({names}) stay behind: the next backup is a full one", f"virsh checkpoint-list {name}"
    if not offline:
        if facts.blockers is None and vm.state not in NOT_RUNNING_STATES:
            yield "whether QEMU can send this VM is not known: QEMU does not say what blocks it", None
        for vgpu in () if vm.record is None else vm.record.vgpus:
            if backend_for(vgpu.backend).live_move and facts.vgpus.get(vgpu.carrier) in (None, VgpuMigrationFacts()):
                yield f"whether the driver of {vgpu.carrier} can send its vGPU's state is not known", None
        return
    if facts.leftovers.nvram is not None:
        yield f"its firmware's settings ({facts.leftovers.nvram}) stay behind, such as the order of boot entries", None
    assigned = {v.carrier for v in (() if vm.record is None else vm.record.vgpus)}
    others = (*(h.carrier for h in vm.hostdevs if h.carrier not in assigned), *facts.domain.other_devices)
    for device in dict.fromkeys(others):
        yield f"it names the device {device} of this host, and starts only where there is one of this name", None
    for directory in facts.domain.file_systems:
        yield f"the directory of this host that is {directory} in its guest must be on the other host, too", None


def _name(facts: SourceFacts) -> str:
    return shlex.quote(facts.vm.name)
