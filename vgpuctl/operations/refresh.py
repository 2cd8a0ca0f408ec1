# SPDX-License-Identifier: Apache-2.0
"""Rebuild a VM from another base image: its system disk becomes a new clone, everything else stays.

It keeps name, uuid, MAC address, vGPUs, NVRAM, TPM, the other disks and the seed for cloud-init. Until the VM uses the
new disk, a failure undoes everything. After that the VM is refreshed, and only the old disk still has to be deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import InUse, NotFound, VgpuctlError
from vgpuctl.model.outcome import Confirm, Outcome, Progress
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import ManagedDisk, Vm, VmRecord
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.chains import find_backing_chains, image_hints
from vgpuctl.operations.guards import find_vm, refuse_stuck_gpus, require_system_libvirt, require_writable
from vgpuctl.operations.plans import refresh as plan
from vgpuctl.operations.plans.chains import refuse_shared_disks
from vgpuctl.operations.plans.facts import check_files
from vgpuctl.operations.plans.pools import check_full_size, check_pool
from vgpuctl.operations.plans.remove import own_record
from vgpuctl.operations.plans.reserve import with_slot
from vgpuctl.operations.plans.transient import refuse_transient_vms
from vgpuctl.operations.plans.vm_results import vm_result
from vgpuctl.operations.power import read_domain_leftovers, refuse_unfinished
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.domain import STOPPED_STATES, StartDomain, StopDomain
from vgpuctl.operations.transaction import Context, Transaction
from vgpuctl.operations.with_vm_stopped import with_vm_stopped
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


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
    host: Host,
    name: str,
    image: str,
    *,
    drain: bool,
    dry_run: bool,
    confirm: Confirm,
    wait_seconds: float,
    progress: Progress,
) -> Outcome[VmReport]:
    """Give a VM a new clone of `image` as its system disk; what was written to the old disk is lost.

    `drain`: a running VM is shut down first, within `wait_seconds`, and started again whether the refresh succeeds
    or fails.

    Raises:
        InUse: the VM runs, has snapshots, or another VM's disk is a clone of its disk.
        PartlyApplied: the VM is refreshed, but the old disk could not be deleted or the VM could not be started again.
        VgpuctlError: the reason; the VM is unchanged.
    """
    if not dry_run:
        require_writable(host)
    plan = _plan_refresh(host, name, image)
    vm = plan.vm
    is_running = vm.state not in STOPPED_STATES
    if is_running and not drain:
        raise InUse(
            f"{vm.name} is {vm.state}; its disk can be replaced only while it is off",
            hint=f"vgpuctl stop-vm {vm.name}, or use --drain",
            vm=vm.name,
            state=str(vm.state),
        )
    stop = StopDomain(vm.name, vm.uuid, force=False, deadline_seconds=wait_seconds)
    around: tuple[list[Step], list[Step]] = ([stop], [StartDomain(vm.name, vm.uuid)]) if is_running else ([], [])
    steps = tuple(s.describe() for s in (*around[0], *plan.make_plan.steps, *plan.drop_plan.steps, *around[1]))
    notes = (f"all data on {plan.old_disk.path} is lost",)
    if dry_run:
        return Outcome(True, vm_result(plan.snapshot, vm), steps, plan.snapshot.warnings, notes, dry_run=True)
    confirm(f"Rebuild VM {vm.name} from {image}? All data on {plan.old_disk.path} is lost.", steps)
    with_vm_stopped(
        host,
        vm,
        lambda: _replace_disk(host, vm.uuid, image, wait_seconds, progress),
        "refreshed",
        wait_seconds,
        progress,
    )
    return report_vm(host, vm_result(plan.snapshot, vm), steps, notes)


def _plan_refresh(host: Host, name: str, image: str) -> RefreshPlan:
    """Read the VM, the image and the pool, and refuse a refresh that cannot work."""
    snapshot = observe(host, ReadScope(models=False))
    vm = find_vm(snapshot, name)
    require_system_libvirt(snapshot)
    record = own_record(vm, "refresh")
    refuse_unfinished(vm, record)
    refuse_transient_vms((vm,))
    refuse_stuck_gpus(snapshot, [v.gpu for v in record.vgpus])
    old_disk = plan.system_disk(vm, record)
    image_info = host.storage.image(image)
    chains = find_backing_chains(host, snapshot, image, old_disk.path)
    check_files(chains, {image: image_info}, image_hints(host, {image: image_info}), bases=[image])
    if image_info is None:
        raise NotFound(f"file {image} does not exist", path=image)
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


def _replace_disk(host: Host, name: str, image: str, wait_seconds: float, progress: Progress) -> None:
    """Plan again, take over the VM's claims for this process, and carry out both plans."""
    refresh_plan = _plan_refresh(host, name, image)
    if refresh_plan.vm.state not in STOPPED_STATES:
        raise InUse(
            f"{refresh_plan.vm.name} has just been started", hint="run the command again", vm=refresh_plan.vm.name
        )
    held_record = replace(
        refresh_plan.record, vgpus=with_slot(refresh_plan.snapshot, refresh_plan.vm, refresh_plan.record)
    )
    with Transaction(host, Context(progress, wait_seconds)) as tx:
        tx.take_over_vm(refresh_plan.vm, held_record, ReadScope(models=False))
        tx.note(() if held_record.vgpus else (refresh_plan.vm.uuid,))
        tx.carry_out(refresh_plan.make_plan)
        try:
            tx.carry_out(refresh_plan.drop_plan)
        except VgpuctlError as error:
            error.changed = True
            raise
