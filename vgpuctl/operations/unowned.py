# SPDX-License-Identifier: Apache-2.0
"""Find problems that no VM's record covers, and VMs that wait for a place.

Without a record: stray or leaked devices and claims, vGPUs of host.yaml, unfinished files. There may be thousands of
each, so nothing here searches all claims or devices once per item.

A VM that is off gives up its place for a move: record, remove the device, release the claim. From the record on, it
waits for a place, and others may take its last one. It gets one as at a start: claim, make the device, and define the
VM again with the new record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from itertools import count
from typing import TYPE_CHECKING

from vgpuctl.domain.record import FINISH_EXCHANGE
from vgpuctl.errors import Busy, FileFailed, VgpuctlError
from vgpuctl.model.gpu import Ownership, Vgpu
from vgpuctl.model.hint_commands import start_command
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.outcome import Context
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import GPU_SETUP_CLAIM, Claim, HostVgpu, RecordState, UnfinishedFile, Vm, VmRecord
from vgpuctl.observe import ReadScope, observe, scope_of_request, scope_of_vm
from vgpuctl.observe.claims import report_unreadable
from vgpuctl.operations.change import require_changeable_vm
from vgpuctl.operations.claim import claims_of_record
from vgpuctl.operations.guards import require_writable
from vgpuctl.operations.leftovers import refuse_managed_save
from vgpuctl.operations.place_and_start import place_and_start
from vgpuctl.operations.plans.change import ADOPTED_ALIAS_PREFIX
from vgpuctl.operations.plans.remove import assigned_from_observed, leaked_removal_plan
from vgpuctl.operations.plans.reserve import choose_slots, request_from_record, with_slot
from vgpuctl.operations.plans.vgpus import assigned_from_entry, placeholder_owner
from vgpuctl.operations.plans.vm_update import MoveTarget, leave_steps
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.steps.claims import ReleaseClaim, TakeClaim
from vgpuctl.operations.steps.domain import STOPPED_STATES, SetRecordState
from vgpuctl.operations.steps.guest_driver import DropDriverDisc
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.step import Plan, Removal
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

FindingKey = tuple[str, str, str]


class ReconcileFinding(Value):
    """One problem and its fix: a plan, or starting or placing the VM. A finding without any is only reported."""

    kind: str
    what: str
    action: str
    plan: Plan | None = None
    claims: tuple[Claim, ...] = ()
    vm: Vm | None = None
    starts_vm: bool = False
    places_vm: bool = False

    @property
    def key(self) -> FindingKey:
        """What identifies this finding in every round; its text may change, for example if it names another process."""
        owner = self.vm.uuid if self.vm is not None else ",".join(c.carrier for c in self.claims)
        return self.kind, self.action, owner or self.what

    @property
    def has_fix(self) -> bool:
        """Whether reconcile can fix it."""
        return self.plan is not None or self.starts_vm or self.places_vm

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps of the fix, one line each."""
        return (self.action,) if self.plan is None else tuple(step.describe() for step in self.plan.steps)


def check_host_vgpus(host: Host, snapshot: Snapshot) -> list[ReconcileFinding]:
    """Return the problems of the vGPUs without a VM that host.yaml lists."""
    by_carrier = {vgpu.carrier: vgpu for vgpu in snapshot.vgpus}
    claimed = {claim.carrier for claim in snapshot.claims}
    return [
        finding
        for named in snapshot.host_vgpus
        for finding in _check_host_vgpu(host, snapshot, named, by_carrier.get(named.carrier), claimed)
    ]


def _check_host_vgpu(
    host: Host, snapshot: Snapshot, entry: HostVgpu, vgpu: Vgpu | None, claimed: Set[str]
) -> list[ReconcileFinding]:
    """Return the problems of one vGPU without a VM in host.yaml; none while an operation works on it."""
    what = f"vGPU {entry.name} of host.yaml ({entry.profile} on {entry.gpu})"
    if vgpu is None or entry.carrier in snapshot.live_claim_carriers:
        return []
    if vgpu.name != entry.name:
        text = f"{what} is the vGPU of {vgpu.holder_text}"
        return [
            ReconcileFinding("vgpu-conflict", text, "nothing: remove one of them, with detach-vgpu or from host.yaml")
        ]
    if vgpu.reason is not None:
        return [ReconcileFinding("vgpu-changed", f"{what}: {vgpu.reason}", "nothing: it was changed by hand")]
    if not vgpu.present:
        return [
            ReconcileFinding("vgpu-missing", f"{what} is missing", "nothing: create it again: vgpuctl restore-host")
        ]
    if entry.carrier in claimed:
        return []
    owner, record = placeholder_owner(snapshot.machine_id, entry.name, assigned_from_entry(entry, vgpu))
    plan = Plan(tuple(TakeClaim(c) for c in claims_of_record(host, owner.name, record)), undo_on_failure=False)
    return [ReconcileFinding("claim-lost", f"{what} has no claim on {entry.carrier}", "write the claim again", plan)]


def find_unused_discs(host: Host, snapshot: Snapshot) -> list[ReconcileFinding]:
    """Return the discs with drivers that no VM has; none where not all VMs can be read.

    It is not asked for while a command works on a VM: that one may get or have had a disc.
    """
    if host.driver_discs is None or snapshot.unread_texts or not snapshot.hypervisor.available:
        return []
    discs = host.driver_discs
    try:
        names = discs.sizes()
    except OSError as error:
        text = f"which discs with drivers exist is not known: {error.strerror} ({error.filename})"
        return [ReconcileFinding("unused-disc", text, "nothing")]
    used = {disk.source for vm in snapshot.vms for disk in vm.disks}
    return [
        ReconcileFinding("unused-disc", f"no VM has the disc {path}", "delete it", _drop_plan(path))
        for name in names
        if discs.has(name) and (path := discs.path(name)) not in used
    ]


def _drop_plan(path: str) -> Plan:
    return Plan((DropDriverDisc(path, required=True),), undo_on_failure=False)


def find_unowned(host: Host, snapshot: Snapshot) -> list[ReconcileFinding]:
    """Return the stray and leaked devices, except those on a GPU with a stuck kernel write."""
    stuck = {w.gpu for w in snapshot.stuck_writes}
    operation = host.operations.current()
    claims = {c.carrier: c for c in snapshot.claims}

    def with_own_operation(vgpu: Vgpu) -> Claim | None:
        claim = claims.get(vgpu.carrier)
        if claim is None:
            return None
        return replace(claim, process=operation.process, command=operation.command, operation=operation.id)

    findings = [
        _stray_finding(with_own_operation(vgpu), vgpu, vm)
        for vgpu, vm in _find_strays(snapshot)
        if vgpu.gpu not in stuck
    ]
    half_adopted = _half_adopted_claims(host, snapshot.claims)
    for vgpu in snapshot.vgpus:
        if vgpu.owner is Ownership.LEAKED and vgpu.carrier in half_adopted:
            findings.append(_half_adopted_finding(host, f"VM {vgpu.vm} is gone", [half_adopted[vgpu.carrier]]))
        elif vgpu.owner is Ownership.LEAKED and vgpu.gpu not in stuck:
            finding, claim = _leak_finding(with_own_operation(vgpu), vgpu), claims.get(vgpu.carrier)
            findings.append(
                finding if claim is None or claim.vm != GPU_SETUP_CLAIM else _half_set_up_finding(finding, claim)
            )
    return findings


def _find_strays(snapshot: Snapshot) -> list[tuple[Vgpu, Vm]]:
    """Return what is claimed for a VM but missing from its record and devices: a change ended half-way.

    A copied or unreadable record does not show what the VM has, so nothing of such a VM counts as stray.
    """
    by_uuid = snapshot.vms_by_uuid()
    by_carrier = {vgpu.carrier: vgpu for vgpu in snapshot.vgpus}
    strays = []
    for claim in snapshot.claims:
        vm = by_uuid.get(claim.vm_uuid)
        if vm is None or claim.carrier in snapshot.live_claim_carriers or vm.copied_record is not None:
            continue
        if vm.has_unreadable_record:
            continue
        names = {v.carrier for v in vm.record.vgpus} if vm.record else set()
        if claim.carrier in by_carrier and claim.carrier not in names | {h.carrier for h in vm.hostdevs}:
            strays.append((by_carrier[claim.carrier], vm))
    return strays


def _stray_finding(claim: Claim | None, vgpu: Vgpu, vm: Vm) -> ReconcileFinding:
    text = f"{vgpu.profile or vgpu.backend} on {vgpu.function} is claimed for VM {vm.name}, which does not use it"
    finding = replace(_leak_finding(claim, vgpu), kind="half-changed", what=text, vm=vm)
    if vgpu.name is None and vgpu.vm_uuid == vm.uuid:
        return finding
    release = ReleaseClaim(vgpu.carrier, vm.uuid)  # host.yaml or another VM's record owns the device
    return replace(finding, action=release.describe(), plan=Plan((release,), undo_on_failure=False))


def _leak_finding(claim: Claim | None, vgpu: Vgpu) -> ReconcileFinding:
    """Return the finding for a leaked device or claim; `mine`: its claim, in the name of this process."""
    plan = leaked_removal_plan(vgpu)
    action = "; ".join(s.describe() for s in plan.steps)
    claims = () if claim is None else (claim,)
    text = f"{vgpu.profile or vgpu.backend} on {vgpu.function}: {vgpu.reason}"
    return ReconcileFinding("leaked", text, action, plan, claims)


def _half_adopted_claims(host: Host, claims: Iterable[Claim]) -> dict[str, Claim]:
    """Return the claims, by carrier, of commands that were killed while they worked on a device that was adopted."""
    adopted = [claim for claim in claims if claim.adopted]
    if not adopted:
        return {}
    with report_unreadable("which commands were killed"):
        killed = host.operations.killed(frozenset(claim.operation for claim in adopted))
    return {claim.carrier: claim for claim in adopted if claim.operation in killed}


def _half_adopted_finding(host: Host, text: str, claims: Sequence[Claim], vm: Vm | None = None) -> ReconcileFinding:
    """Return the finding for a VM that was not adopted or let go to the end: only claims say that it was begun."""
    plan = Plan(tuple(ReleaseClaim(claim.carrier, claim.vm_uuid) for claim in claims), undo_on_failure=False)
    carriers = ", ".join(claim.carrier for claim in claims)
    what = f"{text}, and a killed command left the claim on {carriers}: {claims[0].command}"
    action = f"release the claim on {carriers}; the device stays as it is"
    operation = host.operations.current()
    own = tuple(
        replace(claim, process=operation.process, command=operation.command, operation=operation.id) for claim in claims
    )
    return ReconcileFinding("half-adopted", what, action, plan, own, vm)


def _half_set_up_finding(finding: ReconcileFinding, claim: Claim) -> ReconcileFinding:
    """Return the finding for a GPU that a killed command left half set up: only its claim names the goal."""
    text = f"GPU {claim.gpu} is half set up: its virtual functions, GPU instances, mixed sizes or scheduler may be"
    retry = f"run this again to finish it: {claim.command}; or vgpuctl apply sets it as in host.yaml"
    what, action = f"{text} unchanged, changed, or gone", f"{finding.action}; {retry}"
    return replace(finding, kind="half-set-up", what=what, action=action)


def find_unfinished_files(host: Host) -> list[ReconcileFinding]:
    """Return the files left half-written by processes that are gone."""
    if host.unfinished_files is None:
        return []
    with report_unreadable("files that killed commands were writing"):
        files = host.unfinished_files.all()
    findings = []
    for file in files:
        text = f"{file.path} was being written by process {file.process.pid}, which no longer exists"
        step = RemoveUnfinishedFile(file)
        findings.append(
            ReconcileFinding("unfinished-file", text, step.describe(), Plan((step,), undo_on_failure=False))
        )
    return findings


class RemoveUnfinishedFile(Removal):
    """Remove one unfinished file."""

    file: UnfinishedFile

    def describe(self) -> str:
        return f"remove {self.file.path}"

    def perform(self, host: Host) -> None:
        """Remove it; the port checks that its writer has ended."""
        if host.unfinished_files is None:
            return
        try:
            host.unfinished_files.remove(self.file)
        except OSError as error:
            raise FileFailed(
                f"{self.file.path} cannot be removed: {error.strerror or error}",
                hint=f"ls -l {self.file.path}",
                errno=error.errno,
                path=self.file.path,
            ) from error

    def verify(self, host: Host) -> None:
        """Nothing to read back: removing a file either worked or raised."""


def check_without_record(host: Host, snapshot: Snapshot, vm: Vm) -> list[ReconcileFinding]:
    """Return the problem of a VM without a readable record of its own: a copy, a newer record, or a lost one."""
    if vm.copied_record is not None:
        text = f"VM {vm.name} has the record of VM {vm.copied_record.vm_uuid}: it is a copy"
        return [ReconcileFinding("copied-record", text, "nothing: vgpuctl does not manage it")]
    if vm.has_unfinished_exchange:
        text = f"VM {vm.name} is in an exchange of places that version 0.1 left unfinished"
        return [ReconcileFinding("unreadable-record", text, f"nothing: {FINISH_EXCHANGE}")]
    if vm.has_unreadable_record:
        text = f"VM {vm.name} has a record that this vgpuctl cannot read"
        action = f"nothing: a newer vgpuctl may have written it; upgrade vgpuctl (virsh dumpxml {vm.name} shows it)"
        return [ReconcileFinding("unreadable-record", text, action)]
    carriers = {h.carrier: h for h in vm.hostdevs}
    managed = [v for v in snapshot.vgpus if v.owner is Ownership.MANAGED and v.name is None]
    proven = [v for v in managed if v.carrier in carriers and v.vm_uuid == vm.uuid]
    if not proven or any(v.carrier in snapshot.live_claim_carriers for v in proven):
        return []
    half_adopted = _half_adopted_claims(host, (c for c in snapshot.claims if c.vm_uuid == vm.uuid))
    if half_adopted:
        return [_half_adopted_finding(host, f"VM {vm.name} has no record", list(half_adopted.values()), vm)]
    record = _rebuild_record(snapshot, vm, proven)
    plan = Plan((SetRecordState(vm.name, vm.uuid, record),), undo_on_failure=False)
    text = f"VM {vm.name} lost its record; {', '.join(v.carrier for v in proven)} is provably its own"
    action = f"write the record of {vm.name} again (delete-vm will keep its disks)"
    return [ReconcileFinding("record-lost", text, action, plan, claims_of_record(host, vm.name, record), vm)]


def _rebuild_record(snapshot: Snapshot, vm: Vm, vgpus: list[Vgpu]) -> VmRecord:
    """Return a record with what the host itself still proves: the vGPUs. It cannot prove disks, so there are none.

    Adopted vGPUs have no alias with their index, and get free ones.
    """
    adopted = {c.carrier for c in snapshot.claims if c.vm_uuid == vm.uuid and c.adopted}
    aliases = {h.carrier: h.alias or "" for h in vm.hostdevs}
    indexes = {
        v.carrier: parse_integer(aliases[v.carrier].rpartition("-")[2]) or 0 for v in vgpus if v.carrier not in adopted
    }
    free = (n for n in count() if n not in indexes.values())
    indexes |= {v.carrier: next(free) for v in vgpus if v.carrier in adopted}
    assigned = (assigned_from_observed(v, indexes[v.carrier]) for v in sorted(vgpus, key=lambda v: indexes[v.carrier]))
    return VmRecord(
        state=RecordState.READY,
        vm_uuid=vm.uuid,
        machine_id=snapshot.machine_id,
        vgpus=tuple(replace(v, adopted=v.carrier in adopted) for v in assigned),
        disks=(),
        request_json="{}",
        created_vm=not adopted and not any(alias.startswith(ADOPTED_ALIAS_PREFIX) for alias in aliases.values()),
    )


def give_up_place(host: Host, context: Context, name: str, carrier: str) -> None:
    """Let a vGPU of a stopped VM give up its place; the VM waits for another one.

    Raises:
        InUse: the VM runs, or has a managed save.
        Busy: the VM no longer has this vGPU.
        VgpuctlError: the reason; the VM is unchanged.
    """
    require_writable(host, context)
    snapshot = observe(host, ReadScope(types=True))
    vm, record = require_changeable_vm(context, snapshot, name, "place")
    vgpu = next((v for v in with_slot(snapshot, vm, record) if v.carrier == carrier), None)
    if vgpu is None:
        raise Busy(f"{vm.name} no longer has {carrier}", hint="run the command again", vm=vm.name)
    refuse_managed_save(host, vm)
    held_record = replace(record, vgpus=with_slot(snapshot, vm, record))
    with Transaction(host, context) as tx:
        tx.take_over_vm(vm, held_record, scope_of_vm(vm.uuid), leaving=True)
        claims = claims_of_record(host, vm.name, replace(record, vgpus=(vgpu,)))
        tx.carry_out(Plan(leave_steps(snapshot, vm, record, vgpu, claims), vms_required_off=(vm.uuid,)))


def give_place(host: Host, context: Context, name: str, *, target: MoveTarget | None = None) -> bool:
    """Give a stopped VM that waits for a place one: at `target`, otherwise its last one, or any if that is taken.

    Returns whether it waited for one.

    Raises:
        NoCapacity: there is none; the VM waits.
        VgpuctlError: the reason; the VM is unchanged.
    """
    require_writable(host, context)
    vm, record = require_changeable_vm(context, observe(host, scope_of_vm(name)), name, "place")
    if record.always_reserves:
        return False
    place_and_start(host, context, vm, record, target=target, start=False)
    return True


def why_no_place(host: Host, vm: Vm) -> str | None:
    """Return why there is no place for a VM that waits for one; None if there is one, or it does not wait."""
    record = vm.record
    if record is None or not record.waiting_vgpus():
        return None
    try:
        choose_slots(observe(host, scope_of_request(request_from_record(vm, record, record.vgpus))), vm, record)
    except VgpuctlError as error:
        return error.message
    return None


def check_waiting(host: Host, snapshot: Snapshot, vm: Vm, record: VmRecord) -> ReconcileFinding:
    """Return the finding for a VM that waits for a place: a stopped one gets one, a running one has one already."""
    waiting = record.waiting_vgpus()
    text = f"VM {vm.name} gave up its place for {', '.join(sorted(str(v.profile) for v in waiting))} for a move"
    if vm.state not in STOPPED_STATES:
        held = with_slot(snapshot, vm, record)
        if len(held) < len(record.vgpus):
            return ReconcileFinding("no-place", text, "nothing while it is not off", vm=vm)
        action = f"record the place that VM {vm.name} has"
        plan = Plan((WriteRecord(vm.name, vm.uuid, replace(record, vgpus=held), record, action),))
        claims = claims_of_record(host, vm.name, replace(record, vgpus=held))
        return ReconcileFinding("no-place", text, action, plan, claims, vm)
    problem = why_no_place(host, vm)
    if problem is not None:
        action = f"nothing: {problem}; try again: {start_command(vm)}"
        return ReconcileFinding("no-place", text, action, vm=vm)
    return ReconcileFinding("no-place", text, f"give VM {vm.name} a place", vm=vm, places_vm=True)
