# SPDX-License-Identifier: Apache-2.0
"""Send a running VM to a host that was made ready for it. Afterwards it is off here and paused there.

Its definition stays here, with a record in state `moving`, until `finish_migration`: so a crash at any instant leaves a
record that names the other host, and what this one still has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.domain.record import record_from_xml
from vgpuctl.errors import Busy, InvalidInput, Refused, ResultUnknown, VgpuctlError
from vgpuctl.model.hint_commands import end_migration_command, stop_command
from vgpuctl.model.migration import MigrationMark, MigrationProgress, MigrationRequest, MigrationRole
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.migration import MigrationPlaceResult, SentVmResult
from vgpuctl.model.vm import RecordState, Vm, VmRecord, VmState
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.operations.arrive import arriving_xml, definition_sha256
from vgpuctl.operations.execute import as_vgpuctl_error
from vgpuctl.operations.guards import find_vm_to_change, refuse_unfinished, require_writable
from vgpuctl.operations.limits import count_removal
from vgpuctl.operations.plans.migration_pace import Pace
from vgpuctl.operations.plans.remove import own_record
from vgpuctl.operations.plans.reserve import with_slot
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.operations.steps.migration import SendDisk, SendVm
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class Route(Value):
    """How a VM's memory gets to the target. `target_uri`: the target's libvirt, as this host's reaches it.

    `limits_ms`: for how long the VM may stand still, in rising steps; empty: as QEMU decides.
    """

    target_uri: str
    migrate_uri: str | None = None
    tls: bool = True
    limits_ms: tuple[int, ...] = ()
    bandwidth_mib_s: int | None = None
    parallel: int | None = None


def migrate_out(
    host: Host, context: Context, name: str, place: MigrationPlaceResult, route: Route
) -> Outcome[SentVmResult]:
    """Send a VM to the place that the target has made for it: one that runs with its memory, else its disks alone.

    Raises:
        Refused: its state does not fit. Busy: another move of it is not finished, or something else works on it.
        NotAllowed: so many VMs of the account were removed from this host in the last hour as it may remove.
        ResultUnknown: it is not known whether the target has it: both hosts together can tell.
        VgpuctlError: why not; it is here as before.
    """
    require_writable(host, context)
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm_to_change(context, snapshot, name)
    record = own_record(vm, "move")
    refuse_unfinished(vm, record)
    target_record, mark = _check_place(host, vm, place)
    _refuse_state(vm, mark)
    own_mark = replace(mark, role=MigrationRole.LEAVING, peer=place.host.name, peer_machine_id=place.host.machine_id)
    leaving = replace(record, state=RecordState.MOVING, migration=own_mark)
    write = WriteRecord(vm.name, vm.uuid, leaving, record, f"record that {vm.name} moves to {place.host.name}")
    pace = _Recorder(Pace(vm.name, route.limits_ms))
    left = replace(leaving, migration=replace(own_mark, role=MigrationRole.LEFT))
    done = WriteRecord(vm.name, vm.uuid, left, write.written, f"record that {place.host.name} has {vm.name}")
    send = (
        _send_disk_steps(record, place, route) if mark.is_offline else (_send_vm_step(vm, record, place, route, pace),)
    )
    sends: tuple[Step, ...] = (*send, done)
    steps = tuple(step.describe() for step in (write, *sends))
    if context.dry_run:
        return Outcome(True, SentVmResult(vm.name, vm.uuid, 0.0), steps, snapshot.warnings, dry_run=True)
    _refuse_forgotten_place(host, context, vm, place, route)
    count_removal(host, context)  # at its end the VM and its disks are gone here
    begin = host.clock.monotonic()
    with Transaction(host, context) as tx:
        tx.take_over_vm(vm, replace(record, vgpus=with_slot(snapshot, vm, record)), scope_of_vm(vm.uuid))
        tx.note(vm.name, vm.uuid)
        sends = tuple(_with_definitions(host, vm, record, target_record, step) for step in sends)
        try:
            off = (vm.uuid,) if mark.is_offline else ()  # from the record on, libvirt's hook refuses to start it
            tx.carry_out(Plan((write, *sends), undo_on_failure=False, vms_required_off=off))
        except BaseException as error:
            _come_back(host, vm, write, as_vgpuctl_error(error), place, is_offline=mark.is_offline)
            raise
    return Outcome(True, pace.result(vm, round(host.clock.monotonic() - begin, 3)), steps, snapshot.warnings)


def _refuse_state(vm: Vm, mark: MigrationMark) -> None:
    """Refuse a VM that is not as its move needs it.

    Raises:
        Refused: it runs, or it does not.
    """
    if mark.is_offline and vm.state not in STOPPED_STATES:
        raise Refused(
            f"{vm.name} is {vm.state}: its disks can only be sent while it is off",
            hint=stop_command(vm),
            vm=vm.name,
            state=str(vm.state),
        )
    if not mark.is_offline and vm.state is not VmState.RUNNING:
        raise Refused(
            f"{vm.name} is {vm.state}: only a VM that runs can be moved alive",
            hint=f"vgpuctl migrate-vm {vm.name} --offline --to ssh://HOST moves one that is off",
            vm=vm.name,
            state=str(vm.state),
        )


def _send_disk_steps(record: VmRecord, place: MigrationPlaceResult, route: Route) -> tuple[Step, ...]:
    """Return the steps that copy the disks of a VM that is off; its seed was copied with the offer."""
    copies = bool(place.copied_disks)
    return tuple(SendDisk(d, place.host.name, route.target_uri) for d in record.data_disks() if copies)


def _send_vm_step(vm: Vm, record: VmRecord, place: MigrationPlaceResult, route: Route, pace: _Recorder) -> SendVm:
    request = MigrationRequest(
        target_uri=route.target_uri,
        live_xml="",
        config_xml="",
        migrate_uri=route.migrate_uri,
        copied_disks=place.copied_disks,
        copies_top_only=any(d.base is not None for d in record.disks),
        tls=route.tls,
        max_downtime_ms=route.limits_ms[0] if route.limits_ms else None,
        bandwidth_mib_s=route.bandwidth_mib_s,
        parallel=route.parallel,
    )
    return SendVm(vm.name, vm.uuid, place.host.name, request, pace)


def _check_place(host: Host, vm: Vm, place: MigrationPlaceResult) -> tuple[VmRecord, MigrationMark]:
    """Return the record that the VM has on the target, and its mark.

    Raises:
        InvalidInput: the place is for another VM or another source, or not ready. Busy: the VM was changed since.
    """
    try:
        record = record_from_xml(place.record)
    except ValueError as error:
        raise InvalidInput(f"what {place.host.name} has made ready for {vm.name} is unreadable: {error}") from error
    mark = record.migration
    made = (place.id, MigrationRole.ARRIVING, host.machine_id, vm.uuid, vm.uuid, vm.name)
    if mark is None or made != (
        mark.id, mark.role, mark.peer_machine_id, record.vm_uuid, place.uuid, place.name,
    ):  # fmt: skip
        raise InvalidInput(f"{place.host.name} has made nothing ready for {vm.name}")
    domain = host.hypervisor.find_domain(vm.uuid)
    if domain is None or definition_sha256(domain.xml) != place.definition_sha256:
        raise Busy(f"{vm.name} has just been changed", hint="run the command again", vm=vm.name)
    return record, mark


def _refuse_forgotten_place(host: Host, context: Context, vm: Vm, place: MigrationPlaceResult, route: Route) -> None:
    """Refuse a place that an account kept after its target has given it up: the target's libvirt is asked.

    Raises:
        InvalidInput: the target has not, or no longer, made it ready. VgpuctlError: its libvirt does not answer.
    """
    if context.account is None:
        return
    xml = host.hypervisor.definition_on(route.target_uri, vm.uuid)
    known = None if xml is None else parse_domain(xml, VmState.STOPPED, place.host.machine_id).record
    if known != record_from_xml(place.record):
        raise InvalidInput(f"{place.host.name} has nothing ready for {vm.name} any more", hint="begin the move again")


def _with_definitions(host: Host, vm: Vm, record: VmRecord, target_record: VmRecord, step: Step) -> Step:
    """Return the step that sends memory with the definitions of the target: while it comes, and from then on.

    libvirt stores the second one when nothing is left to send, so it is what says that the target has all of it.
    """
    if not isinstance(step, SendVm) or target_record.migration is None:
        return step
    as_here = replace(vm, record=record)
    incoming = replace(target_record.migration, role=MigrationRole.INCOMING)
    arrived = replace(target_record.migration, role=MigrationRole.ARRIVED)
    live, config = host.hypervisor.migration_xml(vm.uuid), host.hypervisor.definition(vm.uuid)
    request = replace(
        step.request,
        live_xml=arriving_xml(live, as_here, replace(target_record, migration=incoming)),
        config_xml=arriving_xml(config, as_here, replace(target_record, migration=arrived)),
    )
    return replace(step, request=request)


class _Recorder:
    """Remembers what a move's progress said last."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.last = MigrationProgress()

    def __call__(self, progress: MigrationProgress) -> int | None:
        self.last = progress
        return self.pace(progress)

    def result(self, vm: Vm, seconds: float) -> SentVmResult:
        """Return what was sent."""
        total = self.last.memory_total_bytes
        return SentVmResult(
            vm.name,
            vm.uuid,
            seconds,
            downtime_ms=self.last.expected_downtime_ms,
            sent_bytes=None if total is None else total + (self.last.disk_total_bytes or 0),
            max_downtime_ms=self.pace.limit_ms,
        )


def _come_back(
    host: Host, vm: Vm, write: WriteRecord, failure: VgpuctlError, place: MigrationPlaceResult, *, is_offline: bool
) -> None:
    """After a failure: let a VM that is here be as before; of any other one only both hosts together know more.

    Raises:
        ResultUnknown: it is not known whether the target has it.
    """
    try:
        domain = host.hypervisor.find_domain(vm.uuid)
        runs = domain is not None and domain.state is VmState.RUNNING and not host.hypervisor.is_migrating(vm.uuid)
        if domain is None or runs or is_offline:
            write.undo(host)
            failure.undone.append(write.describe())
            return
    except VgpuctlError as error:
        failure.message = f"{failure.message}; then {error.message}"
    unknown = ResultUnknown(
        f"it is not known whether {place.host.name} has {vm.name}: {failure.message}",
        hint=end_migration_command(vm.name, place.host.name),
        **{**failure.facts, "cause": failure.code},
    )
    unknown.left = [f"{vm.name}: it may be paused, on this host or on {place.host.name}"]
    unknown.changed = True
    raise unknown from failure
