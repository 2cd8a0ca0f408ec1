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
from vgpuctl.engine.drained import left_off
from vgpuctl.engine.guards import require_system, require_writable
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.observe.vms import read_vm
from vgpuctl.engine.power import lacks_place, leftovers_of, start_vm
from vgpuctl.engine.run import carry_out
from vgpuctl.engine.working import worked_on
from vgpuctl.errors import InUse, LibvirtFailed, NotFound, VgpuctlError
from vgpuctl.model.digits import whole
from vgpuctl.model.gpu import Owner, Vgpu
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan
from vgpuctl.model.vm import SETTING_UP, Claim, Exchange, NamedVgpu, Promise, PromiseState, Vm
from vgpuctl.plan.change import ADOPTED, detach_steps, unreferenced
from vgpuctl.plan.exchange import abandoning_steps, decided, finishing_steps
from vgpuctl.plan.refresh import dropping
from vgpuctl.plan.remove import (
    as_promised,
    freeing_steps,
    not_provably_ours,
    orphan_plan,
    removal_plan,
)
from vgpuctl.plan.reserve import held
from vgpuctl.plan.vgpus import holder_of, promised, refuse_unread
from vgpuctl.steps.claims import HoldClaim, ReleaseClaim, all_claims
from vgpuctl.steps.domain import OFF, SetRecord, lacking
from vgpuctl.steps.plug import SwitchOver
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World


class Finding(Value):
    """One thing that is not as it should be, and what mends it: a plan, or a start. Without both it is only told."""

    kind: str
    what: str
    action: str
    plan: Plan | None = None
    claims: tuple[Claim, ...] = ()
    vm: Vm | None = None
    start: bool = False


def reconcile(world: World, *, dry_run: bool, wait_seconds: float, progress: Progress) -> Outcome:
    """Find and mend; one failure does not stop the rest, and is told at the end.

    Raises:
        VgpuctlError: the first failure, after everything else was tried; `left` lists all of them.
    """
    if not dry_run:
        require_writable(world)
    snapshot = observe(world, Want(models=False))
    require_system(snapshot)
    if not dry_run:
        refuse_unread(snapshot)
    findings = find(world, snapshot)
    work = [f for f in findings if f.plan is not None or f.start]
    data: dict[str, object] = {"findings": [{"kind": f.kind, "what": f.what, "action": f.action} for f in findings]}
    steps = tuple(s for f in work for s in ([f.action] if f.plan is None else [s.describe() for s in f.plan.steps]))
    if dry_run or not work:
        return Outcome(bool(work), data, steps, snapshot.warnings, dry_run=dry_run)
    failures = [error for f in work if (error := _mend(world, f, wait_seconds, progress)) is not None]
    if failures:
        first = failures[0]
        first.left = [line for error in failures for line in (error.left or [error.message])]
        raise first
    return Outcome(True, data, steps, snapshot.warnings)


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
        claimed = {c.carrier for c in all_claims(world)}
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
    for vm in (v for v in snapshot.vms if v.uuid not in busy):
        found += _of_vm(world, snapshot, vm)
    stuck = {w.gpu for w in snapshot.stuck}
    found += [one for named in snapshot.named for one in _of_named(world, snapshot, named)]
    found += [_stray(world, snapshot, v, vm) for v, vm in _strays(snapshot) if v.gpu not in stuck]
    found += [_leak(world, snapshot, v) for v in snapshot.vgpus if v.owner is Owner.LEAKED and v.gpu not in stuck]
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


def _of_vm(world: World, snapshot: Snapshot, vm: Vm) -> list[Finding]:
    if vm.promise is None:
        return _without_record(world, snapshot, vm)
    if any(c.vm_uuid == vm.uuid and c.carrier in snapshot.live_claims for c in snapshot.claims):
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
    except (InUse, LibvirtFailed) as error:
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
    plan = Plan(steps, undo_on_failure=False)
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
    except (InUse, LibvirtFailed) as error:
        return [Finding("half-refreshed", text, f"nothing: {error.message}")]
    return [Finding("half-refreshed", text, f"delete {paths}", dropping(vm, promise), claims, vm)]


def _of_named(world: World, snapshot: Snapshot, named: NamedVgpu) -> list[Finding]:
    """Return what is wrong with a vGPU that host.yaml keeps without a VM, unless somebody works on it."""
    what = f"vGPU {named.name} of host.yaml ({named.profile} on {named.gpu})"
    seen = next((v for v in snapshot.vgpus if v.carrier == named.carrier), None)
    if seen is None or named.carrier in snapshot.live_claims:
        return []
    if seen.name != named.name:
        text = f"{what} is the vGPU of {seen.holder}"
        return [Finding("vgpu-conflict", text, "nothing: take one of them away, delete-vm or host.yaml")]
    if seen.reason is not None:
        return [Finding("vgpu-changed", f"{what}: {seen.reason}", "nothing: somebody changed it by hand")]
    if not seen.present:
        return [Finding("vgpu-missing", f"{what} is missing", "nothing: vgpuctl restore-host makes it again")]
    if any(c.carrier == named.carrier for c in snapshot.claims):
        return []
    holder, promise = holder_of(snapshot.machine_id, named.name, promised(named, seen))
    plan = Plan(tuple(HoldClaim(c) for c in claims_of(world, holder.name, promise)), undo_on_failure=False)
    return [Finding("claim-lost", f"{what} has no claim on {named.carrier}", "write the claim again", plan)]


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


def _strays(snapshot: Snapshot) -> list[tuple[Vgpu, Vm]]:
    """Return what is claimed for a VM whose record and devices do not have it: a change that ended half-way.

    A record that is a copy or cannot be read does not tell what the VM has, so nothing of it is stray.
    """
    by_uuid = {vm.uuid: vm for vm in snapshot.vms}
    found = []
    for claim in snapshot.claims:
        vm = by_uuid.get(claim.vm_uuid)
        if vm is None or claim.carrier in snapshot.live_claims or vm.copied_promise is not None:
            continue
        if vm.unreadable_promise:
            continue
        names = {v.carrier for v in vm.promise.vgpus} if vm.promise else set()
        note = vm.promise.exchange if vm.promise else None
        if note is not None:
            names.add(note.vgpu.carrier)
        if claim.carrier not in names | {h.carrier for h in vm.hostdevs}:
            found += [(v, vm) for v in snapshot.vgpus if v.carrier == claim.carrier]
    return found


def _stray(world: World, snapshot: Snapshot, vgpu: Vgpu, vm: Vm) -> Finding:
    text = f"{vgpu.profile or vgpu.backend} on {vgpu.function} is claimed for VM {vm.name}, which does not have it"
    found = replace(_leak(world, snapshot, vgpu), kind="half-changed", what=text, vm=vm)
    if vgpu.name is None and vgpu.vm_uuid == vm.uuid:
        return found
    release = ReleaseClaim(vgpu.carrier, vm.uuid)  # the device is another's: host.yaml or a VM's record says so
    return replace(found, action=release.describe(), plan=Plan((release,), undo_on_failure=False))


def _leak(world: World, snapshot: Snapshot, vgpu: Vgpu) -> Finding:
    where = f"{vgpu.profile or vgpu.backend} on {vgpu.function}"
    claims = tuple(
        replace(c, process=world.processes.this(), command=world.processes.command())
        for c in snapshot.claims
        if c.carrier == vgpu.carrier
    )
    plan = orphan_plan(vgpu)
    action = "; ".join(s.describe() for s in plan.steps)
    asked = [c.command for c in snapshot.claims if c.carrier == vgpu.carrier and c.vm == SETTING_UP]
    if asked:  # only the claim knows what the GPU was to be: host.yaml says it when it is true
        text = f"GPU {vgpu.gpu} is half set up: its virtual functions, GPU instances, mixed sizes or scheduler may be"
        again = f"to finish it, run it again: {asked[0]}; vgpuctl apply makes it as host.yaml says instead"
        return Finding("half-set-up", f"{text} as before, as asked, or gone", f"{action}; {again}", plan, claims)
    return Finding("leaked", f"{where}: {vgpu.reason}", action, plan, claims)
