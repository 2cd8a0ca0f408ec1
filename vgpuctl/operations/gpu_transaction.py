# SPDX-License-Identifier: Apache-2.0
"""The frame of changes for which VMs stop: shut them down, make the change, and start them again whatever its outcome.

A change to a GPU itself claims the whole GPU: nothing is placed on it meanwhile, and no other operation takes over the
claims of what is there. An operation that did so before is seen here, because this module claims first and reads the
host afterwards. Until the VMs run again, this operation holds those claims itself: no other vgpuctl works on a VM whose
vGPU it removes and creates again, and libvirt's hook does not release it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

from vgpuctl.errors import Busy, Interrupted, NeedsConfirmation, PartlyApplied, VgpuctlError
from vgpuctl.model.gpu import Backend, Gpu
from vgpuctl.model.numbers import count_text
from vgpuctl.model.outcome import Confirm, Context, NoProgress, Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import GPU_SETUP_CLAIM, AssignedVgpu, Claim, Vm
from vgpuctl.observe.claims import read_claims, reread_claims
from vgpuctl.operations.drained_vms import find_abandoned_vms, note_drained_vms
from vgpuctl.operations.execute import execute_plan
from vgpuctl.operations.guards import busy_gpu_error, refuse_unresponsive_vm
from vgpuctl.operations.power import start_vm, stop_for_restart
from vgpuctl.operations.steps.claims import ReleaseClaim
from vgpuctl.operations.steps.domain import STOPPED_STATES, StopDomain
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class TransactionPlan(Value):
    """A planned change of a GPU: the running VMs to stop, the steps that change devices, and what is recorded after it.

    `vms_to_start`: the VMs to start afterwards, including those that an earlier command left off. `other_gpus`: the
    addresses of further GPUs that the steps change, which are claimed with it.
    """

    gpu: Gpu
    vms_to_stop: tuple[Vm, ...]
    gpu_steps: tuple[Step, ...]
    final_steps: tuple[Step, ...]
    vms_to_start: tuple[Vm, ...] = ()
    other_gpus: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """What is done, one line each."""
        stops = [StopDomain(vm.name, vm.uuid, force=False, deadline_seconds=0).describe() for vm in self.vms_to_stop]
        starts = [f"start VM {vm.name} again" for vm in self.vms_to_start]
        return (*stops, *(s.describe() for s in (*self.gpu_steps, *self.final_steps)), *starts)


def find_vms_to_start(host: Host, snapshot: Snapshot, gpu: Gpu, stopped: tuple[Vm, ...]) -> tuple[Vm, ...]:
    """Return the VMs to start after a GPU is set up: those stopped for it, and those an earlier command left off."""
    return (*stopped, *(vm for address, vm in find_abandoned_vms(host, snapshot) if address == gpu.address))


class GpuTransaction(Value):
    """A change to a GPU. `observe_gpus` reads the host; `plan` turns a snapshot into steps, or raises why it cannot.

    `check` raises whatever prevents the change and changes nothing; it also runs under the host lock.
    """

    gpu_address: str
    observe_gpus: Callable[[], Snapshot]
    check: Callable[[Snapshot], None]
    plan: Callable[[Snapshot], TransactionPlan]


class StopConfirmation:
    """Asks before running VMs are shut down: the user named GPUs, and not these VMs. It asks once for each VM."""

    def __init__(self, confirm: Confirm) -> None:
        self._confirm = confirm
        self._confirmed: set[str] | None = None

    def ask(self, *plans: TransactionPlan) -> None:
        """Return when all VMs that these plans stop may be shut down.

        Raises:
            NeedsConfirmation: they may not; `facts` has the VMs.
        """
        stops = {vm.name: plan.gpu.address for plan in plans for vm in plan.vms_to_stop}
        new = {name: gpu for name, gpu in stops.items() if name not in (self._confirmed or ())}
        if self._confirmed is not None and not new:
            return
        gpus = ", ".join(dict.fromkeys(new.values()))
        question = f"Shut down {count_text(len(new), 'running VM')} on {gpus}, and start them again afterwards?"
        try:
            self._confirm(
                question if new else "",
                tuple(f"VM {name} on {gpu} is shut down, and started again" for name, gpu in new.items()),
            )
        except NeedsConfirmation as error:
            error.facts["vms"] = list(new)
            raise
        self._confirmed = set(new) | (self._confirmed or set())


def run_transaction(
    host: Host,
    context: Context,
    transaction: GpuTransaction,
    plan: TransactionPlan,
    stops: StopConfirmation | None = None,
) -> tuple[str, ...]:
    """Claim the GPU, read it again, stop VMs, change it, release it, and restart the VMs whatever the outcome.

    Returns what was done, one line each: another command may have done a part of `plan` since.
    `stops` asks about VMs that were started since it was asked about the plan; None: nobody is asked.

    Raises:
        InUse, Busy: somebody uses the GPU or works on it.
        PartlyApplied: the GPU was changed, and some of its VMs are off now.
        VgpuctlError: a step failed; completed steps were undone.
    """
    if not plan.gpu_steps:
        execute_plan(host, Plan(steps=plan.final_steps), context.progress)
        _restart_vms(host, context, transaction, plan.vms_to_start, None)
        return plan.lines
    claim = _setup_claim(host, plan.gpu.address)
    claims = (claim, *(replace(claim, carrier=gpu, gpu=gpu, function=gpu) for gpu in plan.other_gpus))
    vms_to_start: tuple[Vm, ...] = ()
    former_claims: tuple[Claim, ...] = ()
    try:
        with Transaction(host, context) as tx:
            _claim_gpus(tx, transaction, claims)
            current_plan = _replan(host, transaction, claims)
            if stops is not None:
                stops.ask(current_plan)
            former_claims = _hold_claims(host, tx, claims)
            note_drained_vms(host, context, claim.gpu, current_plan.vms_to_stop)
            vms_to_start = current_plan.vms_to_start
            stop_steps = _stop_steps(current_plan.vms_to_stop, context)
            release = tuple(ReleaseClaim(c.carrier, c.vm_uuid) for c in claims)
            with _paused_readers(host):
                tx.carry_out(Plan(steps=(*stop_steps, *current_plan.gpu_steps, *current_plan.final_steps, *release)))
    except (VgpuctlError, KeyboardInterrupt) as error:
        failure = error if isinstance(error, VgpuctlError) else _interrupted()
        _restart_vms(host, context, transaction, vms_to_start, failure)
        if failure is error:
            raise
        raise failure from error
    else:
        _restart_vms(host, context, transaction, vms_to_start, None)
        return current_plan.lines
    finally:
        _return_claims(host, former_claims)


def _stop_steps(vms: tuple[Vm, ...], context: Context) -> tuple[Step, ...]:
    return tuple(StopDomain(vm.name, vm.uuid, force=False, deadline_seconds=context.wait_seconds) for vm in vms)


def _paused_readers(host: Host) -> AbstractContextManager[None]:
    """Keep readers of the use of GPUs from having a driver open, which then refuses the change."""
    return nullcontext() if host.usage is None else host.usage.pause()


def _setup_claim(host: Host, address: str) -> Claim:
    """Return the claim on a whole GPU that this operation sets up."""
    operation = host.operations.current()
    return Claim(
        carrier=address,
        backend=Backend.PASSTHROUGH,
        gpu=address,
        function=address,
        vm=GPU_SETUP_CLAIM,
        vm_uuid=host.new_uuid(),
        profile=None,
        framebuffer_mib=None,
        process=operation.process,
        command=operation.command,
        operation=operation.id,
    )


def _claim_gpus(tx: Transaction, transaction: GpuTransaction, claims: tuple[Claim, ...]) -> None:
    """Claim the whole GPUs; a check under the lock refuses if something that prevents the change has appeared."""
    whole_gpus = tuple(
        AssignedVgpu(
            index=number,
            backend=Backend.PASSTHROUGH,
            gpu=claim.gpu,
            function=claim.function,
            carrier=claim.carrier,
            profile=None,
        )
        for number, claim in enumerate(claims)
    )

    def choose(snapshot: Snapshot) -> tuple[AssignedVgpu, ...]:
        transaction.check(snapshot)
        return whole_gpus

    tx.claim(transaction.observe_gpus, choose, lambda _: claims)


def _replan(host: Host, transaction: GpuTransaction, claims: tuple[Claim, ...]) -> TransactionPlan:
    """Plan again with the GPUs claimed; refused while another operation works on something there.

    That is asked before the host is read. With the GPUs claimed no operation begins to, so what is read stays so.
    """
    for claim in claims:
        busy = busy_gpu_error(host, claim.gpu)
        if busy is not None:
            raise busy
    return transaction.plan(_without_claims(transaction.observe_gpus(), claims))


def _hold_claims(host: Host, tx: Transaction, claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """Make this operation the holder of every claim on the GPUs; return them as they were."""
    carriers = {claim.carrier for claim in claims}
    gpus = {claim.gpu for claim in claims}
    others = tuple(c for c in read_claims(host) if c.gpu in gpus and c.carrier not in carriers)
    tx.take_over(tuple(_with_holder_of(claims[0], other) for other in others), include_missing=False)
    return others


def _return_claims(host: Host, former_claims: tuple[Claim, ...]) -> None:
    """Give held claims back: this operation may go on for long, with other GPUs. What fails goes back when it ends."""
    former_by_carrier = {c.carrier: c for c in former_claims}
    own_operation = host.operations.current().id
    with suppress(VgpuctlError, OSError):
        for claim in reread_claims(host, former_by_carrier):
            former = former_by_carrier[claim.carrier]
            if claim.operation == own_operation and claim.vm_uuid == former.vm_uuid:
                host.claims.replace(_with_holder_of(former, claim))


def _with_holder_of(holder: Claim, claim: Claim) -> Claim:
    return replace(claim, process=holder.process, command=holder.command, operation=holder.operation)


def _without_claims(snapshot: Snapshot, claims: tuple[Claim, ...]) -> Snapshot:
    """Return the snapshot without our own claims on whole GPUs, which are of one uuid."""
    own = {claim.vm_uuid for claim in claims}
    return replace(
        snapshot,
        vgpus=tuple(v for v in snapshot.vgpus if v.vm_uuid not in own),
        claims=tuple(c for c in snapshot.claims if c.vm_uuid not in own),
    )


def _interrupted() -> Interrupted:
    return Interrupted("interrupted", signal_number=2)


def uninterrupted(context: Context) -> Context:
    """Return the context of work that continues despite a signal: the first one stops none of its steps."""
    return replace(context, progress=_UninterruptedProgress(context.progress))


class _UninterruptedProgress(NoProgress):
    """Reports steps. The methods in which the wrapped progress checks for a signal do nothing."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_plan(self, steps: tuple[str, ...]) -> None:
        """Report the steps."""
        self._progress.on_plan(steps)

    def on_step_finish(self, number: int, text: str) -> None:
        """Report the step."""
        self._progress.on_step_finish(number, text)

    def on_step_undo(self, text: str) -> None:
        """Report what is undone."""
        self._progress.on_step_undo(text)


def _restart_vms(
    host: Host, context: Context, transaction: GpuTransaction, vms: tuple[Vm, ...], failure: VgpuctlError | None
) -> None:
    """Start the VMs that were stopped; after a `failure`, those that stay off are added to its `left`.

    The first signal does not prevent the starts, whether it arrived before or arrives now; a second one ends them.

    Raises:
        Interrupted: a signal arrived meanwhile; the GPU is set up.
        PartlyApplied: the GPU is set up, and some of its VMs are off now.
    """
    interruption = failure if isinstance(failure, Interrupted) else None
    undone_steps = frozenset(interruption.undone) if interruption is not None else frozenset()
    not_started: list[str] = []
    remaining = list(vms)
    while remaining:
        error = try_start_vm(host, context, remaining[0], undone_steps)
        if isinstance(error, Interrupted) and interruption is None:
            interruption = error
            continue
        if isinstance(error, Interrupted):
            not_started += [f"VM {vm.name} is not started again" for vm in remaining]
            break
        vm = remaining.pop(0)
        if error is not None:
            not_started.append(f"VM {vm.name} is not started again: {error}")
    hint = "vgpuctl reconcile-host starts them, as does vgpuctl start-vm NAME"
    if failure is not None:
        failure.left += not_started
        failure.hint = "; ".join(filter(None, (failure.hint, hint if not_started else None))) or None
    elif interruption is not None:
        interruption.undone, interruption.left = [], [f"GPU {transaction.gpu_address}: it is set up", *not_started]
        interruption.hint = hint if not_started else None
        raise interruption
    elif not_started:
        partly = PartlyApplied("the GPU is set up, but not every VM runs again", hint=hint)
        partly.left += not_started
        raise partly


def try_start_vm(host: Host, context: Context, vm: Vm, undone_steps: frozenset[str]) -> Exception | None:
    """Start a VM again and return why that failed, None if it did not; a failure does not affect the other VMs.

    `undone_steps`: the steps that a signal undid. A guest that was asked to shut down does so after the signal too, so
    this waits for it.
    """
    # after the action it may have another generation, and a VM that was shut down runs again whoever has the lease now
    context = replace(uninterrupted(context), if_generation=None, fence=None)
    stop = StopDomain(vm.name, vm.uuid, force=False, deadline_seconds=context.wait_seconds).describe()
    try:
        if stop in undone_steps:
            context.progress.on_step_undo(f"{stop}: once off, it is started again")
            if not host.hypervisor.wait_stopped(vm.uuid, context.wait_seconds):
                return Busy(f"it was asked to shut down and has not yet, after {context.wait_seconds:g} s")
        start_vm(host, context, vm.uuid)
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:  # noqa: BLE001 - any error is reported, and every other VM must still be tried
        return error
    return None


def with_vm_stopped(host: Host, context: Context, vm: Vm, action: Callable[[], object], outcome_word: str) -> None:
    """Run `action` on a stopped VM; a running one is shut down first, within `wait_seconds`.

    `outcome_word`: the VM's state after the action, such as "moved", for messages.

    Raises:
        PartlyApplied: the action is done, but the VM could not be started again.
        VgpuctlError: why the action failed; the VM runs again, or `left` says why not.
    """
    stop_and_run(host, context, vm, action)
    start_again(host, context, vm, outcome_word)


def stop_and_run(host: Host, context: Context, vm: Vm, action: Callable[[], object]) -> None:
    """Run `action` on a stopped VM, which stays off; a running one is noted as to be started again, and shut down.

    Raises:
        VgpuctlError: why it failed; a VM that ran runs again, or `left` says why not.
    """
    was_running = vm.state not in STOPPED_STATES
    refuse_unresponsive_vm(vm)
    with Transaction(host, context) as tx:
        if was_running:
            tx.on_failure(lambda failure: _start_after_failure(host, context, vm, failure))
            note_drained_vms(host, context, None, (vm,))
            stop_for_restart(host, context, vm.uuid, force=False)
        action()


def start_again(host: Host, context: Context, vm: Vm, outcome_word: str) -> None:
    """Start a VM again if it ran when `vm` was read.

    Raises:
        PartlyApplied: it could not be started.
    """
    if vm.state in STOPPED_STATES:
        return
    start_failure = try_start_vm(host, context, vm, frozenset())
    if start_failure is not None:
        partly_applied = PartlyApplied(
            f"{vm.name} is {outcome_word} and stays off: {start_failure}", hint=f"vgpuctl start-vm {vm.name}"
        )
        partly_applied.left.append(f"VM {vm.name} is not started again")
        raise partly_applied


def _start_after_failure(host: Host, context: Context, vm: Vm, failure: VgpuctlError) -> None:
    """Start the VM again after a failure; if that fails too, add it to `left`."""
    undone_steps = frozenset(failure.undone) if isinstance(failure, Interrupted) else frozenset()
    start_failure = try_start_vm(host, context, vm, undone_steps)
    if start_failure is not None:
        failure.left.append(f"VM {vm.name} is not started again: {start_failure}")
        failure.hint = "; ".join(filter(None, (failure.hint, f"vgpuctl start-vm {vm.name}")))
