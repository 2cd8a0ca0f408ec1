# SPDX-License-Identifier: Apache-2.0
"""Create the missing devices of a VM without calling libvirt: before libvirt runs, and while it waits for its hook.

The claims, checks and steps are those of start-vm; only the start itself is libvirt's. Nothing here calls libvirt; the
hook's Host has no NVML either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.backends import backend_for
from vgpuctl.errors import Busy, HostCannot
from vgpuctl.model.hint_commands import start_command
from vgpuctl.model.outcome import Context
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, RecordState, Vm, VmRecord
from vgpuctl.observe import ReadScope, claimed_gpus, observe_devices, scope_of_request
from vgpuctl.observe.pci import find_absent
from vgpuctl.operations.claim import LIBVIRT_NOT_QUERIED, claims_of_record, recheck_scope
from vgpuctl.operations.guards import refuse_gpus_in_setup, refuse_losing_vgpus
from vgpuctl.operations.plans.devices import check_devices, missing_device_steps
from vgpuctl.operations.plans.displaced import why_displaced
from vgpuctl.operations.plans.remove import release_steps
from vgpuctl.operations.plans.reserve import choose_slots, request_from_record, with_slot
from vgpuctl.operations.transaction import Owner, Transaction
from vgpuctl.ports.step import Plan
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

DOMAIN_XML_DIRECTORY = "/etc/libvirt/qemu"
MANAGED_SAVE_DIRECTORY = "/var/lib/libvirt/qemu/save"


def has_missing_devices(host: Host, vm: Vm, record: VmRecord) -> bool:
    """Say whether a device of the VM, or a claim on one, is missing or of another type than the VM was given.

    Raises:
        Busy: a process is setting up one of its GPUs, or removes vGPUs from the VM.
    """
    return lacks_devices(observe_carriers(host, (record,), (vm,)), vm, record)


def observe_carriers(host: Host, records: tuple[VmRecord, ...], vms: tuple[Vm, ...]) -> Snapshot:
    """Return the carriers of these records and their GPUs, without types: usually nothing is missing."""
    carriers = frozenset(v.carrier for record in records for v in record.vgpus)
    gpus = frozenset(v.gpu for record in records for v in record.vgpus)
    for record in records:
        if not record.always_reserves:
            gpus |= claimed_gpus(host, record.vm_uuid, frozenset(v.carrier for v in record.vgpus))
    scope = ReadScope(models=False, gpu_addresses=gpus, carriers=carriers | gpus, cached_vgpus=())
    return observe_devices(host, scope, vms=vms, status=LIBVIRT_NOT_QUERIED)


def lacks_devices(snapshot: Snapshot, vm: Vm, record: VmRecord) -> bool:
    """Say whether `snapshot` lacks a device of the VM or a claim on one, or shows a device of another type.

    Reads no catalogue of types, because this is the common case: a device's type is compared with the one in its claim.

    Raises:
        Busy: a process is setting up one of its GPUs, or removes vGPUs from the VM.
    """
    refuse_losing_vgpus(snapshot, vm)
    carriers = frozenset(v.carrier for v in record.vgpus)
    refuse_gpus_in_setup(snapshot, frozenset(v.gpu for v in with_slot(snapshot, vm, record)))
    claimed_types = {c.carrier: c.type_id for c in snapshot.claims if c.vm_uuid == vm.uuid}
    current_types = {v.carrier: v.type_id for v in snapshot.vgpus if v.present and v.vm_uuid == vm.uuid}
    if not carriers <= claimed_types.keys() & current_types.keys():
        return True
    return any(claimed_types[c] is not None and claimed_types[c] != current_types[c] for c in carriers)


def plan_missing_devices(
    host: Host, vm: Vm, record: VmRecord, vms: tuple[Vm, ...], cached: Snapshot | None = None
) -> Plan:
    """Read the VM's GPUs and return the steps that create missing devices; `vms`: all VMs whose records are known.

    `cached`: a snapshot of these GPUs taken a moment ago.

    Raises:
        VgpuctlError: why a device cannot be created, with the holder of its slot.
    """
    return _plan_from_snapshot(host, observe_record_gpus(host, (record,), vms, cached), vm, record)


def find_displaced(
    host: Host, snapshot: Snapshot, record: VmRecord, *, any_function: bool = False
) -> Mapping[str, str]:
    """Return the carriers of a record whose slot cannot come back, each with the reason.

    `snapshot`: with the types of the record's GPUs; without them a GPU of another model is not noticed. `any_function`:
    as `why_displaced`.
    """
    missing = {v.gpu for v in record.vgpus if snapshot.gpu(v.gpu) is None}
    absent = find_absent(host.sysfs, missing)
    reasons = {v.carrier: why_displaced(snapshot, absent, v, any_function=any_function) for v in record.vgpus}
    return {carrier: reason for carrier, reason in reasons.items() if reason is not None}


def displaced_error(vm: Vm, reason: str) -> HostCannot:
    """Return the error where a VM needs another slot and its definition cannot be changed."""
    return HostCannot(f"{vm.name} needs another place: {reason}", hint=start_command(vm), check="displaced", vm=vm.name)


def _plan_from_snapshot(host: Host, snapshot: Snapshot, vm: Vm, record: VmRecord) -> Plan:
    refuse_not_ready(vm, record)
    for reason in find_displaced(host, snapshot, record).values():
        raise displaced_error(vm, reason)
    check_devices(snapshot, record)
    return Plan(steps=missing_device_steps(snapshot, vm, record))


def refuse_not_ready(vm: Vm, record: VmRecord) -> None:
    """Refuse a VM that is half created or half removed.

    Raises:
        Busy: reconcile finishes it.
    """
    if record.state is not RecordState.READY:
        raise Busy(
            f"{vm.name} is unfinished: its record says {record.state}",
            hint="vgpuctl reconcile-host, if no vgpuctl process works on it any more",
            vm=vm.name,
            record=str(record.state),
        )


def observe_record_gpus(
    host: Host, records: tuple[VmRecord, ...], vms: tuple[Vm, ...], cached: Snapshot | None = None
) -> Snapshot:
    """Return the GPUs of these records with their types, as the kernel shows them now.

    What does not change is taken from `cached`, a snapshot taken a moment ago: names, types, what NVML reports of them,
    and the state of VFs that these records do not use; the claims on those VFs are read again.
    """
    vgpus = tuple(v for record in records for v in record.vgpus)
    scope = ReadScope(types=True, models=False, gpu_addresses=frozenset(v.gpu for v in vgpus), cached_vgpus=())
    if cached is not None and all(_is_cached(cached, v) for v in vgpus):
        scope = replace(recheck_scope(cached, vgpus), cached_vgpus=(), functions=frozenset(v.function for v in vgpus))
    return observe_devices(host, scope, vms=vms, status=LIBVIRT_NOT_QUERIED)


def _is_cached(cached: Snapshot, vgpu: AssignedVgpu) -> bool:
    gpu = cached.gpu(vgpu.gpu)
    return gpu is not None and any(t.profile == vgpu.profile for t in gpu.types)


def make_devices(
    host: Host, context: Context, vm: Vm, record: VmRecord, vms: tuple[Vm, ...], cached: Snapshot | None = None
) -> tuple[str, ...]:
    """Claim and create a VM's missing devices; return the lines of the steps performed.

    `cached`: a snapshot of its GPUs taken a moment ago.

    Raises:
        Busy: another process works on this VM, or another VM has claimed its slot; the message names it.
        VgpuctlError: as `plan_missing_devices`; everything created has been undone.
    """
    snapshot = cached if cached is not None else observe_record_gpus(host, (record,), vms)
    _plan_from_snapshot(host, snapshot, vm, record)
    with Transaction(host, context, vms) as tx:
        tx.take_over(claims_of_record(host, vm.name, record), snapshot=snapshot)
        plan = plan_missing_devices(host, vm, record, vms, snapshot)
        steps = tx.lines(plan)
        tx.carry_out(plan)
    return steps


class PlacedStart(Value):
    """Slots for a VM that does not always reserve them, wherever its definition allows; a transaction can make it.

    `look` reads the host again: a command that sets a GPU up claims it first and reads the host afterwards, and so does
    this.
    """

    seen: Snapshot
    scope: ReadScope
    vm: Vm
    record: VmRecord
    look: Callable[[], Snapshot]

    @property
    def owner(self) -> Owner:
        """The VM; its definition stays, and so do the claims that it has."""
        return Owner(self.vm.name, self.record)

    def choose(self, seen: Snapshot) -> tuple[AssignedVgpu, ...]:
        """Return a slot for each of its vGPUs without one."""
        return choose_slots(seen, self.vm, self.record, keep_definition=True)

    def plan(self, seen: Snapshot, vgpus: tuple[AssignedVgpu, ...]) -> Plan:
        """Return the steps that make its devices."""
        current = self.look()
        placed_record = replace(self.record, vgpus=with_slot(current, self.vm, self.record))
        refuse_gpus_in_setup(current, [v.gpu for v in placed_record.vgpus])
        check_devices(current, placed_record)
        return Plan(steps=missing_device_steps(current, self.vm, placed_record))


def place_and_make(host: Host, context: Context, vm: Vm, record: VmRecord, vms: tuple[Vm, ...]) -> None:
    """Claim and create the vGPUs of a VM that does not always reserve them, wherever its definition allows.

    `vms`: all VMs whose records are known; a slot that another VM reserves permanently is not taken.

    Raises:
        InUse: a function that the VM's definition names is not free.
        NoCapacity: no GPU has room.
        VgpuctlError: any other reason; everything created has been undone.
    """
    refuse_not_ready(vm, record)
    scope = scope_of_request(request_from_record(vm, record, record.vgpus))
    reserved = replace(record, vgpus=tuple(v for v in record.vgpus if record.reserves_slot(v)))

    def prepare(tx: Transaction) -> PlacedStart:
        if reserved.vgpus:
            tx.take_over(claims_of_record(host, vm.name, reserved))
        return PlacedStart(tx.look(scope), scope, vm, record, partial(tx.look, scope))

    with Transaction(host, context, vms) as tx:
        tx.make(prepare)


def release_devices(host: Host, context: Context, vm: Vm, record: VmRecord) -> None:
    """Release the devices of a VM that was just stopped and reserves its slots only while it runs.

    Only devices that a claim assigns to the VM are released. With a managed save they stay: the saved guest needs them.

    Raises:
        Busy: another process works on the VM, and releases its devices or needs them.
        VgpuctlError: a device could not be removed.
    """
    carriers = frozenset(v.carrier for v in record.vgpus)
    scope = ReadScope(
        models=False, gpu_addresses=claimed_gpus(host, vm.uuid, carriers), carriers=carriers, cached_vgpus=()
    )
    held_vgpus = with_slot(observe_devices(host, scope, vms=(vm,), status=LIBVIRT_NOT_QUERIED), vm, record)
    if not held_vgpus or record.state is not RecordState.READY or _has_managed_save(host, vm.name):
        return
    claims = claims_of_record(host, vm.name, replace(record, vgpus=held_vgpus))
    with Transaction(host, context, (vm,)) as tx:
        tx.take_over(claims, include_missing=False, leaving=True)
        tx.carry_out(Plan(release_steps(vm, held_vgpus), undo_on_failure=False))


def _has_managed_save(host: Host, name: str) -> bool:
    """Say whether libvirt keeps a managed save of a VM; True too if the directory cannot be read: it may hold one."""
    try:
        return f"{name}.save" in host.sysfs.listdir(MANAGED_SAVE_DIRECTORY)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def needs_device_creation(record: VmRecord) -> bool:
    """Say whether there is a device to create: libvirt itself binds plain VFs and whole GPUs."""
    return any(backend_for(v.backend).creates_devices for v in record.vgpus)
