# SPDX-License-Identifier: Apache-2.0
"""Ensure that several equal VMs exist: existing ones are compared, missing ones are claimed together and created.

All missing VMs are claimed together under the host lock, or none. Then each is created and undone by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.config.vm_request import UPDATABLE_FIELDS, VmRequest
from vgpuctl.config.vm_spec import with_seed
from vgpuctl.errors import (
    HostCannot,
    Interrupted,
    InUse,
    InvalidInput,
    NoCapacity,
    PartlyApplied,
    SomeVmsFailed,
    SpecDiffers,
    VgpuctlError,
)
from vgpuctl.model.gpu import Vgpu
from vgpuctl.model.numbers import count_text
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.request import CloudInit, DomainDesign, ExistingDisk
from vgpuctl.model.results.vms import FailedVmResult, ManyVmResult, ManyVmsResult, NewVmResult, StateWord
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, VmState
from vgpuctl.observe import ReadScope, observe, scope_of_request
from vgpuctl.operations.claim import claims_of_record, is_unchanged
from vgpuctl.operations.create import check_network_configs, create_vm, design_domain, reserves_slots, vm_creation_plan
from vgpuctl.operations.domain_join import blob_for_new_vm
from vgpuctl.operations.ensure_vm import diff_request, profile_doubts, refuse_incomplete_request
from vgpuctl.operations.facts import gather_host_facts
from vgpuctl.operations.guards import (
    refuse_others_vms,
    require_libvirt,
    require_system_libvirt,
    require_writable,
    with_account,
)
from vgpuctl.operations.limits import refuse_over_limits
from vgpuctl.operations.plans.choose import as_taken_vgpu, choose_vgpus, refuse_unapplied_settings
from vgpuctl.operations.plans.facts import HostFacts, check_facts
from vgpuctl.operations.plans.reserve import hypothetical_empty
from vgpuctl.operations.plans.results import field_sources, planned_vgpu, vm_result
from vgpuctl.operations.plans.vm_diff import FieldValues, describe_differences, difference_hint
from vgpuctl.operations.steps.claims import TakeClaim
from vgpuctl.operations.steps.seed import with_blob
from vgpuctl.operations.transaction import Transaction
from vgpuctl.operations.worker_pool import VmJob, WorkerPool, describe_jobs
from vgpuctl.value import EMPTY_MAPPING, extend, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

RERUN_HINT = "run the same command again: it creates the missing ones"


def ensure_vms(
    host: Host,
    context: Context,
    request: VmRequest,
    names: tuple[str, ...],
    *,
    seeds: Mapping[str, CloudInit] = EMPTY_MAPPING,
    start: bool,
    parallel: int,
) -> Outcome[ManyVmsResult]:
    """Create those of the named VMs that are missing, `parallel` at a time; the others must match the request.

    `seeds`: files for cloud-init by VM; a VM without an entry gets those of the request.

    Raises:
        SpecDiffers: some exist and differ; nothing was created.
        NoCapacity: the missing ones do not all fit; nothing was created.
        SomeVmsFailed: some could not be created and were undone; the others exist.
        PartlyApplied: some could not even be undone.
        Interrupted: a signal arrived.
    """
    require_writable(host, context)
    snapshot = observe(host, scope_of_request(request))
    require_system_libvirt(snapshot)
    request = with_account(request, context)
    requests = {name: with_seed(replace(request, name=name), seeds.get(name, request.seed)) for name in names}
    refuse_others_vms(context, snapshot, names)
    missing = _missing_names(host, snapshot, requests)
    if not missing:
        return Outcome(False, _data(snapshot, names, frozenset()), warnings=snapshot.warnings, dry_run=context.dry_run)
    refuse_incomplete_request(requests[missing[0]])
    _refuse_shared(request, len(missing))
    batch = _Batch(host, request, {name: requests[name] for name in missing}, snapshot, start=start)
    refuse_over_limits(context, snapshot, records=[design.record for design in batch.designs])
    if context.dry_run:
        return batch.plan_outcome(names)
    with Transaction(host, context) as tx:
        jobs = batch.claim_jobs(tx)
        pool = WorkerPool(host, jobs, parallel, context.progress)
        for name, uuid in () if batch.reserves else batch.vms:
            tx.note(name, uuid)
        tx.hand_over()
        pool.run(describe_jobs(jobs))
    _retry_elsewhere(host, context, requests, pool, start=start)
    data, warnings = _report_vms(host, names, pool, batch)
    if pool.failed or pool.interruption is not None:
        raise _combined_error(pool, data, names)
    steps = describe_jobs(jobs)
    return Outcome(True, data, steps, (*batch.warnings, *pool.warnings, *warnings), _notes(jobs))


def observe_named(host: Host, context: Context, names: tuple[str, ...]) -> Outcome[ManyVmsResult]:
    """Return those of these VMs that exist; nothing is changed yet.

    Raises:
        HostCannot: libvirt does not answer, and nobody knows which VMs exist.
    """
    snapshot = observe(host, ReadScope(models=False))
    require_libvirt(snapshot)
    return Outcome(False, _data(snapshot, names, frozenset()), warnings=snapshot.warnings, dry_run=context.dry_run)


def _missing_names(host: Host, snapshot: Snapshot, requests: Mapping[str, VmRequest]) -> tuple[str, ...]:
    """Return the names that no VM has; one error names every VM that differs from its request."""
    differences: dict[str, tuple[FieldValues, FieldValues]] = {}
    for name, request in requests.items():
        vm = snapshot.vm(name)
        if vm is not None:
            before, after = diff_request(host, snapshot, vm, request)
            if before:
                differences[name] = (before, after)
    if differences:
        has_profile = any("profile" in before for before, _ in differences.values())
        doubts = profile_doubts(snapshot, next(iter(requests.values()))) if has_profile else []
        raise _differs_error(differences, tuple(requests), doubts)
    return tuple(name for name in requests if snapshot.vm(name) is None)


def _differs_error(
    differences: Mapping[str, tuple[FieldValues, FieldValues]], names: tuple[str, ...], doubts: list[str]
) -> SpecDiffers:
    """Return the error for all VMs that differ: those that differ in the same way are one line."""
    vms_by_text: dict[str, list[str]] = {}
    for name, (before, after) in differences.items():
        vms_by_text.setdefault(describe_differences(before, after), []).append(name)
    first, *others = (
        f"{vms[0]}{f' (and {len(vms) - 1} more)' if len(vms) > 1 else ''}: {text}" for text, vms in vms_by_text.items()
    )
    return SpecDiffers(
        f"{len(differences)} of {len(names)} VMs exist and differ from the spec; nothing was changed: {first}",
        hint="; ".join((*doubts, difference_hint(differences, UPDATABLE_FIELDS))),
        vms=[{"vm": name, "before": before, "after": after} for name, (before, after) in differences.items()],
        **({"details": others} if others else {}),
    )


def _refuse_shared(request: VmRequest, count: int) -> None:
    """Refuse to give one disk or one MAC address to several VMs: each would write to it, or answer to it."""
    macs = [nic.mac for nic in request.nics if nic.mac is not None]
    if macs and count > 1:
        raise InvalidInput(
            f"{macs[0]} can be the MAC address of one VM only, and {count} are requested",
            hint="omit mac=: libvirt gives each VM an address of its own",
            mac=macs[0],
        )
    shared = [d.path for d in request.disks if isinstance(d, ExistingDisk)]
    if shared and count > 1:
        raise InvalidInput(
            f"{shared[0]} can be the disk of only one VM, and {count} are requested",
            hint="--image PATH gives each VM a clone of its own",
            disk=shared[0],
        )


class _Batch:
    """The missing VMs with their chosen slots, checked; nothing is written before `claim_jobs`."""

    def __init__(
        self, host: Host, request: VmRequest, requests: Mapping[str, VmRequest], snapshot: Snapshot, *, start: bool
    ) -> None:
        self.host = host
        self.request = request
        self.requests = requests
        self.start = start
        self.reserves = reserves_slots(request, start=start)
        self.vms = tuple((name, host.new_uuid()) for name in requests)
        self.snapshot = snapshot
        self.choices: VgpuChoices = choose_batch_vgpus(snapshot, request, self.vms, reserve_slots=self.reserves)
        vgpus = _flatten(self.choices)
        self.facts: HostFacts = gather_host_facts(host, snapshot, request, vgpus)
        self.warnings = (
            *check_facts(snapshot, request, vgpus, self.facts, vms=len(requests)),
            *check_network_configs(snapshot, requests.values()),
        )
        self.designs = self._designs()
        self.blobs = {name: blob_for_new_vm(host, requests[name], name, uuid) for name, uuid in self.vms}

    def _designs(self) -> tuple[DomainDesign, ...]:
        return tuple(
            design_domain(self.snapshot, self.requests[name], self.facts, uuid, vgpus)
            for (name, uuid), vgpus in zip(self.vms, self.choices, strict=True)
        )

    def _choose(self, fresh: Snapshot) -> tuple[AssignedVgpu, ...]:
        """Choose for a snapshot taken now. If nothing changed since the first one, keep the first choice."""
        if not is_unchanged(self.snapshot, fresh, {v.gpu for c in self.choices for v in c}):
            self.choices = choose_batch_vgpus(fresh, self.request, self.vms)
            self.snapshot = fresh
            self.designs = self._designs()
        return _flatten(self.choices)

    def _make_claims(self, _: tuple[AssignedVgpu, ...]) -> tuple[Claim, ...]:
        return tuple(c for d in self.designs for c in claims_of_record(self.host, d.name, d.record))

    def plan_outcome(self, names: tuple[str, ...]) -> Outcome[ManyVmsResult]:
        """Return what would be done."""
        held = [TakeClaim(c) for c in self._make_claims(())] if self.reserves else []
        jobs = self._jobs(self.snapshot, held)
        new = {d.name: _new_vm(d, "absent", present=False) for d in self.designs}
        sources = field_sources(self.request, self.snapshot.placement_spec)
        data = replace(_data(self.snapshot, names, frozenset(), new), sources=sources)
        steps = describe_jobs(jobs)
        return Outcome(True, data, steps, self.warnings, _notes(jobs), dry_run=True)

    def claim_jobs(self, tx: Transaction) -> tuple[VmJob, ...]:
        """Claim the carriers of all VMs, or of none, and then plan the steps."""
        if not self.reserves:
            return self._jobs(self.snapshot, [])
        look = partial(observe, self.host, scope_of_request(self.request))
        fresh, _ = tx.claim(look, self._choose, self._make_claims, (self.snapshot, _flatten(self.choices)))
        return self._jobs(fresh, tx.written)

    def _jobs(self, fresh: Snapshot, held: Sequence[TakeClaim]) -> tuple[VmJob, ...]:
        jobs = []
        for design in self.designs:
            plan = vm_creation_plan(fresh, self.requests[design.name], self.facts, design, start=self.start)
            plan, own = with_blob(plan, self.blobs[design.name]), (h for h in held if h.claim.vm_uuid == design.uuid)
            jobs.append(VmJob(design.name, tuple(own), plan))
        return tuple(jobs)


def _flatten(choices: VgpuChoices) -> tuple[AssignedVgpu, ...]:
    return tuple(vgpu for vgpus in choices for vgpu in vgpus)


def _notes(jobs: tuple[VmJob, ...]) -> tuple[str, ...]:
    """Return the notes for the user: those of the first VM, because the others are like it."""
    suffix = f"; the same applies to {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return tuple(f"{note}{suffix}" for note in jobs[0].plan.notes)


def _retry_elsewhere(
    host: Host, context: Context, requests: Mapping[str, VmRequest], pool: WorkerPool, *, start: bool
) -> None:
    """Retry, one by one, the VMs that a driver refused for lack of room: create_vm excludes its GPU."""
    for name, error in list(pool.failed.items()):
        if (
            pool.interruption is not None
            or error.left
            or not isinstance(error, NoCapacity)
            or "errno" not in error.facts
        ):
            continue
        try:
            create_vm(host, replace(context, progress=pool.job_progress()), requests[name], start=start)
        except Interrupted as signal:
            pool.interruption, pool.failed[name] = signal, signal
        except VgpuctlError as retry_error:
            pool.failed[name] = retry_error
        else:
            del pool.failed[name]
            pool.created.append(name)


def _report_vms(
    host: Host, names: tuple[str, ...], pool: WorkerPool, batch: _Batch
) -> tuple[ManyVmsResult, tuple[str, ...]]:
    """Read the host again; what was created was read back, so a failure to read it now is only a warning."""
    created = frozenset(pool.created)
    try:
        snapshot = observe(host, ReadScope(models=False))
    except VgpuctlError as error:
        rows = tuple(_new_vm(d, VmState.UNKNOWN, present=batch.reserves) for d in batch.designs if d.name in created)
        warning = f"the host could not be checked again: {error}; VMs that already existed are not listed"
        return ManyVmsResult(rows, ()), (warning,)
    return _data(snapshot, names, created), snapshot.warnings


def _new_vm(design: DomainDesign, state: StateWord, *, present: bool) -> NewVmResult:
    vgpus = tuple(planned_vgpu(v, design.name, present=present) for v in design.record.vgpus)
    return NewVmResult(design.name, design.uuid, state, changed=True, result="created", vgpus=vgpus)


def _data(
    snapshot: Snapshot,
    names: tuple[str, ...],
    created: frozenset[str],
    new: Mapping[str, NewVmResult] = EMPTY_MAPPING,
) -> ManyVmsResult:
    """Return the VMs that exist, in the order of `names`, and those that would be created."""
    existing = {
        vm.name: extend(
            ManyVmResult,
            vm_result(snapshot, vm),
            changed=vm.name in created,
            result="created" if vm.name in created else "unchanged",
        )
        for vm in snapshot.vms
        if vm.name in names
    }
    rows: dict[str, ManyVmResult | NewVmResult] = {**new, **existing}
    return ManyVmsResult(tuple(rows[name] for name in names if name in rows), ())


def _combined_error(pool: WorkerPool, data: ManyVmsResult, names: tuple[str, ...]) -> VgpuctlError:
    """Return the one error for all that failed, with the reason of each."""
    failed = {name: pool.failed[name] for name in names if name in pool.failed}
    present_count = len(data.vms)
    facts: dict[str, object] = {
        "vms": data.vms,
        "failed": tuple(FailedVmResult(n, e.code, e.message, e.hint) for n, e in failed.items()),
        "details": [f"{n}: {e.message}" for n, e in failed.items()],
    }
    left = [f"{n}: {line}" for n, e in failed.items() for line in e.left]
    error: VgpuctlError
    if pool.interruption is not None:
        number = pool.interruption.signal_number
        hint = f"vgpuctl reconcile-host, then {RERUN_HINT}" if left else RERUN_HINT
        text = f"{pool.interruption.message}; {present_count} of {len(names)} VMs exist"
        error = Interrupted(text, signal_number=number, hint=hint, **facts)
    elif left:
        text = f"{len(failed)} of {len(names)} VMs could not be created, and the undo is incomplete"
        error = PartlyApplied(text, hint=f"vgpuctl reconcile-host, then {RERUN_HINT}", **facts)
    else:
        error = SomeVmsFailed(f"{len(failed)} of {len(names)} VMs could not be created", hint=RERUN_HINT, **facts)
    error.left = left
    error.undone = [f"{n}: {line}" for n, e in failed.items() for line in e.undone]
    error.changed = bool(pool.created)
    return error


VgpuChoices = tuple[tuple[AssignedVgpu, ...], ...]


def choose_batch_vgpus(
    snapshot: Snapshot, request: VmRequest, vms: Sequence[tuple[str, str]], *, reserve_slots: bool = True
) -> VgpuChoices:
    """Return the vGPUs of each of these VMs (name, uuid), in order.

    `reserve_slots` False: they stay off and reserve nothing. Their records name free slots first. After that, they fill
    the host repeatedly as if nothing were on it.

    Raises:
        NoCapacity: they do not all fit; `fits` says how many do now.
        VgpuctlError: as `choose_vgpus` for the first one.
    """
    chosen: list[tuple[AssignedVgpu, ...]] = []
    first_snapshot = snapshot
    for name, uuid in vms:
        try:
            vgpus = choose_vgpus(snapshot, replace(request, name=name), uuid)
        except (NoCapacity, InUse, HostCannot) as error:
            if not reserve_slots:
                snapshot = hypothetical_empty(snapshot)
                vgpus = choose_vgpus(snapshot, request, uuid)
            elif isinstance(error, HostCannot) or (isinstance(error, InUse) and not chosen):
                raise
            else:
                raise _no_room_error(error, request, len(chosen), len(vms)) from error
        chosen.append(vgpus)
        snapshot = replace(snapshot, vgpus=(*snapshot.vgpus, *_taken_vgpus(request, name, uuid, vgpus)))
    if reserve_slots:
        refuse_unapplied_settings(first_snapshot, (v for vgpus in chosen for v in vgpus))
    return tuple(chosen)


def _taken_vgpus(request: VmRequest, name: str, uuid: str, vgpus: Sequence[AssignedVgpu]) -> tuple[Vgpu, ...]:
    return tuple(as_taken_vgpu(v, name, uuid, request.spread_group) for v in vgpus)


def _no_room_error(error: NoCapacity | InUse, request: VmRequest, fits: int, requested: int) -> NoCapacity:
    """Say how many fit; if none fit, also what blocks the next one."""
    what = ", ".join(p if n == 1 else f"{p}:{n}" for p, n in request.profiles) or f"mode {request.mode}"
    facts = {name: error.facts[name] for name in ("gpus", "details") if name in error.facts and not fits}
    left_out = error.facts.get("left_out")
    lines = [f"no room for {count_text(requested, 'VM')} with {what}: {fits} fit now; none was created"]
    lines += [str(line) for line in left_out] if isinstance(left_out, list) else []
    return NoCapacity(
        "; ".join(lines),
        hint="; ".join(filter(None, (f"request {fits} new ones, or make room first" if fits else None, error.hint))),
        fits=fits,
        wanted=requested,
        **facts,
    )
