# SPDX-License-Identifier: Apache-2.0
"""Rebuild a VM from another base image: its system disk becomes a new clone, everything else stays.

It keeps name, uuid, MAC address, vGPUs, NVRAM, TPM, the other disks and the seed for cloud-init. Until the VM uses the
new disk, a failure undoes everything. After that the VM is refreshed, and only the old disk still has to be deleted.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.errors import InUse, NotFound, VgpuctlError
from vgpuctl.model import hint_commands
from vgpuctl.model.outcome import Context, NoProgress, Outcome, Progress
from vgpuctl.model.port_values import ImageInfo
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import UNRESPONSIVE_STATES, ManagedDisk, Vm, VmRecord
from vgpuctl.observe import ReadScope, observe, scope_of_vm
from vgpuctl.operations.chains import find_backing_chains, image_hints
from vgpuctl.operations.guards import (
    find_vm,
    find_vm_to_change,
    refuse_stuck_gpus,
    refuse_unfinished,
    refuse_unresponsive_vm,
    refuse_vgpus_in_other_vms,
    require_writable,
)
from vgpuctl.operations.plans import refresh as plan
from vgpuctl.operations.plans.chains import BackingChains, refuse_shared_disks
from vgpuctl.operations.plans.facts import check_files, check_full_size, check_pool
from vgpuctl.operations.plans.remove import own_record
from vgpuctl.operations.plans.reserve import with_slot
from vgpuctl.operations.plans.transient import refuse_transient_vms
from vgpuctl.operations.plans.vm_results import image_of, vm_result
from vgpuctl.operations.power import read_domain_leftovers
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.domain import STOPPED_STATES, StartDomain, StopDomain
from vgpuctl.operations.transaction import Transaction
from vgpuctl.operations.with_vm_stopped import with_vm_stopped
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class WholeProgress(NoProgress):
    """Reports several plans, one after the other, as one: their steps are numbered through.

    `steps`: the expected steps of all plans. A plan may have others, as for a claim that is missing; they are added.
    """

    def __init__(self, progress: Progress, steps: tuple[str, ...]) -> None:
        self._progress = progress
        self._ahead = steps
        self._finished: list[str] = []
        self._before = 0

    def on_plan(self, steps: tuple[str, ...]) -> None:
        """Report the steps of all plans, as far as they are known."""
        self._ahead = tuple(step for step in self._ahead if step not in steps)
        self._before = len(self._finished)
        self._progress.on_plan((*self._finished, *steps, *self._ahead))

    def on_step_start(self, number: int, text: str) -> None:
        """Report the step with its number among all."""
        self._progress.on_step_start(self._before + number, text)

    def on_step_progress(self, number: int, text: str, percent: float) -> None:
        """Report the step with its number among all."""
        self._progress.on_step_progress(self._before + number, text, percent)

    def on_step_finish(self, number: int, text: str) -> None:
        """Report the step with its number among all."""
        self._finished.append(text)
        self._progress.on_step_finish(self._before + number, text)

    def on_step_undo(self, text: str) -> None:
        """Report what is undone."""
        self._progress.on_step_undo(text)


class RefreshPlan(Value):
    """A checked refresh of one VM; nothing is written yet."""

    snapshot: Snapshot
    vm: Vm
    record: VmRecord
    old_disk: ManagedDisk
    new_disk: ManagedDisk
    make_plan: Plan
    drop_plan: Plan


def refresh_vm(
    host: Host, context: Context, name: str, image: str, *, from_image: str | None = None, drain: bool
) -> Outcome[VmReport]:
    """Give a VM a new clone of `image` as its system disk; what was written to the old disk is lost.

    `from_image`: a VM whose system disk was not made from this image is left alone.
    `drain`: a running VM is shut down first, within `wait_seconds`, and started again whether the refresh succeeds
    or fails.

    Raises:
        InUse: the VM runs, has snapshots, or another VM's disk is a clone of its disk.
        PartlyApplied: the VM is refreshed, but the old disk could not be deleted or the VM could not be started again.
        VgpuctlError: the reason; the VM is unchanged.
    """
    require_writable(host, context)
    if from_image is not None:
        left_alone = _left_alone(host, context, name, from_image)
        if left_alone is not None:
            return left_alone
    plan = _plan_refresh(host, context, name, image)
    vm = plan.vm
    is_running = vm.state not in STOPPED_STATES
    if is_running and not drain:
        raise _running_error(vm)
    refuse_unresponsive_vm(vm)
    stop = StopDomain(vm.name, vm.uuid, force=False, deadline_seconds=context.wait_seconds)
    around: tuple[list[Step], list[Step]] = ([stop], [StartDomain(vm.name, vm.uuid)]) if is_running else ([], [])
    steps = tuple(s.describe() for s in (*around[0], *plan.make_plan.steps, *plan.drop_plan.steps, *around[1]))
    loss = f"all data on {plan.old_disk.path} will be lost"
    if plan.old_disk.image == image:
        loss += f", and {vm.name} already is made from {image}"
    if context.dry_run:
        return Outcome(True, vm_result(plan.snapshot, vm), steps, plan.snapshot.warnings, (loss,), dry_run=True)
    context.confirm(f"Rebuild VM {vm.name} from {image}? {loss[0].upper()}{loss[1:]}.", steps)
    whole = replace(context, progress=WholeProgress(context.progress, steps))
    with_vm_stopped(host, whole, vm, partial(_replace_disk, host, whole, plan, image), "refreshed")
    return report_vm(host, vm_result(plan.snapshot, vm), steps)


def _running_error(vm: Vm) -> InUse:
    return InUse(
        f"{vm.name} is {vm.state}; its disk can be replaced only while it is off",
        hint=f"{hint_commands.off_command(vm)}{'' if vm.state in UNRESPONSIVE_STATES else ', or use --drain'}",
        vm=vm.name,
        state=str(vm.state),
    )


def _left_alone(host: Host, context: Context, name: str, from_image: str) -> Outcome[VmReport] | None:
    """Return the unchanged VM if its system disk was not made from `from_image`, None if it was."""
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm(snapshot, name)
    own_record(vm, "refresh")
    if image_of(vm) == from_image:
        return None
    note = f"VMs whose first disk is not made from {from_image} are left alone"
    return Outcome(False, vm_result(snapshot, vm), (), snapshot.warnings, (note,), dry_run=context.dry_run)


def _plan_refresh(host: Host, context: Context, name: str, image: str) -> RefreshPlan:
    """Read the VM, the image and the pool, and refuse a refresh that cannot work."""
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm_to_change(context, snapshot, name)
    record = own_record(vm, "refresh")
    refuse_unfinished(vm, record)
    refuse_transient_vms((vm,))
    refuse_stuck_gpus(snapshot, [v.gpu for v in record.vgpus])
    refuse_vgpus_in_other_vms(snapshot, vm, with_slot(snapshot, vm, record))
    old_disk = plan.system_disk(vm, record)
    chains = find_backing_chains(host, snapshot, image, old_disk.path)
    image_info = _usable_image(host, image, chains)
    plan.refuse_unbootable(vm, image_info)
    plan.refuse_saved_states(vm, read_domain_leftovers(host, vm))
    refuse_shared_disks(chains, vm, replace(record, disks=(old_disk,)), can_keep=False)
    pool = host.storage.pool(old_disk.pool)
    check_pool(old_disk.pool, pool)
    check_full_size(pool, [max(old_disk.capacity_bytes, image_info.virtual_size_bytes)])
    if pool is None:
        raise NotFound(
            f"the storage pool {old_disk.pool} of {old_disk.path} no longer exists",
            hint="virsh pool-define-as defines it again",
            pool=old_disk.pool,
        )
    names = plan.free_volume_names(vm, record, old_disk)
    free_name = next(n for n in names if not pool.active or host.storage.volume(pool.name, n) is None)
    added_disk = plan.new_disk(old_disk, image_info, free_name)
    drop_plan = plan.spare_removal_plan(vm, plan.record_after_switch(record, old_disk, added_disk))
    return RefreshPlan(
        snapshot,
        vm,
        record,
        old_disk,
        added_disk,
        plan.disk_switch_plan(vm, record, old_disk, added_disk, image_info, pool),
        drop_plan,
    )


def check_image(host: Host, image: str) -> None:
    """Refuse an image that no VM could be rebuilt from, whatever VM it is.

    Raises:
        NotFound, InvalidInput, HostCannot, Refused, InUse: as `check_files`.
    """
    _usable_image(
        host, image, find_backing_chains(host, observe(host, ReadScope(models=False, gpu_addresses=frozenset())), image)
    )


def _usable_image(host: Host, image: str, chains: BackingChains) -> ImageInfo:
    image_info = host.storage.image(image)
    check_files(chains, {image: image_info}, image_hints(host, {image: image_info}), bases=[image])
    if image_info is None:
        raise NotFound(f"file {image} does not exist", path=image)
    return image_info


def _replace_disk(host: Host, context: Context, checked: RefreshPlan, image: str) -> None:
    """Plan again, take over the VM's claims for this process, and carry out both plans."""
    refresh_plan = _plan_refresh(host, context, checked.vm.uuid, image)
    if refresh_plan.old_disk != checked.old_disk:
        raise InUse(
            f"{checked.vm.name} has just been changed: its disk is {refresh_plan.old_disk.path} now",
            hint="run the command again",
            vm=checked.vm.name,
        )
    if refresh_plan.vm.state not in STOPPED_STATES:
        raise InUse(
            f"{refresh_plan.vm.name} has just been started", hint="run the command again", vm=refresh_plan.vm.name
        )
    held_record = replace(
        refresh_plan.record, vgpus=with_slot(refresh_plan.snapshot, refresh_plan.vm, refresh_plan.record)
    )
    with Transaction(host, context) as tx:
        tx.take_over_vm(refresh_plan.vm, held_record, scope_of_vm(refresh_plan.vm.uuid))
        if not held_record.vgpus:
            tx.note(refresh_plan.vm.name, refresh_plan.vm.uuid)
        tx.carry_out(refresh_plan.make_plan)
        try:
            tx.carry_out(refresh_plan.drop_plan)
        except VgpuctlError as error:
            error.changed = True
            raise
