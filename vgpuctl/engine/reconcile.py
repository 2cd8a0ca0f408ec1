# SPDX-License-Identifier: Apache-2.0
"""Finish or undo what a crash left, with the steps of create and delete.

Only what vgpuctl can prove to be its own is touched: a claim whose VM and process are gone, a VM whose record
says it is half made or half removed while no process works on it. What is foreign is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.domain.sources import sources_of
from vgpuctl.engine.chains import refuse_shared
from vgpuctl.engine.claim import claims_of, give_back_unused, reclaim
from vgpuctl.engine.drained import forget_settled, left_off
from vgpuctl.engine.guards import require_system, require_writable
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.observe.vms import read_vm
from vgpuctl.engine.power import lacks_place, leftovers_of, start_vm
from vgpuctl.engine.run import carry_out
from vgpuctl.engine.unowned import About, Finding, of_host_file, unfinished, unowned
from vgpuctl.engine.working import worked_on
from vgpuctl.errors import LibvirtFailed, NotFound, PartlyApplied, Refused, VgpuctlError
from vgpuctl.model.digits import whole
from vgpuctl.model.gpu import Owner, Vgpu
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.records import Holder
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan
from vgpuctl.model.vm import Claim, Exchange, ProcessId, Promise, PromiseState, Vm
from vgpuctl.plan.change import ADOPTED, detach_steps, unreferenced
from vgpuctl.plan.exchange import abandoning_steps, decided, finishing_steps
from vgpuctl.plan.refresh import dropping
from vgpuctl.plan.remove import (
    as_promised,
    freeing_steps,
    not_provably_ours,
    removal_plan,
)
from vgpuctl.plan.reserve import held
from vgpuctl.plan.vgpus import refuse_unread
from vgpuctl.steps.claims import HoldClaim, ReleaseClaim, claims_on
from vgpuctl.steps.domain import OFF, SetRecord, lacking
from vgpuctl.steps.plug import SwitchOver
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.seams import Processes
    from vgpuctl.model.world import World

ROUNDS = 5
AGAIN = "what is left after that is looked at again: more may follow"


def reconcile(world: World, *, dry_run: bool, wait_seconds: float, progress: Progress) -> Outcome:
    """Find and mend, again until nothing is left to mend; one failure does not stop the rest, and is told at the end.

    What was mended may uncover what is left of it: a VM that is gone leaves claims that were stray. A dry run shows
    what the first look finds.

    Raises:
        PartlyApplied: there still is something after the last round.
        VgpuctlError: the first failure, after everything else was tried; `left` lists all of them.
    """
    if not dry_run:
        require_writable(world)
    told: dict[About, Finding] = {}
    failed: dict[About, VgpuctlError] = {}
    steps: list[str] = []
    before: list[About] = []
    for rounds in range(ROUNDS + 1):
        seen = replace(world, processes=_Others(world.processes)) if rounds else world
        snapshot = _look(seen, dry_run=dry_run)
        findings = {f.about: f for f in find(seen, snapshot)}
        told |= {about: f for about, f in findings.items() if about not in told}
        work = [f for f in findings.values() if f.mends and f.about not in failed]
        if not work or before == [f.about for f in work]:  # others work on it, or it is as it was
            break
        before = [f.about for f in work]
        if rounds == ROUNDS:
            raise _unsettled(work)
        steps += [line for f in work for line in f.steps]
        if dry_run:
            break
        for finding in work:
            error = _mend(world, finding, wait_seconds, progress)
            if error is not None:
                failed[finding.about] = error
    if failed:
        first = next(iter(failed.values()))
        first.left = [line for error in failed.values() for line in (error.left or [error.message])]
        raise first
    found = [{"kind": f.kind, "what": f.what, "action": f.action} for f in told.values()]
    notes = (AGAIN,) if dry_run and steps else ()
    return Outcome(bool(steps), {"findings": found}, tuple(steps), snapshot.warnings, notes, dry_run=dry_run)


class _Others:
    """The processes but for this one: what it has claimed in an earlier round, nobody works on any more."""

    def __init__(self, real: Processes) -> None:
        self._real = real

    def this(self) -> ProcessId:
        """Return the calling process."""
        return self._real.this()

    def command(self) -> str:
        """Return the calling command line."""
        return self._real.command()

    def alive(self, process: ProcessId) -> bool:
        """Say whether another process lives."""
        return process != self.this() and self._real.alive(process)

    def holders(self, nodes: tuple[str, ...]) -> tuple[Holder, ...]:
        """Return who has device nodes open."""
        return self._real.holders(nodes)


def _look(world: World, *, dry_run: bool) -> Snapshot:
    snapshot = observe(world, Want(models=False))
    require_system(snapshot)
    if not dry_run:
        refuse_unread(snapshot)
        forget_settled(world, snapshot)
    return snapshot


def _unsettled(work: list[Finding]) -> PartlyApplied:
    error = PartlyApplied(
        f"after {ROUNDS} rounds there still is something to fix: something else may be changing this host",
        hint="vgpuctl reconcile --dry-run shows what is left",
    )
    error.left = [f"{f.what}: {f.action}" for f in work]
    return error


def _mend(world: World, finding: Finding, wait_seconds: float, progress: Progress) -> VgpuctlError | None:
    """Claim it, see that it still is as it was found, and mend it; another vgpuctl may have been faster."""
    try:
        if finding.vm is not None and finding.start:
            start_vm(world, finding.vm.uuid, dry_run=False, wait_seconds=wait_seconds, progress=progress)
            return None
        plan = finding.plan or Plan(())
        removes = any(isinstance(step, ReleaseClaim | SwitchOver) for step in plan.steps)
        mine = reclaim(world, finding.claims, wait_seconds, lost=finding.vm is not None, leaving=removes)
        if not _still(world, finding):
            give_back_unused(world, mine)
            return None
        carry_out(world, plan, progress)
    except VgpuctlError as error:
        return error
    return None


def _still(world: World, finding: Finding) -> bool:
    """Say whether it is as it was found; a VM that was off and is started since keeps what it has."""
    if finding.vm is None:
        claimed = {c.carrier for c in claims_on(world, finding.claims)}
        if any(world.hypervisor.find_domain(c.vm_uuid) is not None for c in finding.claims):
            return False
        return all(c.carrier in claimed for c in finding.claims)
    if finding.vm.uuid in worked_on(world):
        return False
    record = world.hypervisor.find_domain(finding.vm.uuid)
    if record is None:
        return False
    now = read_vm(world, record)
    if (finding.vm.state in OFF) != (now.state in OFF):
        return False
    return now.promise == finding.vm.promise and now.unreadable_promise == finding.vm.unreadable_promise


def find(world: World, snapshot: Snapshot) -> tuple[Finding, ...]:
    """Return everything that is not as it should be."""
    found: list[Finding] = []
    for write in snapshot.stuck:
        text = f"process {write.process.pid} waits in the kernel writing {write.path}"
        found.append(Finding("stuck-write", text, "it ends when the device is released"))
    busy = worked_on(world)
    live = {c.vm_uuid for c in snapshot.claims if c.carrier in snapshot.live_claims}
    for vm in (v for v in snapshot.vms if v.uuid not in busy):
        found += _of_vm(world, snapshot, vm, works=vm.uuid in live)
    found += [*of_host_file(world, snapshot), *unowned(world, snapshot), *unfinished(world)]
    return (*found, *_drained(world, snapshot))


def _drained(world: World, snapshot: Snapshot) -> list[Finding]:
    """Return the VMs that were shut down for a while and that nobody is left to start again."""
    found = []
    for gpu, vm in left_off(world, snapshot):
        if gpu is None:
            text = f"VM {vm.name} was shut down to be refreshed or moved, and has not been started again"
            found.append(Finding("drained", text, f"start VM {vm.name}", vm=vm, start=True))
            continue
        text = f"VM {vm.name} was shut down to set GPU {gpu} up, and has not been started again"
        stuck = any(w.gpu == gpu for w in snapshot.stuck)  # the start says so, and reads nothing there
        lacks = None if stuck else lacks_place(world, snapshot, vm)
        if lacks is None:
            found.append(Finding("drained", text, f"start VM {vm.name}", vm=vm, start=True))
        else:
            again = f"the same command again, or vgpuctl set-mode {gpu} MODE or vgpuctl apply, starts {vm.name} too"
            action = f"nothing before the GPU is set up: {lacks}; {again}"
            found.append(Finding("drained", text, action, vm=vm))
    return found


def _of_vm(world: World, snapshot: Snapshot, vm: Vm, *, works: bool) -> list[Finding]:
    """Return what is wrong with one VM; `works`: a living process has claims of it."""
    if vm.promise is None:
        return _without_record(world, snapshot, vm)
    if works:
        return []
    own = replace(vm.promise, vgpus=held(snapshot, vm, vm.promise))
    claims = claims_of(world, vm.name, own)
    if any(w.gpu in {v.gpu for v in own.vgpus} for w in snapshot.stuck):
        return []
    if vm.promise.state is not PromiseState.READY:
        return _half_way(world, snapshot, vm, vm.promise, own, claims)
    if vm.promise.exchange is not None:
        return [_half_exchanged(world, snapshot, vm, vm.promise, vm.promise.exchange)]
    if vm.promise.spares():
        return _half_refreshed(world, snapshot, vm, vm.promise, claims)
    return _incomplete(world, snapshot, vm, vm.promise, own, claims)


def _half_way(
    world: World, snapshot: Snapshot, vm: Vm, promise: Promise, own: Promise, claims: tuple[Claim, ...]
) -> list[Finding]:
    """Return what is half made or half removed; `own` is the record with those vGPUs that the VM has now."""
    half = "made" if promise.state is PromiseState.MAKING else "removed"
    if vm.state not in OFF:
        return _half_way_and_on(world, vm, promise, half, claims)
    try:
        leftovers = leftovers_of(world, vm)
    except NotFound:
        return []
    try:
        refuse_shared(world, snapshot, vm, promise)
    except (Refused, LibvirtFailed) as error:
        return [Finding(f"half-{half}", f"VM {vm.name} is half {half}", f"nothing: {error.message}")]
    leave = not_provably_ours(snapshot, vm, own)
    plan = removal_plan(vm, own, leftovers, keep_disks=False, leave=leave)
    return [Finding(f"half-{half}", f"VM {vm.name} is half {half}", f"remove VM {vm.name}", plan, claims, vm)]


def _half_way_and_on(world: World, vm: Vm, promise: Promise, half: str, claims: tuple[Claim, ...]) -> list[Finding]:
    """Return what is half-way and was started: nothing of it is removed, and one that has everything is ready."""
    text = f"VM {vm.name} is {vm.state}, and its record says it is half {half}"
    record = world.hypervisor.find_domain(vm.uuid)
    lacks = lacking(world, record) if record is not None else ()
    if lacks:
        action = f"nothing while it is not off: it lacks {', '.join(lacks)}; vgpuctl delete-vm {vm.name} removes it"
        return [Finding(f"half-{half}", text, action, vm=vm)]
    ready = SetRecord(vm.name, vm.uuid, replace(promise, state=PromiseState.READY), was=promise)
    action = f"record VM {vm.name} as ready: nothing that runs is removed"
    return [Finding(f"half-{half}", text, action, Plan((ready,), undo_on_failure=False), claims, vm)]


def _incomplete(
    world: World, snapshot: Snapshot, vm: Vm, promise: Promise, own: Promise, claims: tuple[Claim, ...]
) -> list[Finding]:
    """Return what a finished VM lacks, or has and does not need."""
    doubtful = not_provably_ours(snapshot, vm, promise)
    lone = unreferenced(vm)
    if lone:
        text = f"VM {vm.name} does not refer to {', '.join(v.carrier for v in lone)} of its record"
        plan = Plan(detach_steps(vm, promise, lone, doubtful, 0), undo_on_failure=False)
        return [Finding("half-attached", text, f"remove it and drop it from the record of {vm.name}", plan, claims, vm)]
    if own.lends and own.vgpus and vm.state in OFF:
        return _not_needed(world, vm, own, claims)
    claimed = {c.carrier for c in snapshot.claims}
    missing = tuple(c for c in claims if c.carrier not in claimed | doubtful and _is_present(snapshot, c.carrier))
    if missing:
        text = f"VM {vm.name} has no claim on {', '.join(c.carrier for c in missing)}"
        plan = Plan(tuple(HoldClaim(c) for c in missing), undo_on_failure=False)
        return [Finding("claim-lost", text, "write the claim again", plan, vm=vm)]
    return []


def _not_needed(world: World, vm: Vm, own: Promise, claims: tuple[Claim, ...]) -> list[Finding]:
    """Return what a VM that is off has and reserves only while it runs; one with a managed save needs it there."""
    try:
        if leftovers_of(world, vm).managed_save:
            return []
    except NotFound:
        return []
    text = f"VM {vm.name} is off and still has {', '.join(v.carrier for v in own.vgpus)}, which it reserves only to run"
    plan = Plan(freeing_steps(vm, own.vgpus), undo_on_failure=False, off=(vm.uuid,))
    return [Finding("not-needed", text, "; ".join(s.describe() for s in plan.steps), plan, claims, vm)]


def _half_exchanged(world: World, snapshot: Snapshot, vm: Vm, promise: Promise, note: Exchange) -> Finding:
    """Return what an exchange of places left: it is finished where it counts already, else forgotten."""
    text = f"VM {vm.name} was to go from {note.carrier} to {note.vgpu.carrier} together with others"
    counts = decided(snapshot, note)
    if counts and vm.state not in OFF:
        return Finding("half-exchanged", text, f"nothing while it runs where it was: virsh shutdown {vm.name} first")
    claims = claims_of(world, vm.name, promise)
    news = claims_of(world, vm.name, replace(promise, vgpus=(note.vgpu,)))
    if counts:
        olds = tuple(c for c in claims if c.carrier == note.carrier)
        steps, claims = finishing_steps(snapshot, vm, promise, note, olds), (*claims, *news)
    else:
        steps = abandoning_steps(snapshot, vm, promise, note, news)
    plan = Plan(steps, undo_on_failure=False, off=(vm.uuid,) if counts else ())
    return Finding("half-exchanged", text, "; ".join(s.describe() for s in plan.steps), plan, claims, vm)


def _half_refreshed(
    world: World, snapshot: Snapshot, vm: Vm, promise: Promise, claims: tuple[Claim, ...]
) -> list[Finding]:
    paths = ", ".join(d.path for d in promise.spares())
    text = f"a refresh of VM {vm.name} was interrupted, which left {paths}"
    record = world.hypervisor.find_domain(vm.uuid) if vm.state not in OFF else None
    if record is not None and any(d.path in sources_of(record.xml, record.live_xml).files for d in promise.spares()):
        return [Finding("half-refreshed", text, f"nothing while the VM uses it: vgpuctl stop-vm {vm.name} first")]
    try:
        refuse_shared(world, snapshot, vm, replace(promise, disks=promise.spares()))
    except (Refused, LibvirtFailed) as error:
        return [Finding("half-refreshed", text, f"nothing: {error.message}")]
    return [Finding("half-refreshed", text, f"delete {paths}", dropping(vm, promise), claims, vm)]


def _is_present(snapshot: Snapshot, carrier: str) -> bool:
    return any(v.carrier == carrier and v.present for v in snapshot.vgpus)


def _without_record(world: World, snapshot: Snapshot, vm: Vm) -> list[Finding]:
    if vm.copied_promise is not None:
        text = f"VM {vm.name} carries the record of VM {vm.copied_promise.vm_uuid}: a copy"
        return [Finding("copied-record", text, "nothing: it is not ours")]
    if vm.unreadable_promise:
        text = f"VM {vm.name} has a record that this vgpuctl cannot read"
        action = f"nothing: a newer vgpuctl may have written it; upgrade vgpuctl (virsh dumpxml {vm.name} shows it)"
        return [Finding("unreadable-record", text, action)]
    carriers = {h.carrier: h for h in vm.hostdevs}
    ours = [v for v in snapshot.vgpus if v.owner is Owner.OURS and v.name is None]
    lost = [v for v in ours if v.carrier in carriers and v.vm_uuid == vm.uuid]
    if not lost:
        return []
    promise = rebuilt(snapshot.machine_id, vm, lost, lambda v: _index(carriers[v.carrier].alias))
    plan = Plan((SetRecord(vm.name, vm.uuid, promise),), undo_on_failure=False)
    text = f"VM {vm.name} lost its record; {', '.join(v.carrier for v in lost)} is provably its own"
    action = f"write the record of {vm.name} again (its disks stay its own: delete-vm will leave them)"
    return [Finding("record-lost", text, action, plan, claims_of(world, vm.name, promise), vm)]


def rebuilt(machine_id: str, vm: Vm, lost: list[Vgpu], index: Callable[[Vgpu], int]) -> Promise:
    """Return the promise that the host itself still proves: the vGPUs. Disks cannot be proved, so none."""
    ordered = sorted(lost, key=index)
    return Promise(
        state=PromiseState.READY,
        vm_uuid=vm.uuid,
        machine_id=machine_id,
        vgpus=tuple(as_promised(v, index(v)) for v in ordered),
        disks=(),
        spec="{}",
        made_vm=not any((h.alias or "").startswith(ADOPTED) for h in vm.hostdevs),
    )


def _index(alias: str | None) -> int:
    return whole((alias or "").rpartition("-")[2]) or 0
