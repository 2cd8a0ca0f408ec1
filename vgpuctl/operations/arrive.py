# SPDX-License-Identifier: Apache-2.0
"""Make a host ready for a VM of another one: claim its vGPUs, define it, make disks and devices.

The order is that of a new VM, so a crash leaves nothing without an owner. The definition's record is in state `moving`:
no command and no hook starts or changes such a VM. Whether it came is for `finish_migration`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vgpuctl.config.vm_request import VmRequest
from vgpuctl.domain.domain_edit import DomainEdit, edit_domain
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.domain.record import record_to_xml
from vgpuctl.errors import Busy, HostCannot, InvalidInput, NoCapacity, NotFound, Refused, VgpuctlError
from vgpuctl.model.hint_commands import end_migration_command
from vgpuctl.model.migration import MigrationMark, MigrationRole
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.migration import (
    MigratingDiskResult,
    MigrationOfferResult,
    MigrationPlaceResult,
    MigrationReasonResult,
    PlacedVgpuResult,
)
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import NOT_RUNNING_STATES, AssignedVgpu, DiskRole, ManagedDisk, RecordState, Vm, VmRecord, VmState
from vgpuctl.observe import ReadScope, scope_of_request
from vgpuctl.observe.migration_host import read_migration_host
from vgpuctl.observe.vgpu_migration import read_write_speed
from vgpuctl.operations.controlled import check_fence
from vgpuctl.operations.guards import require_system_libvirt, require_writable
from vgpuctl.operations.host_signature import sign
from vgpuctl.operations.migration_facts import gather_target_facts
from vgpuctl.operations.plans.change import design_hostdev
from vgpuctl.operations.plans.choose import choose_vgpus, make_steps
from vgpuctl.operations.plans.facts import DEFAULT_POOL, DEFAULT_POOL_PATH
from vgpuctl.operations.plans.migration_checks import find_target_reasons
from vgpuctl.operations.plans.migration_disk_checks import is_made_with_pool
from vgpuctl.operations.plans.migration_vgpu_checks import find_fit_gpus, gpu_refusals, lacks_gpu, no_place_reason
from vgpuctl.operations.plans.reserve import request_from_record, with_identity
from vgpuctl.operations.steps.migration import CopySeed, DefineArriving
from vgpuctl.operations.steps.storage import CreatePool, CreateVolume
from vgpuctl.operations.transaction import Owner, Transaction
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import EMPTY_MAPPING, Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

Reasons = tuple[MigrationReasonResult, ...]


class Arrival(Value):
    """How a VM comes. `copies_disks`: this host gets files of its own. `offline`: it is off."""

    offer: MigrationOfferResult
    copies_disks: bool
    offline: bool
    needs_tls: bool

    @property
    def vm(self) -> Vm:
        """The VM as its source has it.

        Raises:
            InvalidInput: the offer is no VM of vgpuctl's.
        """
        vm = self.offered
        if vm.record is None or vm.uuid != self.offer.uuid or vm.name != self.offer.name:
            raise InvalidInput(f"what {self.offer.host.name} offers is not the VM {self.offer.name} of vgpuctl")
        return vm

    @property
    def offered(self) -> Vm:
        """The VM that is offered, which may be somebody else's: the offer then has a reason against its move."""
        return parse_domain(self.offer.definition, VmState(self.offer.state), self.offer.host.machine_id)

    @property
    def copied(self) -> tuple[MigratingDiskResult, ...]:
        """The disks for which this host gets files."""
        return tuple(d for d in self.offer.disks if d.made and not d.is_shared) if self.copies_disks else ()


class ArrivingVm(Value):
    """A VM that comes here, planned; it can be made by a transaction.

    `host`: the name of this host. `fit_gpus`: those that take its vGPUs; `lacks_gpu`: one of them has none, which
    `reasons` says; `refusals`: why GPUs with their profiles do not take them, by address. `reasons`, `warnings`: what
    this host has against it.
    """

    seen: Snapshot
    arrival: Arrival
    vm: Vm
    record: VmRecord
    request: VmRequest
    host: str = "this host"
    fit_gpus: frozenset[str] = frozenset()
    lacks_gpu: bool = False
    refusals: Mapping[str, str] = EMPTY_MAPPING
    reasons: Reasons = ()
    warnings: Reasons = ()

    @property
    def scope(self) -> ReadScope:
        """What to read in order to choose its vGPUs."""
        return _scope(self.request)

    @property
    def owner(self) -> Owner:
        """The VM: it gets its slots now, also where it reserves them only while it runs."""
        return Owner(self.vm.name, self.record, is_new_name=True, reserves=bool(self.record.vgpus))

    def choose(self, seen: Snapshot) -> tuple[AssignedVgpu, ...]:
        """Return a slot of this host for each of its vGPUs."""
        if not self.record.vgpus:
            return ()
        others = frozenset(g.address for g in seen.gpus if g.address not in self.fit_gpus)
        seen, request = replace(seen, refusing_gpus=seen.refusing_gpus | others), self.request
        if not request.profiles:  # a whole GPU, or a plain VF: `refusing_gpus` means only those that make vGPUs
            request = replace(request, not_gpu=tuple(sorted(others)))
        chosen = list(choose_vgpus(seen, request, self.record.vm_uuid))
        slots = []
        for assigned in self.record.vgpus:
            match = next((one for one in chosen if one.profile == assigned.profile), None)
            if match is None:
                raise Refused(f"{self.host} has no free {assigned.profile or 'device'} for {self.vm.name}")
            chosen.remove(match)
            slots.append(with_identity(match, assigned, self.record))
        return tuple(slots)

    def record_with(self, vgpus: tuple[AssignedVgpu, ...]) -> VmRecord:
        """Return its record on this host."""
        return replace(self.record, vgpus=vgpus)

    def plan(self, seen: Snapshot, vgpus: tuple[AssignedVgpu, ...]) -> Plan:
        """Return the steps after the claims: define, disks, devices."""
        record = self.record_with(vgpus)
        xml = arriving_xml(self.arrival.offer.definition, self.vm, record)
        steps: list[Step] = [DefineArriving(self.vm.name, self.vm.uuid, self.arrival.offer.host.name, xml)]
        if any(is_made_with_pool(disk) for disk in self.arrival.copied):
            steps.append(CreatePool(DEFAULT_POOL, DEFAULT_POOL_PATH))
        steps += [_disk_step(disk, _managed(self.vm, disk)) for disk in self.arrival.copied]
        for vgpu in vgpus:
            steps += make_steps(seen, vgpu)
        return Plan(tuple(steps), vms_required_off=(self.vm.uuid,))


def definition_sha256(xml: str) -> str:
    """Return what a place has of the definition for which it was made."""
    return hashlib.sha256(xml.encode()).hexdigest()


def _scope(request: VmRequest) -> ReadScope:
    return replace(scope_of_request(request), models=True)


def arriving_xml(xml: str, vm: Vm, record: VmRecord) -> str:
    """Return a definition of the source with the carriers and the record that the VM has on the target.

    `vm`: as its source has it; `record` has its vGPUs in the same order.
    """
    before = () if vm.record is None else vm.record.vgpus
    changes = tuple(
        (old.carrier, replace(design_hostdev(new, record), display=_shows(vm, old)))
        for old, new in zip(before, record.vgpus, strict=True)
        if old.carrier != new.carrier
    )
    return edit_domain(xml, DomainEdit(hostdev_changes=changes, record=record))


def _shows(vm: Vm, vgpu: AssignedVgpu) -> bool:
    return any(h.display for h in vm.hostdevs if h.carrier == vgpu.carrier)


def _managed(vm: Vm, disk: MigratingDiskResult) -> ManagedDisk:
    disks = () if vm.record is None else vm.record.disks
    return next(one for one in disks if one.path == disk.path)


def _disk_step(disk: MigratingDiskResult, managed: ManagedDisk) -> Step:
    if managed.role is DiskRole.SEED:
        return CopySeed(managed, base64.b64decode(disk.content or ""))
    return CreateVolume(managed)


def prepare_incoming(
    host: Host,
    context: Context,
    offer: MigrationOfferResult,
    *,
    copies_disks: bool = False,
    offline: bool = False,
    needs_tls: bool = True,
) -> Outcome[MigrationPlaceResult]:
    """Make this host ready for a VM that another one offers; a second call with the same offer changes nothing.

    A dry run returns every reason why it cannot come, in `reasons`.

    Raises:
        Refused: it cannot come, with every reason; or the host does not obey the controller that asks.
        Busy: another move of the VM is not finished here.
        VgpuctlError: why something could not be made; all has been undone.
    """
    require_writable(host, context)
    arrival = Arrival(offer, copies_disks, offline, needs_tls)
    _refuse_early(context, arrival)
    context.subjects.add_vm(offer.name, offer.uuid)
    checked: list[ArrivingVm] = []

    def prepare(tx: Transaction) -> ArrivingVm:
        arriving = _with_checks(host, _plan_arrival(host, context, tx, arrival))
        checked[:] = [arriving]
        if arriving.reasons and not context.dry_run:
            raise refused_move(offer.name, arriving.reasons)
        if not arriving.record.vgpus:
            tx.note(offer.name, offer.uuid)
        return arriving

    with Transaction(host, context) as tx:
        if context.dry_run and offer.reasons and arrival.offered.record is None:
            return Outcome(False, _place(host, tx.look(ReadScope()), arrival, None, ()), dry_run=True)
        ready = _already_prepared(host, context, tx, arrival)
        if ready is not None:
            return Outcome(False, _signed(host, context, ready), dry_run=context.dry_run)
        try:
            made = tx.make(prepare)
        except VgpuctlError as error:
            if not context.dry_run:
                raise
            return Outcome(False, _no_place(host, tx.look(ReadScope()), arrival, checked, error), dry_run=True)
    arriving = made.making
    place = _place(host, arriving.seen, arrival, arriving.record_with(made.vgpus), made.vgpus)
    place = _signed(host, context, replace(place, reasons=arriving.reasons, warnings=arriving.warnings))
    return Outcome(True, place, made.steps, made.warnings, made.plan.notes, context.dry_run)


def _signed(host: Host, context: Context, place: MigrationPlaceResult) -> MigrationPlaceResult:
    """Return a place with this host's signature, if the source gets it from somebody who is not root."""
    return place if context.account is None or context.dry_run else replace(place, signature=sign(host, place))


def _refuse_early(context: Context, arrival: Arrival) -> None:
    """Refuse what an account could keep and send later: a VM that cannot leave or still runs, a desktop deleted here.

    Raises:
        Refused: it is that, or the host does not obey the controller that asks.
    """
    check_fence(context)
    if context.dry_run or context.account is None:
        return
    offer, record = arrival.offer, arrival.offered.record
    if offer.reasons:
        raise refused_move(offer.name, offer.reasons)
    if arrival.offline and VmState(offer.state) not in NOT_RUNNING_STATES:
        raise Refused(f"{offer.name} was {offer.state} when it was offered: it must be off", vm=offer.name)
    if context.fence is not None and record is not None and record.desktop is not None:
        context.fence.refuse_deleted(record.desktop.id)


def _with_checks(host: Host, arriving: ArrivingVm) -> ArrivingVm:
    """Return it with every reason of this host against it, and without the GPUs that do not take its vGPUs."""
    arrival = arriving.arrival
    facts = gather_target_facts(host, arriving.seen, arrival.offer)
    reasons, warnings = find_target_reasons(
        arrival.offer,
        facts,
        copies_disks=arrival.copies_disks,
        offline=arrival.offline,
        needs_tls=arrival.needs_tls,
    )
    return replace(
        arriving,
        host=facts.host.name,
        fit_gpus=find_fit_gpus(arrival.offer, facts, offline=arrival.offline),
        lacks_gpu=lacks_gpu(arrival.offer, facts, offline=arrival.offline),
        refusals=gpu_refusals(arrival.offer, facts, offline=arrival.offline),
        reasons=reasons,
        warnings=warnings,
    )


def _no_place(
    host: Host, seen: Snapshot, arrival: Arrival, checked: Sequence[ArrivingVm], error: VgpuctlError
) -> MigrationPlaceResult:
    """Return what a dry run says of a VM for which there is no place: that, beside every other reason."""
    place = _place(host, seen, arrival, None, ())
    if not checked:
        return replace(place, reasons=(no_place_reason(arrival.offer, place.host.name, error),))
    arriving = checked[0]
    place = replace(place, reasons=arriving.reasons, warnings=arriving.warnings)
    is_named = arriving.lacks_gpu and isinstance(error, (NotFound, NoCapacity, Refused, HostCannot))
    if is_named or any(reason.what == error.message for reason in arriving.reasons):
        return place
    hidden = {gpu.address for gpu in arriving.seen.gpus} - arriving.fit_gpus
    own = no_place_reason(arrival.offer, place.host.name, error, arriving.refusals, hidden)
    return replace(place, reasons=(*arriving.reasons, own))


def refused_move(name: str, reasons: Sequence[MigrationReasonResult]) -> Refused:
    """Return the error for a VM that cannot move: a line for every reason, and one for what helps against it."""
    lines = [f"{name} cannot move:"]
    for reason in dict.fromkeys(reasons):
        what = reason.what.replace("\n", "\n  ")
        lines += [f"{reason.host}: {what}", *(() if reason.hint is None else (f"  fix: {reason.hint}",))]
    facts = [{"host": one.host, "what": one.what, "hint": one.hint} for one in reasons]
    return Refused("\n".join(lines), vm=name, against=facts)


def _plan_arrival(host: Host, context: Context, tx: Transaction, arrival: Arrival) -> ArrivingVm:
    vm, offer = arrival.vm, arrival.offer
    assert vm.record is not None
    mark = MigrationMark(
        offer.id,
        MigrationRole.ARRIVING,
        offer.host.name,
        offer.host.machine_id,
        copies_disks=bool(arrival.copied),  # what both hosts have is neither's to delete
        is_offline=arrival.offline,
    )
    copied = {disk.path for disk in arrival.copied}
    record = replace(
        vm.record,
        disks=tuple(d for d in vm.record.disks if not copied or d.path in copied),  # others are none of this host's
        state=RecordState.MOVING,
        machine_id=host.machine_id,
        account=vm.record.account if context.caller is None else context.caller.recorded_account,
        migration=mark,
    )
    # addresses of GPUs and NUMA nodes are those of the source
    request = replace(request_from_record(vm, record, record.vgpus), gpu=(), not_gpu=(), numa_node=None)
    seen = tx.look(_scope(request))
    require_system_libvirt(seen)
    return ArrivingVm(seen, arrival, vm, record, request)


def _already_prepared(host: Host, context: Context, tx: Transaction, arrival: Arrival) -> MigrationPlaceResult | None:
    """Return what an earlier call with this offer has made.

    Raises:
        Busy: another move of the VM is not finished here.
    """
    offer = arrival.offer
    domain = host.hypervisor.find_domain(offer.uuid)
    if domain is None:
        return None
    record = parse_domain(domain.xml, domain.state, host.machine_id).record
    mark = None if record is None else record.migration
    if record is None or mark is None:
        return None  # find_target_reasons names it
    is_own = context.account in (None, record.account)
    if mark.id != offer.id or mark.role is not MigrationRole.ARRIVING or not is_own:
        raise Busy(
            f"a move of {offer.name} from {mark.peer} to this host is not finished",
            hint=end_migration_command(arrival.vm.name, mark.peer),
            vm=offer.name,
        )
    return _place(host, tx.look(ReadScope()), arrival, record, record.vgpus)


def _place(
    host: Host, seen: Snapshot, arrival: Arrival, record: VmRecord | None, vgpus: tuple[AssignedVgpu, ...]
) -> MigrationPlaceResult:
    recorded = arrival.offered.record
    before = () if recorded is None else recorded.vgpus
    arch = host.hypervisor.capabilities().arch
    return MigrationPlaceResult(
        id=arrival.offer.id,
        name=arrival.offer.name,
        uuid=arrival.offer.uuid,
        host=read_migration_host(host, seen, arch=arch, sends=False),
        vgpus=tuple(
            PlacedVgpuResult(
                old.carrier, new.carrier, new.profile, new.gpu, new.function, read_write_speed(host, new.gpu)
            )
            for old, new in zip(before, vgpus, strict=False)
        ),
        record="" if record is None else record_to_xml(record),
        definition_sha256=definition_sha256(arrival.offer.definition),
        copied_disks=tuple(d.device for d in arrival.copied if d.kind == "disk"),
    )
