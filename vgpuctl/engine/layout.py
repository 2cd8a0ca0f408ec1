# SPDX-License-Identifier: Apache-2.0
"""Set a GPU up for a mode: look, plan, claim all of it, carry out, look again; and so again after each boot.

The GPU is claimed as a whole meanwhile, so nothing is placed on it. Who starts a VM on it claims first and looks then,
and so does this: one of the two sees the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl import layout
from vgpuctl.engine.claim import claim_carriers
from vgpuctl.engine.cordon import WANT, one_gpu
from vgpuctl.engine.devices import UNASKED
from vgpuctl.engine.drained import left_off, note
from vgpuctl.engine.guards import refuse_being_set_up, refuse_stuck, require_system, require_writable
from vgpuctl.engine.observe import observe, observe_devices
from vgpuctl.engine.observe.host_file import read_host_spec
from vgpuctl.engine.power import start_vm
from vgpuctl.engine.run import carry_out
from vgpuctl.errors import Busy, Interrupted, PartlyApplied, VgpuctlError
from vgpuctl.model.gpu import Backend, Gpu, Mode
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan, Step
from vgpuctl.model.vm import SETTING_UP, Claim, PromisedVgpu, Vm
from vgpuctl.plan.layout import refuse_misfits, refuse_running, users_to_drain, wanted_vfs
from vgpuctl.plan.report import gpu_value
from vgpuctl.steps.claims import HoldClaim, ReleaseClaim
from vgpuctl.steps.domain import StopDomain
from vgpuctl.steps.host_file import SetGpuKeys
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vgpuctl.model.world import World
    from vgpuctl.spec.host import GpuSpec


class Job(Value):
    """What a GPU is to be. `record`: write it to host.yaml when it is done; `drain`: running VMs may be stopped."""

    gpu: str
    mode: str
    vfs: int | None = None
    drain: bool = False
    record: bool = True
    wait_seconds: float = 60.0


class Work(Value):
    """A job, planned: the running VMs to stop, what changes the devices, and what is written down after it.

    `starts`: the VMs to start then, those that an earlier set-mode left off among them.
    """

    gpu: Gpu
    stops: tuple[Vm, ...]
    devices: tuple[Step, ...]
    after: tuple[Step, ...]
    starts: tuple[Vm, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """What is done, a line each."""
        stops = [StopDomain(vm.name, vm.uuid, force=False, deadline_seconds=0).describe() for vm in self.stops]
        starts = [f"start VM {vm.name} again" for vm in self.starts]
        return (*stops, *(s.describe() for s in (*self.devices, *self.after)), *starts)


class Restored(Value):
    """What became of one GPU of host.yaml: `steps` were carried out; `error` says why it is not as it should be."""

    address: str
    mode: str
    steps: tuple[str, ...] = ()
    error: VgpuctlError | None = None


def set_mode(world: World, job: Job, *, dry_run: bool, progress: Progress) -> Outcome:
    """Set a GPU up for a mode and write that to host.yaml.

    Raises:
        Busy: another process sets it up.
        InUse: a VM or a process uses it, or has a promise that this would break.
        HostCannot, InvalidInput: the GPU has no such mode, or not this number of VFs.
        VgpuctlError: a step failed; what was done is undone.
    """
    if not dry_run:
        require_writable(world)
    snapshot = _look(world)
    refuse_being_set_up(snapshot, [one_gpu(snapshot, job.gpu).address])
    work = _plan(world, snapshot, job)
    if dry_run or not work.lines:
        value = gpu_value(snapshot, work.gpu)
        return Outcome(bool(work.lines), value, work.lines, snapshot.warnings, dry_run=dry_run)
    _apply(world, job, work, progress, lambda: _look(world))
    now = observe(world, WANT)
    return Outcome(True, gpu_value(now, one_gpu(now, work.gpu.address)), work.lines, now.warnings)


def _look(world: World) -> Snapshot:
    snapshot = observe(world, WANT)
    require_system(snapshot)
    return snapshot


def restore_layout(
    world: World,
    gpus: Mapping[str, GpuSpec],
    *,
    dry_run: bool,
    wait_seconds: float,
    progress: Progress,
    vms: tuple[Vm, ...] = (),
) -> tuple[Restored, ...]:
    """Bring every GPU of host.yaml to its mode, as after a boot; one that is as it should be is left alone.

    libvirt is not asked: `vms` are all VMs of this host, read from its files. What they were promised stands against
    a change as it does in `set_mode`; whether they run is not known, and a VF that somebody holds is not taken away.
    Nothing is waited for but the VFs themselves, no VM is stopped, and host.yaml is not written. A GPU that cannot be
    set up does not stop the others: its `error` says why. Sorted by address.

    Raises:
        Interrupted: a signal came.
    """

    def look() -> Snapshot:
        return observe_devices(world, WANT, vms=vms, status=UNASKED)

    done = []
    for address, said in sorted(gpus.items()):
        if said.mode is None or said.mode == Mode.UNMANAGED:
            continue
        job = Job(address, said.mode, said.vfs, record=False, wait_seconds=wait_seconds)
        try:
            work = _plan(world, look(), job)
            if work.lines and not dry_run:
                _apply(world, job, work, progress, look)
            done.append(Restored(address, said.mode, work.lines))
        except Interrupted:
            raise
        except VgpuctlError as error:
            done.append(Restored(address, said.mode, error=error))
    return tuple(done)


def _plan(world: World, snapshot: Snapshot, job: Job) -> Work:
    gpu = one_gpu(snapshot, job.gpu)
    refuse_stuck(snapshot, [gpu.address])
    refuse_misfits(snapshot, gpu, job.mode)
    number = wanted_vfs(gpu, job.mode, job.vfs)
    running = users_to_drain(snapshot, gpu, number)
    if not job.drain:
        refuse_running(gpu, running)
    devices = layout.steps(gpu, number, autoprobe=_autoprobe(world, gpu))
    off = tuple(vm for at, vm in left_off(world, snapshot) if at == gpu.address)
    return Work(gpu, running, devices, _record(world, gpu, job, number) if job.record else (), (*running, *off))


def _autoprobe(world: World, gpu: Gpu) -> bool:
    try:
        return world.sysfs.read(f"{gpu.path}/sriov_drivers_autoprobe").strip() != "0"
    except OSError:
        return True


def _record(world: World, gpu: Gpu, job: Job, number: int) -> tuple[Step, ...]:
    """Return the step that writes the mode down; plain VFs with their number, so that a boot makes as many."""
    spec = read_host_spec(world)
    known: GpuSpec | None = spec.gpus.get(gpu.address) if spec is not None else None
    before = {"mode": known.mode if known else None, "vfs": known.vfs if known else None}
    wanted = {"mode": job.mode, "vfs": number if job.mode == "sriov" else None}
    return () if before == wanted else (SetGpuKeys(gpu.address, wanted, before),)


def _apply(world: World, job: Job, work: Work, progress: Progress, look: Callable[[], Snapshot]) -> None:
    """Claim the GPU, look again, stop VMs, change it, give it free, and start the VMs again whatever came of it."""
    if not work.devices:
        carry_out(world, Plan(steps=work.after), progress)
        _start_again(world, job, work.starts, progress, None)
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
    held = _hold(world, job, claim, look)
    try:
        now = _look_again(world, job, claim, look)
    except BaseException:
        for step in held:
            step.undo(world)
        raise
    stops = tuple(StopDomain(vm.name, vm.uuid, force=False, deadline_seconds=job.wait_seconds) for vm in now.stops)
    release = ReleaseClaim(claim.carrier, claim.vm_uuid)
    try:
        note(world, claim.gpu, claim.process, now.stops)
        carry_out(world, Plan(steps=(*stops, *now.devices, *now.after, release)), progress, held)
    except BaseException as error:
        failure = error if isinstance(error, VgpuctlError) else _interrupted()
        _start_again(world, job, now.starts, progress, failure)
        if isinstance(error, KeyboardInterrupt):
            raise failure from error
        raise
    _start_again(world, job, now.starts, progress, None)


def _hold(world: World, job: Job, claim: Claim, look: Callable[[], Snapshot]) -> tuple[HoldClaim, ...]:
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
        gpu = one_gpu(snapshot, claim.gpu)
        refuse_being_set_up(snapshot, [gpu.address])
        refuse_misfits(snapshot, gpu, job.mode)
        running = users_to_drain(snapshot, gpu, wanted_vfs(gpu, job.mode, job.vfs))
        if not job.drain:
            refuse_running(gpu, running)
        return (whole,)

    _, _, held = claim_carriers(world, look, choose, lambda _: (claim,), job.wait_seconds)
    return held


def _look_again(world: World, job: Job, claim: Claim, look: Callable[[], Snapshot]) -> Work:
    """Plan anew with the GPU claimed; refused while another process works on something there."""
    snapshot = look()
    for other in snapshot.claims:
        mine = other.vm_uuid == claim.vm_uuid or other.process == claim.process
        if other.gpu == claim.gpu and not mine and other.carrier in snapshot.live_claims:
            raise Busy(
                f"process {other.process.pid} works on VM {other.vm}: {other.command}",
                hint="wait for it, then run the command again",
                pid=other.process.pid,
                vm=other.vm,
            )
    return _plan(world, _without(snapshot, claim), job)


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


def _start_again(world: World, job: Job, vms: tuple[Vm, ...], progress: Progress, failure: VgpuctlError | None) -> None:
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
        error = start_one(world, waiting[0], asked, job.wait_seconds, Calm(progress))
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
        came.undone, came.left = [], [f"GPU {job.gpu}: it is set up", *off]
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
