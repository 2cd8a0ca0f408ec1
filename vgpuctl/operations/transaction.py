# SPDX-License-Identifier: Apache-2.0
"""A transaction: look, choose, claim, look again, plan, carry out; undo and release what was not completed.

A carrier is what carries a vGPU: an mdev, a VF or a whole function. A slot is a free carrier with its placement.

The work under the host lock takes milliseconds: read the devices again, choose, write the claims. Nothing else happens
there: no libvirt call, no NVML call, no write to a device. If a GPU filled up meanwhile, the host is read again: "no
capacity" is only reported when it is true. When a driver refuses in spite of room, all is undone and tried without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from vgpuctl.errors import Busy, InUse, NoCapacity, NotFound, VgpuctlError
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, Vm, VmRecord
from vgpuctl.observe import ReadScope, observe, observe_devices, scope_of_vm
from vgpuctl.observe.claims import is_claim_in_use, refuse_claimed_name, refuse_concurrent_command
from vgpuctl.operations.claim import (
    LIBVIRT_NOT_QUERIED,
    claims_of_record,
    is_unchanged,
    note_vm_in_progress,
    recheck_scope,
    take_over,
    with_type_id,
)
from vgpuctl.operations.execute import as_vgpuctl_error, execute_plan
from vgpuctl.operations.guards import changed_meanwhile, deleted_meanwhile, refuse_change
from vgpuctl.operations.limits import refuse_over_limits
from vgpuctl.operations.plans.choose import refuse_unapplied_settings
from vgpuctl.operations.plans.reserve import with_slot
from vgpuctl.operations.steps.claims import TakeClaim
from vgpuctl.ports.step import Plan
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Context
    from vgpuctl.ports.host import Host

MAX_ATTEMPTS = 8


class Owner(Value):
    """For whom carriers are claimed: a VM, or a vGPU of host.yaml.

    `record`: its vGPUs are replaced by those chosen. `vm`: a VM that exists; it must not change meanwhile, and `held`,
    the vGPUs that it has now, are taken over, `leaving` if some of them go. `keeps`: those that it has afterwards
    besides the chosen ones. `is_new_name`: nobody may have a claim for this owner. `is_new`: nobody else can know this
    owner. `reserves` False: it gets no claims.
    """

    name: str
    record: VmRecord
    vm: Vm | None = None
    held: tuple[AssignedVgpu, ...] = ()
    keeps: tuple[AssignedVgpu, ...] = ()
    leaving: bool = False
    is_new: bool = False
    is_new_name: bool = False
    reserves: bool = True


class Making(Protocol):
    """What is to be made for one owner."""

    @property
    def seen(self) -> Snapshot:
        """A snapshot of `scope`."""

    @property
    def scope(self) -> ReadScope:
        """What to read of the host in order to choose."""

    @property
    def owner(self) -> Owner:
        """Who gets it."""

    def choose(self, seen: Snapshot) -> tuple[AssignedVgpu, ...]:
        """Return what is made."""

    def plan(self, seen: Snapshot, vgpus: tuple[AssignedVgpu, ...]) -> Plan:
        """Return the steps after the claims on what was chosen.

        `seen` was read while the claims were written; for a VM that exists, after that.
        """


AnyMaking = TypeVar("AnyMaking", bound=Making)


class Made(Value, Generic[AnyMaking]):
    """What `make` did, or would do in a dry run: from what, the choice, the plan, every step as text, its notes."""

    making: AnyMaking
    vgpus: tuple[AssignedVgpu, ...]
    plan: Plan
    steps: tuple[str, ...]
    warnings: tuple[str, ...] = ()


class Transaction:
    """Claims carriers and carries plans out. What is claimed and not carried out when the block ends is released.

    `vms`: the VMs whose records are known where libvirt must not be asked, as in its hook. `written`: the claims
    written so far, which the end of the block releases.
    """

    def __init__(self, host: Host, context: Context, vms: tuple[Vm, ...] | None = None) -> None:
        self._host = host
        self._context = context
        self._vms = vms
        self._refusing_gpus: frozenset[str] = frozenset()
        self._chosen_gpus: frozenset[str] = frozenset()
        self.written: list[TakeClaim] = []
        self._noted: list[str] = []
        self._compensations: list[Callable[[VgpuctlError], None]] = []

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._undo(error)
        finally:
            for uuid in self._noted:
                self._host.claims.remove_vm_in_progress(uuid)

    def on_failure(self, compensate: Callable[[VgpuctlError], None]) -> None:
        """Have `compensate` called with the error if the block fails, before the notes go; it may add to the error."""
        self._compensations.append(compensate)

    def _undo(self, error: BaseException) -> None:
        failure = as_vgpuctl_error(error)
        try:
            self.release()
        finally:
            for compensate in reversed(self._compensations):
                compensate(failure)
        if self._compensations and failure is not error:
            raise failure from error

    def look(self, scope: ReadScope) -> Snapshot:
        """Return the host as it is now, without room on the GPUs whose driver refused."""
        if self._vms is None:
            snapshot = observe(self._host, scope)
        else:
            snapshot = observe_devices(self._host, scope, vms=self._vms, status=LIBVIRT_NOT_QUERIED)
        return replace(snapshot, refusing_gpus=self._refusing_gpus)

    def make(self, prepare: Callable[[Transaction], AnyMaking]) -> Made[AnyMaking]:
        """Make what `prepare` finds on the host; if a GPU's driver refuses, undo it and try again without that GPU.

        Raises:
            NoCapacity: no room; or the last driver's refusal, when no GPU is left.
            VgpuctlError: why not; everything made has been undone.
        """
        refusal: NoCapacity | None = None
        while True:
            try:
                making = prepare(self)
            except VgpuctlError:
                if refusal is None:
                    raise
                raise refusal from None
            try:
                return self._make(making)
            except NoCapacity as error:
                gpu = error.facts.get("gpu")  # with an errno it is the driver's refusal, else our own count
                if gpu not in self._chosen_gpus or "errno" not in error.facts or gpu in self._refusing_gpus:
                    raise refusal or error from None
                refusal, self._refusing_gpus = error, self._refusing_gpus | {gpu}
            except NotFound as error:
                raise refusal or error from None  # none of the remaining GPUs offers the profile

    def _make(self, making: AnyMaking) -> Made[AnyMaking]:
        seen, owner = making.seen, making.owner
        if owner.vm is not None:
            self._context.subjects.add_vm(owner.vm.name, owner.vm.uuid)
            refuse_change(self._context, owner.vm)

        def choose(current: Snapshot) -> tuple[AssignedVgpu, ...]:
            chosen = making.choose(current)
            record = replace(owner.record, vgpus=(*owner.keeps, *chosen))
            refuse_over_limits(self._context, current, records=(record,))
            if owner.reserves and self._vms is None:  # libvirt's hook has no NVML, and no time
                refuse_unapplied_settings(current, chosen)
            return chosen

        vgpus = choose(seen)
        if self._context.dry_run:
            plan = making.plan(seen, vgpus)
            steps = (*(TakeClaim(claim) for claim in self._claims_of(owner, vgpus)), *plan.steps)
            return Made(making, vgpus, plan, tuple(step.describe() for step in steps))
        try:
            if owner.reserves:
                look, make_claims = partial(self.look, making.scope), partial(self._claims_of, owner)
                seen, vgpus = self.claim(look, choose, make_claims, (seen, vgpus), is_addition=not owner.leaving)
            self._chosen_gpus = frozenset(v.gpu for v in vgpus)
            if owner.vm is not None:
                held = replace(owner.record, vgpus=owner.held)
                seen = self.take_over_vm(owner.vm, held, making.scope, making.seen, leaving=owner.leaving)
            plan = making.plan(seen, vgpus)
        except BaseException:
            self.release()
            raise
        lines = self.lines(plan)
        return Made(making, vgpus, plan, lines, self.carry_out(plan))

    def _claims_of(self, owner: Owner, vgpus: tuple[AssignedVgpu, ...]) -> tuple[Claim, ...]:
        """Return the claims on what an owner gets; refused while another operation works on the owner."""
        if owner.is_new_name:
            refuse_claimed_name(self._host, owner.record.vm_uuid)
        elif not owner.is_new:
            refuse_concurrent_command(self._host, owner.name, owner.record.vm_uuid)
        return claims_of_record(self._host, owner.name, replace(owner.record, vgpus=vgpus)) if owner.reserves else ()

    def claim(
        self,
        look: Callable[[], Snapshot],
        choose: Callable[[Snapshot], tuple[AssignedVgpu, ...]],
        make_claims: Callable[[tuple[AssignedVgpu, ...]], tuple[Claim, ...]],
        first: tuple[Snapshot, tuple[AssignedVgpu, ...]] | None = None,
        *,
        is_addition: bool = True,
    ) -> tuple[Snapshot, tuple[AssignedVgpu, ...]]:
        """Claim what is chosen: the choice from a look, if nothing on its GPUs changed since then.

        `first`: a look made before, and the choice from it. `is_addition`: the owners keep what they have, so all of it
        counts for the limits of the caller. Returns the snapshot read under the lock, and the choice.

        Raises:
            NotAllowed: it is more than the caller's limits.
            NoCapacity, InUse: no room, or a function that is not free; a fresh snapshot confirmed it.
            Locked: the lock could not be acquired in time.
        """
        in_use: InUse | None = None
        for _ in range(MAX_ATTEMPTS):
            seen, planned = first if first is not None else _look_and_choose(look, choose)
            first = None
            try:
                return self._claim_under_lock(seen, planned, choose, make_claims, is_addition=is_addition)
            except NoCapacity:
                pass
            except InUse as error:
                in_use = error
        choose(look())
        raise in_use or Busy("other commands took every place before this one could", hint="run the command again")

    def _claim_under_lock(
        self,
        before: Snapshot,
        planned: tuple[AssignedVgpu, ...],
        choose: Callable[[Snapshot], tuple[AssignedVgpu, ...]],
        make_claims: Callable[[tuple[AssignedVgpu, ...]], tuple[Claim, ...]],
        *,
        is_addition: bool,
    ) -> tuple[Snapshot, tuple[AssignedVgpu, ...]]:
        if not planned:
            return before, planned
        scope, earlier = recheck_scope(before, planned), len(self.written)
        with self._host.claims.lock(self._context.wait_seconds):
            fresh = observe_devices(self._host, scope, vms=before.vms, status=before.hypervisor)
            fresh = replace(fresh, refusing_gpus=self._refusing_gpus, nvswitches=before.nvswitches)
            chosen = planned if is_unchanged(before, fresh, {v.gpu for v in planned}) else choose(fresh)
            claims = make_claims(chosen)
            if is_addition:
                refuse_over_limits(self._context, fresh, claims=claims)
            try:
                for claim in claims:
                    self.written.append(TakeClaim(with_type_id(claim, fresh)))
                    self._context.subjects.add_claims((claim,))
                    self.written[-1].perform(self._host)
            except BaseException:
                while len(self.written) > earlier:
                    self.written.pop().undo(self._host)
                raise
        return fresh, chosen

    def hand_over(self) -> tuple[TakeClaim, ...]:
        """Return the claims written so far; from now on whoever gets them releases them."""
        claims = tuple(self.written)
        self.written.clear()
        return claims

    def take_over(
        self,
        claims: tuple[Claim, ...],
        *,
        include_missing: bool = True,
        snapshot: Snapshot | None = None,
        leaving: bool = False,
    ) -> None:
        """Make this operation the holder of an owner's claims; refused while another live one works on the owner.

        A missing claim, as after a reboot, is written again; with `include_missing` False it is left out. `snapshot`:
        its types give the type id of each device; without it the claims keep the type ids that they have. `leaving`:
        vGPUs of the VM are about to be removed. From now on libvirt's hook refuses to start the VM. After this call
        the caller must check whether the VM was started before.

        Raises:
            Busy: another vgpuctl works on this VM.
        """
        requested = tuple(replace(claim, leaving=leaving) for claim in claims)
        with self._host.claims.lock(self._context.wait_seconds):
            taken, missing = take_over(self._host, requested, include_missing=include_missing, snapshot=snapshot)
        self._context.subjects.add_claims(taken)
        self.written += missing

    def take_over_vm(
        self, vm: Vm, held: VmRecord, scope: ReadScope, seen: Snapshot | None = None, *, leaving: bool = False
    ) -> Snapshot:
        """Take over the claims of a VM's vGPUs, and look whether anybody changed the VM before that.

        `held`: its record with the vGPUs that it has now. `seen`, `leaving`: as `snapshot` and `leaving` of
        `take_over`. Returns the snapshot in which the VM is unchanged.

        Raises:
            NotFound: it was deleted.
            NotYours, Stale: as `refuse_change`, before and after.
            Busy: another vgpuctl works on the VM, or has changed it.
        """
        refuse_change(self._context, vm)
        self.take_over(claims_of_record(self._host, vm.name, held), snapshot=seen, leaving=leaving)
        if self._vms is not None:  # what libvirt must not be asked is not compared
            return self.look(scope)
        refuse_concurrent_command(self._host, vm.name, vm.uuid)
        current = self.look(scope)
        current_vm = current.vm(vm.uuid)
        if current_vm is None:
            raise deleted_meanwhile(vm)
        refuse_change(self._context, current_vm)
        if _fingerprint(current_vm) != _fingerprint(vm):
            raise changed_meanwhile(vm)
        return current

    def hold_vm(self, seen: Snapshot, vm: Vm, record: VmRecord) -> None:
        """Keep other commands and reconcile off a VM that gets no vGPU. `seen`: has it. Raises as `take_over_vm`."""
        held = replace(record, vgpus=with_slot(seen, vm, record))
        self.take_over_vm(vm, held, scope_of_vm(vm.uuid))
        if not held.vgpus:
            self.note(vm.name, vm.uuid)

    def note(self, name: str, uuid: str) -> None:
        """Note, until the block ends, that this operation works on a VM without a claim: reconcile leaves it alone.

        Raises:
            FileFailed: the note cannot be written; nothing was done.
        """
        if self._context.dry_run:
            return
        self._context.subjects.add_vm(name, uuid)
        self._noted.append(uuid)
        note_vm_in_progress(self._host, uuid)

    def lines(self, plan: Plan) -> tuple[str, ...]:
        """Return the claims written so far and the steps of a plan, as text."""
        return tuple(step.describe() for step in (*self.written, *plan.steps))

    def carry_out(self, plan: Plan) -> tuple[str, ...]:
        """Perform the steps; when one fails, those before it and the claims are undone, unless the plan has no undo.

        Returns notes for the user, as `execute_plan` does.

        Raises:
            VgpuctlError: as `execute_plan`.
        """
        self._context.subjects.add_claims(step.claim for step in plan.steps if isinstance(step, TakeClaim))
        claims = self.hand_over()  # from here on the plan's undo decides which of them go
        return execute_plan(self._host, plan, self._context.progress, claims if plan.undo_on_failure else ())

    def release(self) -> None:
        """Release the claims that were written, except those in use: another program may have started the VM.

        Where libvirt must not be asked, all are released: the VM's start waits for this, or has not begun.
        """
        while self.written:
            step = self.written.pop()
            if self._vms is not None or not is_claim_in_use(self._host, step.claim):
                step.undo(self._host)


def _look_and_choose(
    look: Callable[[], Snapshot], choose: Callable[[Snapshot], tuple[AssignedVgpu, ...]]
) -> tuple[Snapshot, tuple[AssignedVgpu, ...]]:
    seen = look()
    return seen, choose(seen)


def _fingerprint(vm: Vm) -> tuple[object, ...]:
    """Return what must not change between the plan and the claims."""
    return vm.name, vm.record, vm.copied_record, vm.has_unreadable_record, vm.state, vm.hostdevs
