# SPDX-License-Identifier: Apache-2.0
"""The frame of every change of a GPU itself: claim all of it, look again, stop VMs, carry out, start them again.

The GPU is claimed as a whole meanwhile, so nothing is placed on it. Who starts a VM on it claims first and looks then,
and so does this: one of the two sees the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.engine.claim import claim_carriers, reclaim
from vgpuctl.engine.drained import left_off, note
from vgpuctl.engine.guards import works_on
from vgpuctl.engine.power import start_vm
from vgpuctl.engine.run import carry_out
from vgpuctl.errors import Busy, Interrupted, PartlyApplied, VgpuctlError
from vgpuctl.model.gpu import Backend, Gpu
from vgpuctl.model.outcome import Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan, Step
from vgpuctl.model.vm import SETTING_UP, Claim, PromisedVgpu, Vm
from vgpuctl.steps.claims import HoldClaim, ReleaseClaim
from vgpuctl.steps.domain import StopDomain
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World


class Work(Value):
    """A job, planned: the running VMs to stop, what changes the devices, and what is written down after it.

    `starts`: the VMs to start then, those that an earlier command left off among them. `keeps`: claims that are made
    this process's own before anything is stopped, so that libvirt's hook does not give them back meanwhile.
    """

    gpu: Gpu
    stops: tuple[Vm, ...]
    devices: tuple[Step, ...]
    after: tuple[Step, ...]
    starts: tuple[Vm, ...] = ()
    keeps: tuple[Claim, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """What is done, a line each."""
        stops = [StopDomain(vm.name, vm.uuid, force=False, deadline_seconds=0).describe() for vm in self.stops]
        starts = [f"start VM {vm.name} again" for vm in self.starts]
        return (*stops, *(s.describe() for s in (*self.devices, *self.after)), *starts)


def to_start(world: World, snapshot: Snapshot, gpu: Gpu, stops: tuple[Vm, ...]) -> tuple[Vm, ...]:
    """Return the VMs to start when a GPU is set up: those stopped for it, and those that were left off before."""
    return (*stops, *(vm for address, vm in left_off(world, snapshot) if address == gpu.address))


class Task(Value):
    """What is done to a GPU. `look` looks at the host; `plan` makes the work from a look, or raises why it cannot be.

    `check` raises what stands against it and changes nothing: it is asked under the host lock too.
    """

    gpu: str
    wait_seconds: float
    look: Callable[[], Snapshot]
    check: Callable[[Snapshot], None]
    plan: Callable[[Snapshot], Work]


def apply(world: World, task: Task, work: Work, progress: Progress) -> None:
    """Claim the GPU, look again, stop VMs, change it, give it free, and start the VMs again whatever came of it.

    Raises:
        InUse, Busy: somebody uses it or works on it.
        PartlyApplied: it was changed, and some of its VMs are off now.
        VgpuctlError: a step failed; what was done is undone.
    """
    if not work.devices:
        carry_out(world, Plan(steps=work.after), progress)
        _start_again(world, task, work.starts, progress, None)
        return
    claim = Claim(
        carrier=work.gpu.address,
        backend=Backend.PASSTHROUGH,
        gpu=work.gpu.address,
        function=work.gpu.address,
        vm=SETTING_UP,
        vm_uuid=world.new_uuid(),
        profile=None,
        framebuffer_mib=None,
        process=world.processes.this(),
        command=world.processes.command(),
    )
    held = _hold(world, task, claim)
    try:
        now = _look_again(task, claim)
        reclaim(world, now.keeps, task.wait_seconds)
        note(world, claim.gpu, claim.process, now.stops, task.wait_seconds)
    except BaseException:
        for step in held:
            step.undo(world)
        raise
    stops = tuple(StopDomain(vm.name, vm.uuid, force=False, deadline_seconds=task.wait_seconds) for vm in now.stops)
    release = ReleaseClaim(claim.carrier, claim.vm_uuid)
    try:
        carry_out(world, Plan(steps=(*stops, *now.devices, *now.after, release)), progress, held)
    except BaseException as error:
        failure = error if isinstance(error, VgpuctlError) else _interrupted()
        _start_again(world, task, now.starts, progress, failure)
        if isinstance(error, KeyboardInterrupt):
            raise failure from error
        raise
    _start_again(world, task, now.starts, progress, None)


def _hold(world: World, task: Task, claim: Claim) -> tuple[HoldClaim, ...]:
    """Claim the GPU as a whole, seeing under the lock that nothing came on it that stands against it."""
    whole = PromisedVgpu(
        index=0,
        backend=Backend.PASSTHROUGH,
        gpu=claim.gpu,
        function=claim.function,
        carrier=claim.carrier,
        profile=None,
    )

    def choose(snapshot: Snapshot) -> tuple[PromisedVgpu, ...]:
        task.check(snapshot)
        return (whole,)

    _, _, held = claim_carriers(world, task.look, choose, lambda _: (claim,), task.wait_seconds)
    return held


def _look_again(task: Task, claim: Claim) -> Work:
    """Plan anew with the GPU claimed; refused while another process works on something there."""
    snapshot = task.look()
    busy = works_on(snapshot, claim.gpu, claim.process)
    if busy is not None:
        raise busy
    return task.plan(_without(snapshot, claim))


def _without(snapshot: Snapshot, claim: Claim) -> Snapshot:
    """Return the look without our own claim on the whole GPU."""
    return replace(snapshot, vgpus=tuple(v for v in snapshot.vgpus if v.vm_uuid != claim.vm_uuid))


def _interrupted() -> Interrupted:
    return Interrupted("interrupted", signal_number=2)


class Calm(Value):
    """Progress of what is done in spite of a signal: its steps are told, and none of them stops at the first one."""

    progress: Progress

    def planned(self, steps: tuple[str, ...]) -> None:
        """Tell the steps."""
        self.progress.planned(steps)

    def started(self, number: int, text: str) -> None:
        """Say nothing: whoever is told here looks for a signal."""

    def finished(self, number: int, text: str) -> None:
        """Tell the step."""
        self.progress.finished(number, text)

    def undoing(self, text: str) -> None:
        """Tell what is taken back."""
        self.progress.undoing(text)


def _start_again(
    world: World, task: Task, vms: tuple[Vm, ...], progress: Progress, failure: VgpuctlError | None
) -> None:
    """Start the VMs that were stopped; with a `failure` before, those that stay off are added to its `left`.

    The first signal does not keep them off, whether it came before or comes now; a second one ends this.

    Raises:
        Interrupted: a signal came meanwhile; the GPU is set up.
        PartlyApplied: the GPU is set up, and some of its VMs are off now.
    """
    came = failure if isinstance(failure, Interrupted) else None
    asked = frozenset(came.undone) if came is not None else frozenset()
    off: list[str] = []
    waiting = list(vms)
    while waiting:
        error = start_one(world, waiting[0], asked, task.wait_seconds, Calm(progress))
        if isinstance(error, Interrupted) and came is None:
            came = error
            continue
        if isinstance(error, Interrupted):
            off += [f"VM {vm.name} is not started again" for vm in waiting]
            break
        vm = waiting.pop(0)
        if error is not None:
            off.append(f"VM {vm.name} is not started again: {error}")
    hint = "vgpuctl reconcile starts them, or vgpuctl start-vm NAME"
    if failure is not None:
        failure.left += off
        failure.hint = "; ".join(filter(None, (failure.hint, hint if off else None))) or None
    elif came is not None:
        came.undone, came.left = [], [f"GPU {task.gpu}: it is set up", *off]
        came.hint = hint if off else None
        raise came
    elif off:
        partly = PartlyApplied("the GPU is set up, but not every VM runs again", hint=hint)
        partly.left += off
        raise partly


def start_one(world: World, vm: Vm, asked: frozenset[str], wait_seconds: float, progress: Progress) -> Exception | None:
    """Start a VM again and return why it could not be; the other VMs are not kept off by it.

    `asked`: what was interrupted. A guest that was asked to shut down does so after the signal too, so that is awaited.
    """
    stop = StopDomain(vm.name, vm.uuid, force=False, deadline_seconds=wait_seconds).describe()
    try:
        if stop in asked:
            progress.undoing(f"{stop}: when it is off it is started again")
            if not world.hypervisor.wait_stopped(vm.uuid, wait_seconds):
                return Busy(f"it was asked to shut down and has not yet, after {wait_seconds:g} s")
        start_vm(world, vm.uuid, dry_run=False, wait_seconds=wait_seconds, progress=progress)
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and every other VM must still be tried
        return error
    return None
