# SPDX-License-Identifier: Apache-2.0
"""Create the missing devices of a VM: the one way of start-vm, restore-host and libvirt's hook.

A caller that knows the VMs from libvirt's files, before libvirt runs and while it waits for its hook, does not call
libvirt; the hook's Host has no NVML either. What needs lxml, a changed definition, is handed in by start-vm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from vgpuctl.backends import backend_for
from vgpuctl.errors import HostCannot, VgpuctlError
from vgpuctl.model.hint_commands import start_command
from vgpuctl.model.outcome import Context
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, RecordState, Vm, VmRecord
from vgpuctl.observe import ReadScope, claimed_gpus, observe_devices, scope_of_request, scope_of_vm
from vgpuctl.observe.claims import refuse_concurrent_command
from vgpuctl.observe.pci import find_absent
from vgpuctl.operations.claim import LIBVIRT_NOT_QUERIED, claims_of_record, recheck_scope
from vgpuctl.operations.guards import refuse_gpus_in_setup, refuse_losing_vgpus, refuse_unfinished
from vgpuctl.operations.plans.devices import check_devices, missing_device_steps, why_displaced, without_displaced
from vgpuctl.operations.plans.remove import release_steps
from vgpuctl.operations.plans.reserve import choose_slots, request_from_record, with_slot
from vgpuctl.operations.transaction import Made, Owner, Transaction
from vgpuctl.ports.step import Plan, Step
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


def observe_record_gpus(host: Host, records: tuple[VmRecord, ...], vms: tuple[Vm, ...]) -> Snapshot:
    """Return the GPUs of these records with their types, as the kernel shows them now."""
    return observe_devices(host, _scope_of_gpus(records), vms=vms, status=LIBVIRT_NOT_QUERIED)


def _scope_of_gpus(records: tuple[VmRecord, ...], cached: Snapshot | None = None) -> ReadScope:
    """Return the scope for the GPUs of these records with their types.

    What does not change is taken from `cached`, a snapshot taken a moment ago: names, types, what NVML reports of them,
    and the state of VFs that these records do not use; the claims on those VFs are read again.
    """
    vgpus = tuple(v for record in records for v in record.vgpus)
    if cached is not None and all(_is_cached(cached, v) for v in vgpus):
        return replace(recheck_scope(cached, vgpus), cached_vgpus=(), functions=frozenset(v.function for v in vgpus))
    return ReadScope(types=True, models=False, gpu_addresses=frozenset(v.gpu for v in vgpus), cached_vgpus=())


def _is_cached(cached: Snapshot, vgpu: AssignedVgpu) -> bool:
    gpu = cached.gpu(vgpu.gpu)
    return gpu is not None and any(t.profile == vgpu.profile for t in gpu.types)


class Definition(Protocol):
    """What may change a VM's definition, and start it. A caller that must leave the definition alone has none."""

    def choose(self, seen: Snapshot, vm: Vm, record: VmRecord) -> tuple[AssignedVgpu, ...]:
        """Return a slot for each vGPU of `record` without one."""

    def check(self, seen: Snapshot, record: VmRecord) -> None:
        """Refuse what prevents the start with the vGPUs of `record`."""

    def steps(self, seen: Snapshot, record: VmRecord, *, in_place: bool) -> tuple[Step, ...]:
        """Return the steps once the devices of `record` are made. `in_place`: they are where the VM's record says."""

    def refuse_changed(self) -> None:
        """Refuse a VM that another command changes or just changed: what seems to block it may be its own vGPU."""


class MissingDevices(Value):
    """The devices that a VM lacks, and slots for its vGPUs without one; a transaction can make them.

    `definition` None: the definition stays. `displaced`: the carriers whose recorded slot cannot come back.
    """

    seen: Snapshot
    scope: ReadScope
    vm: Vm
    record: VmRecord
    definition: Definition | None = None
    displaced: frozenset[str] = frozenset()

    @property
    def owner(self) -> Owner:
        """The VM, with the slots that it has."""
        held = with_slot(*without_displaced(self.seen, self.vm, self.record, self.displaced))
        return Owner(self.vm.name, self.record, self.vm, held)

    def choose(self, seen: Snapshot) -> tuple[AssignedVgpu, ...]:
        """Return a slot for each of its vGPUs without one."""
        seen, vm, record = without_displaced(seen, self.vm, self.record, self.displaced)
        if self.definition is None:
            return choose_slots(seen, vm, record, keep_definition=True)
        return self.definition.choose(seen, vm, record)

    def plan(self, seen: Snapshot, vgpus: tuple[AssignedVgpu, ...]) -> Plan:
        """Return the steps after the claims: make each missing device, then those of `definition`."""
        seen, _, waiting = without_displaced(seen, self.vm, self.record, self.displaced)
        kept = with_slot(seen, self.vm, waiting)
        by_index = {v.index: v for v in (*kept, *vgpus)}
        record = replace(self.record, vgpus=tuple(by_index[v.index] for v in self.record.vgpus))
        if self.definition is not None:
            self.definition.check(seen, record)
        refuse_gpus_in_setup(seen, [v.gpu for v in record.vgpus])
        check_devices(seen, record)
        steps = missing_device_steps(seen, self.vm, record)
        if self.definition is None:
            return Plan(steps)
        in_place = self.record.always_reserves and not self.displaced
        steps += self.definition.steps(seen, record, in_place=in_place)
        return Plan(steps, vms_required_off=(self.vm.uuid,))


def make_devices(
    host: Host,
    context: Context,
    vm: Vm,
    record: VmRecord,
    vms: tuple[Vm, ...] | None = None,
    *,
    cached: Snapshot | None = None,
    definition: Definition | None = None,
) -> Made[MissingDevices]:
    """Claim and create the devices that a VM lacks, in other slots where it has none or its own cannot come back.

    The order is: claim, create the devices, then what `definition` does. A crash in between leaves claims and devices
    of a stopped VM. reconcile removes those that it reserves only while it runs, and completes a vGPU that waits for a
    place.

    `vms`: all VMs whose records are known, where libvirt must not be asked; a slot that another VM reserves permanently
    is not taken. `cached`: a snapshot of its GPUs and their types taken a moment ago. `definition`: what may give the
    VM other slots than its definition names; without it only an mdev can move.

    Raises:
        Busy: another process works on this VM, or another VM has claimed its slot; the message names it.
        InUse: a function that the VM's definition names is not free.
        NoCapacity: no GPU has room.
        HostCannot: it needs another slot, and its definition cannot be changed.
        VgpuctlError: any other reason; everything created has been undone.
    """

    def prepare(tx: Transaction) -> MissingDevices:
        if record.always_reserves and (cached is not None or vms is not None):
            in_place = devices_in_place(host, vm, record, vms or (), cached, definition)
            if in_place is not None:
                return in_place
        refuse_unfinished(vm, record)
        scope = scope_of_request(request_from_record(vm, record, record.vgpus))
        seen = tx.look(scope)
        displaced = frozenset(() if definition is None else find_displaced(host, seen, record))
        if not context.dry_run:
            _drop_claims(host, context, vm, [c for c in seen.claims if c.carrier in displaced])
        return MissingDevices(seen, scope, vm, record, definition, displaced)

    with Transaction(host, context, vms) as tx:
        return tx.make(prepare)


def devices_in_place(
    host: Host,
    vm: Vm,
    record: VmRecord,
    vms: tuple[Vm, ...],
    cached: Snapshot | None = None,
    definition: Definition | None = None,
) -> MissingDevices | None:
    """Return what a VM lacks that always keeps its slots. None: one of them cannot come back, so it needs others.

    Raises:
        HostCannot: it needs others, and its definition cannot be changed.
        VgpuctlError: why a device cannot be created, with the holder of its slot; nothing is written yet.
    """
    refuse_unfinished(vm, record)
    seen = cached if cached is not None else observe_record_gpus(host, (record,), vms)
    displaced = find_displaced(host, seen, record)
    if displaced and definition is not None:
        return None
    for reason in displaced.values():
        raise displaced_error(vm, reason)
    if definition is None:
        scope = _scope_of_gpus((record,), seen)
    else:
        is_complete = all(v.present for v in seen.vgpus if v.vm_uuid == vm.uuid)
        scope = replace(scope_of_vm(vm.uuid), types=not is_complete)
    missing = MissingDevices(seen, scope, vm, record, definition)
    try:
        missing.plan(seen, ())
    except VgpuctlError:
        if definition is not None:
            definition.refuse_changed()
        raise
    return missing


def _drop_claims(host: Host, context: Context, vm: Vm, claims: Sequence[Claim]) -> None:
    """Remove a VM's claims on slots that cannot come back: their devices are gone, and an mdev keeps its UUID."""
    if claims:
        with host.claims.lock(context.wait_seconds):
            refuse_concurrent_command(host, vm.name, vm.uuid)
            context.subjects.add_claims(claims)
            for claim in claims:
                host.claims.remove(claim.carrier, vm.uuid)


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
