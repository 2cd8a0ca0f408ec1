# SPDX-License-Identifier: Apache-2.0
"""What commands check first: that the host may be changed, that libvirt answers, that the VM exists."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable
from shlex import quote
from typing import TYPE_CHECKING

from vgpuctl.errors import (
    Busy,
    FileFailed,
    HostCannot,
    InvalidInput,
    NotAllowed,
    NotFound,
    NotYours,
    Refused,
    stale_error,
)
from vgpuctl.model import hint_commands
from vgpuctl.model.caller import Rights
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.names import is_pci_address
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import GPU_SETUP_CLAIM, UNRESPONSIVE_STATES, AssignedVgpu, RecordState, Vm, VmRecord, VmState
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.observe.claims import gpu_setup_error, living_operations, read_claims, refuse_concurrent_command
from vgpuctl.observe.definition import refuse_shared_vgpus
from vgpuctl.operations.controlled import check_fence, refuse_controlled
from vgpuctl.placement.constraints import select_gpus
from vgpuctl.placement.vm_placement import stuck_write_error
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.config.vm_request import VmRequest
    from vgpuctl.model.outcome import Context
    from vgpuctl.ports.host import Host


_UNQUOTED_WORDS = re.compile(r"( [\w@%+=:,./-]+)*", re.ASCII)
"""Words of a command line that need no quotes in a shell."""


def require_writable(host: Host, context: Context) -> None:
    """Refuse a changing command on a read-only host, or for a user who may not change the host; a dry run may go on.

    Raises:
        NotAllowed: the caller may only read.
        FileFailed: root is required.
        HostCannot: the host has no machine id.
        InvalidInput: with the reason.
    """
    if context.caller is not None and context.caller.rights is Rights.VIEWER:
        raise NotAllowed(
            f"{context.caller.account} may look at this host, and not change it",
            hint="members of the group vgpuctl may create VMs and change their own",
        )
    if context.dry_run:
        return
    require_root(host)
    if not host.machine_id:
        raise HostCannot(
            "this host has no machine id, and vgpuctl needs it to distinguish its own VMs from copies",
            hint="systemd-machine-id-setup",
            check="machine-id",
        )
    if host.read_only_reason is not None:
        raise InvalidInput(f"nothing can be changed here: {host.read_only_reason}", host=host.name)


def require_root(host: Host) -> None:
    """Refuse a user who may not change the host.

    Raises:
        FileFailed: root is required.
    """
    if host.unprivileged_user is not None:
        words = host.operations.current().command.removeprefix("vgpuctl")
        raise FileFailed(
            f"root is required to change this host, and {host.unprivileged_user} is not root",
            hint=f"sudo vgpuctl{words}" if _UNQUOTED_WORDS.fullmatch(words) else "run the same command with sudo",
            errno=errno.EPERM,
        )


def require_libvirt(snapshot: Snapshot) -> None:
    """Refuse to go on without libvirt.

    Raises:
        HostCannot: with libvirt's own reason.
    """
    status = snapshot.hypervisor
    if not status.available:
        reason = status.reason or "no reason given"
        raise HostCannot(
            reason if status.uri and status.uri in reason else f"libvirt does not answer at {status.uri}: {reason}",
            hint=status.hint
            or "systemctl start libvirtd (or virtqemud.socket virtnetworkd.socket virtstoraged.socket)",
            check="libvirt",
            uri=status.uri,
        )


def require_system_libvirt(snapshot: Snapshot) -> None:
    """Refuse to change anything over a connection that does not show the host's own VMs.

    The claims and devices are the host's; a session's libvirt or the test driver would make all of them look
    leaked.

    Raises:
        HostCannot: with the connection.
    """
    uri = snapshot.hypervisor.uri
    if "/session" in uri or uri.startswith("test:"):
        raise HostCannot(
            f"{uri} does not show this host's VMs and cannot give VFIO devices to them",
            hint="use --connect qemu:///system",
            check="session",
            uri=uri,
        )
    require_libvirt(snapshot)


def refuse_stuck_gpus(snapshot: Snapshot, gpus: Iterable[str]) -> None:
    """Refuse to work on a GPU on which a write is blocked in the kernel.

    Raises:
        Stuck: with the process and what it writes.
    """
    addresses = set(gpus)
    for write in snapshot.stuck_writes:
        if write.gpu in addresses:
            raise stuck_write_error(write)


def find_vm(snapshot: Snapshot, name: str) -> Vm:
    """Return the VM of that name or uuid.

    Raises:
        NotFound: with similar names.
    """
    require_libvirt(snapshot)
    vm = snapshot.vm(name)
    if vm is None:
        similar = difflib.get_close_matches(name, [v.name for v in snapshot.vms], n=3)
        hint = f"did you mean {', '.join(similar)}?" if similar else "vgpuctl list-vms shows the VMs"
        raise NotFound(f"there is no VM {name.strip() or repr(name)}", hint=hint, vm=name, near=similar)
    return vm


def find_vm_to_change(context: Context, snapshot: Snapshot, name: str) -> Vm:
    """Return the VM of that name or uuid, and record that the operation is about it.

    Whatever the operation does afterwards it does to this VM's uuid, which no other VM gets.

    Raises:
        NotFound, HostCannot: as `find_vm` and `require_system_libvirt`.
        NotYours, Stale: as `refuse_change`.
    """
    vm = find_vm(snapshot, name)
    require_system_libvirt(snapshot)
    context.subjects.add_vm(vm.name, vm.uuid)
    refuse_change(context, vm)
    return vm


def refuse_change(context: Context, vm: Vm) -> None:
    """Refuse to change a VM of another account, one of a controller, or one that was changed since the caller read it.

    Raises:
        NotYours: as `refuse_others_vm`.
        Controlled, RecordNewer, Refused: as `refuse_controlled`.
        Stale: its record has not the generation that the caller expects.
    """
    refuse_others_vm(context, vm)
    refuse_controlled(context, vm)
    expected, generation = context.if_generation, None if vm.record is None else vm.record.generation
    if expected is not None and generation != expected:
        raise stale_error(vm.name, generation, expected)


def refuse_changed_vm(host: Host, context: Context, vm: Vm) -> None:
    """Look again at a VM that has no claim to keep others away, if the caller expects a generation.

    Raises:
        NotFound: it was deleted.
        NotYours, Stale: as `refuse_change`.
        Refused: as `check_fence`.
    """
    check_fence(context)
    if context.if_generation is not None:
        refuse_change(context, find_vm(observe(host, scope_of_vm(vm.uuid)), vm.uuid))


def refuse_others_vms(context: Context, snapshot: Snapshot, names: Iterable[str]) -> None:
    """Refuse those of these VMs that exist and are another account's.

    Raises:
        NotYours: as `refuse_others_vm`, for the first one.
    """
    for name in names:
        vm = snapshot.vm(name)
        if vm is not None:
            refuse_others_vm(context, vm)


def with_account(request: VmRequest, context: Context) -> VmRequest:
    """Return the request with the account that makes the VM, whatever the request says."""
    return replace(request, account=context.account)


def refuse_others_vm(context: Context, vm: Vm) -> None:
    """Refuse a VM of another account; a VM without an account is root's.

    Raises:
        NotYours: naming the account, and what helps.
    """
    caller = context.caller
    if caller is None or caller.may_change(vm):
        return
    record = vm.record
    if record is None or not record.created_vm:
        text, hint = f"{vm.name} was not created by vgpuctl: it is root's", f"as root: virsh dominfo {quote(vm.name)}"
    else:
        text = f"{vm.name} is {'root' if record.account is None else record.account}'s"
        hint = f"agent: {{accounts: {{{caller.account}: operator}}}} in /etc/vgpuctl/host.yaml allows others' VMs"
    raise NotYours(f"{text}, and {caller.account} may not change it", hint=hint, vm=vm.name)


def refuse_unfinished(vm: Vm, record: VmRecord) -> None:
    """Refuse a VM that is half created or half removed.

    Raises:
        Busy: reconcile finishes it; a move is finished by who looks at both hosts.
    """
    refuse_moving(vm, record)
    if record.state is not RecordState.READY:
        text, hint = hint_commands.unfinished_text(vm.name, record)
        raise Busy(text, hint=hint, vm=vm.name, record=str(record.state))


def refuse_moving(vm: Vm, record: VmRecord) -> None:
    """Refuse a VM that moves from or to another host: that one may have files of it, or none.

    Raises:
        Busy: who looks at both hosts ends the move.
    """
    if (mark := record.migration) is None:
        return
    raise Busy(
        hint_commands.moving_text(vm.name, mark.peer, leaves=mark.leaves),
        hint=hint_commands.end_move_hint(vm, mark.peer),
        vm=vm.name,
        peer=mark.peer,
        role=str(mark.role),
    )


def refuse_gpus_in_setup(snapshot: Snapshot, gpus: Iterable[str]) -> None:
    """Refuse to start something on a GPU that a live process is setting up: its VFs may disappear at any moment.

    Raises:
        Busy: with the process.
    """
    addresses = set(gpus)
    for claim in snapshot.claims:
        if claim.carrier in addresses and claim.vm == GPU_SETUP_CLAIM and claim.carrier in snapshot.live_claim_carriers:
            raise gpu_setup_error(claim)


def busy_gpu_error(host: Host, gpu: str) -> Busy | None:
    """Return the error for changing a GPU on which another live operation works; None if there is none."""
    others = [c for c in read_claims(host) if c.gpu == gpu and c.operation != host.operations.current().id]
    living = living_operations(host, (c.operation for c in others))
    for other in others:
        if other.operation in living:
            return Busy(
                f"process {other.process.pid} works on {other.holder_text}: {other.command}",
                hint="wait for it, then run the command again",
                pid=other.process.pid,
                command=other.command,
                vm=None if other.vm == GPU_SETUP_CLAIM else other.vm,
            )
    return None


def refuse_losing_vgpus(snapshot: Snapshot, vm: Vm) -> None:
    """Refuse to start a VM from which a live process removes vGPUs: the remaining ones may disappear at any moment.

    Raises:
        Busy: with the process.
    """
    for claim in snapshot.claims:
        if claim.vm_uuid == vm.uuid and claim.leaving and claim.carrier in snapshot.live_claim_carriers:
            raise Busy(
                f"process {claim.process.pid} is removing vGPUs from VM {vm.name}: {claim.command}",
                hint="start the VM again when it has ended",
                pid=claim.process.pid,
                vm=vm.name,
            )


def refuse_start_between(vm: Vm) -> None:
    """Refuse to start a VM that neither is off nor runs: a start would do nothing.

    Raises:
        Busy: it is shutting down.
        Refused: it is paused, asleep or crashed; the hint makes it run.
    """
    if vm.state in (VmState.STOPPED, VmState.RUNNING):
        return
    text = f"{vm.name} is {vm.state}: it cannot be started"
    hint = hint_commands.run_command(vm)
    if vm.state is VmState.PAUSED:
        hint += f"; virsh domstate --reason {hint.removeprefix('virsh resume ')} shows why, such as a full disk"
    kind = Busy if vm.state is VmState.SHUTTING_DOWN else Refused
    raise kind(text, hint=hint, vm=vm.name, state=str(vm.state))


def refuse_unresponsive_vm(vm: Vm) -> None:
    """Refuse to shut down a VM whose guest cannot react.

    Raises:
        Refused: with what helps.
    """
    if vm.state in UNRESPONSIVE_STATES:
        raise Refused(
            f"{vm.name} is {vm.state}: its guest cannot shut down",
            hint=hint_commands.off_command(vm),
            vm=vm.name,
            state=str(vm.state),
        )


def refuse_vgpus_in_other_vms(snapshot: Snapshot, vm: Vm, vgpus: Iterable[AssignedVgpu]) -> None:
    """Refuse to start or change a VM while another VM, such as a clone, uses a device of it.

    `vgpus`: those that have a slot, or get one. A slot that the VM had last and does not reserve is free for others.

    Raises:
        InUse: with the other VM.
    """
    carriers = {h.carrier for h in vm.hostdevs if vm.refers_to(h.carrier)} | {v.carrier for v in vgpus}
    refuse_shared_vgpus(snapshot.vms, vm, carriers)


def refuse_busy_vm(host: Host, vm: Vm) -> None:
    """Refuse a VM for which another live process holds a claim; under the host lock the first one wins.

    Raises:
        Busy: with the process.
    """
    refuse_concurrent_command(host, vm.name, vm.uuid)


def select_one_gpu(snapshot: Snapshot, gpu_name: str) -> Gpu:
    """Return the one GPU that an address or a model name matches, and that host.yaml can name.

    Raises:
        NotFound: no GPU matches.
        InvalidInput: several GPUs match, or the GPU has no PCI address.
    """
    gpus = select_gpus(snapshot, gpu_name)
    if len(gpus) > 1:
        raise InvalidInput(
            f"'{gpu_name}' matches {len(gpus)} GPUs here",
            hint=f"specify one: {', '.join(g.address for g in gpus)}; --all selects all",
            gpus=[g.address for g in gpus],
        )
    if not is_pci_address(gpus[0].address):
        raise InvalidInput(
            f"{gpus[0].address} has no PCI address, which host.yaml needs to name a GPU",
            hint="vgpuctl list-gpus shows those that have one",
            gpu=gpus[0].address,
        )
    return gpus[0]


def deleted_meanwhile(vm: Vm) -> NotFound:
    """Return the error for a VM that another command deleted between two snapshots."""
    return NotFound(
        f"VM {vm.name} no longer exists: it has just been deleted",
        hint="vgpuctl list-vms shows the VMs",
        vm=vm.name,
    )


def changed_meanwhile(vm: Vm) -> Busy:
    """Return the error for a VM that is no longer as the snapshot from which a change was planned."""
    return Busy(f"{vm.name} was changed or started in the meantime", hint="run the command again", vm=vm.name)
