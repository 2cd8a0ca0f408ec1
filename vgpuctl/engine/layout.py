# SPDX-License-Identifier: Apache-2.0
"""Set a GPU up for a mode, and so again after each boot, with its scheduler. `setting_up` is the frame of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.claim import claims_of
from vgpuctl.engine.cordon import WANT, one_gpu, recorded
from vgpuctl.engine.devices import UNASKED
from vgpuctl.engine.guards import refuse_being_set_up, refuse_stuck, require_system, require_writable, works_on
from vgpuctl.engine.observe import observe, observe_devices
from vgpuctl.engine.observe.modprobe import driver_version
from vgpuctl.engine.partition import types_of, with_instances, with_places
from vgpuctl.engine.run import as_failure
from vgpuctl.engine.scheduler import restoring, scheduler_task
from vgpuctl.engine.setting_up import Task, Work, apply, to_start
from vgpuctl.errors import Interrupted, Refused, VerifyFailed, VgpuctlError
from vgpuctl.model.address import is_pci
from vgpuctl.model.gpu import Gpu, Mode
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.partition import MigSpec
from vgpuctl.model.scheduler import SchedulerSpec
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.model.vm import Vm
from vgpuctl.plan.emptied import EmptiedWork
from vgpuctl.plan.host_diff import as_asked, as_it_is, not_as_set, partition_value, sides
from vgpuctl.plan.layout import refuse_misfits, refuse_running, users_to_drain, wanted_vfs
from vgpuctl.plan.partition import (
    Wish,
    as_wished,
    change_of,
    cold_steps,
    refuse_without_mode,
    unseen_off,
    warm_work,
    wish_for,
)
from vgpuctl.plan.report import gpu_value
from vgpuctl.plan.scheduler import refuse_impossible
from vgpuctl.spec.host import GpuSpec, as_written
from vgpuctl.steps.scheduler import SetInstanceSchedulers, SetScheduler
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vgpuctl.model.world import World


class Job(Value):
    """What a GPU is to be. `mode` None: the one that `mig` and `mixed_size` are for, or none, where its VFs stay off.

    `record`: write it to host.yaml when it is done; `drain`: running VMs may be stopped.

    `scheduler`, `mig`, `mixed_size`: what it has afterwards, None for what host.yaml asks for; the last two are
    recorded when they are given. `after`: further steps, when it is done. `after_boot`: they need not be seen to be
    off, for a boot turns neither on, and the GPU's VFs are waited for by VMs.
    """

    gpu: str
    mode: str | None
    vfs: int | None = None
    drain: bool = False
    record: bool = True
    wait_seconds: float = 60.0
    scheduler: SchedulerSpec | None = None
    after: tuple[Step, ...] = ()
    mig: MigSpec | None = None
    mixed_size: bool | None = None
    after_boot: bool = False


class Restored(Value):
    """What became of one GPU of host.yaml: `steps` were carried out; `error` says why it is not as it should be.

    `unseen`: what cannot be seen to be as it should be.
    """

    address: str
    steps: tuple[str, ...] = ()
    error: VgpuctlError | None = None
    unseen: str | None = None


def set_mode(world: World, job: Job, *, dry_run: bool, progress: Progress) -> Outcome:
    """Set a GPU up for a mode, with MIG or mixed sizes where they are asked for, and write that to host.yaml.

    Raises:
        Busy: another process sets it up.
        InUse: a VM or a process uses it, or has a promise that this would break.
        HostCannot, InvalidInput, NoCapacity: the GPU has no such mode, number of VFs, or GPU instances.
        VerifyFailed: it was set and read back, and is otherwise now.
        VgpuctlError: a step failed; what was done is undone.
    """
    if not dry_run:
        require_writable(world)
    snapshot = _look(world)
    gpu = one_gpu(snapshot, job.gpu)
    refuse_being_set_up(snapshot, [gpu.address])
    job = replace(job, gpu=gpu.address, mode=job.mode or _mode_of(gpu, job))
    work = _plan(world, snapshot, job)
    changed = sides(gpu, _after(gpu, job, work))
    if dry_run or not work.lines:
        value = {**gpu_value(snapshot, work.gpu), "partition": partition_value(work.gpu), **changed}
        return Outcome(bool(work.lines), value, work.lines, snapshot.warnings, dry_run=dry_run)
    apply(world, mode_task(world, job, lambda: _look(world)), work, progress)
    value, warnings = _seen_after(world, snapshot, work.gpu, job)
    return Outcome(True, {**value, **changed}, work.lines, warnings)


def _after(gpu: Gpu, job: Job, work: Work) -> GpuSpec:
    """Return how a GPU is when it is set up, with what host.yaml asks for and is set along with it."""
    said = replace(as_it_is(gpu), mode=job.mode, vfs=None, mig=None, mixed_size=None)
    if job.mode == Mode.SRIOV:
        said = replace(said, vfs=wanted_vfs(gpu, job.mode, job.vfs))
    if job.mode in (Mode.SRIOV, Mode.PASSTHROUGH):
        said = replace(said, scheduler=None)
    if job.mode == Mode.VGPU:
        mig = gpu.desired_mig if job.mig is None else job.mig
        mixed_size = gpu.desired_mixed_size if job.mixed_size is None else job.mixed_size
        said = replace(said, mig=mig, mixed_size=mixed_size)
    if any(isinstance(step, (SetScheduler, SetInstanceSchedulers)) for step in work.devices):
        said = replace(said, scheduler=gpu.desired_scheduler)
    return as_asked(gpu, said)


def _seen_after(world: World, before: Snapshot, gpu: Gpu, job: Job) -> tuple[dict[str, object], tuple[str, ...]]:
    """Look again: what was read back as set may have been taken away by a later step, by the driver or by others.

    Everything is done and was read back: a look that fails now is a warning, no failure.

    Raises:
        VerifyFailed: naming what is not as it was set.
    """
    try:
        now = observe(world, WANT)
        gpu = one_gpu(now, gpu.address)
        wish = _wish(world, gpu, job)
    except VgpuctlError as error:
        unseen = f"it is done, but the host could not be looked at again: {error}"
        return {**gpu_value(before, gpu), "partition": None}, (unseen,)
    wrong = not_as_set(gpu, GpuSpec(job.mode, mig=wish.mig, mixed_size=wish.mixed_size))
    if wrong:
        raise VerifyFailed(
            f"it was set and read back, and is otherwise now: {'; '.join(wrong)}",
            hint="journalctl -k -n 20; another program may set this GPU too",
            gpu=gpu.address,
        )
    return {**gpu_value(now, gpu), "partition": partition_value(gpu)}, now.warnings


def _mode_of(gpu: Gpu, job: Job) -> str | None:
    """Return the mode of a GPU whose MIG or mixed sizes are set: without both a GPU kept for passthrough stays so.

    None: mixed sizes go off on a GPU whose VFs are off, and host.yaml asks for nothing there; then it needs to say
    nothing. That MIG goes off is otherwise: a command for it that was killed leaves the VFs off, and the same command
    again has to turn them on.

    Raises:
        Refused: host.yaml leaves the GPU unmanaged.
    """
    if gpu.desired is Mode.UNMANAGED:
        raise Refused(
            f"host.yaml leaves {gpu.address} unmanaged: vgpuctl sets nothing on it",
            hint=f"vgpuctl set-mode {gpu.address} vgpu",
            gpu=gpu.address,
        )
    wanted = (job.mig is not None and job.mig.on) or job.mixed_size
    asked = gpu.desired is not None or gpu.desired_mig is not None or gpu.desired_mixed_size is not None
    if job.mig is None and not (wanted or asked or gpu.vfs_enabled) and gpu.nvidia_driver and gpu.backend is None:
        return None
    return str(Mode.PASSTHROUGH if gpu.desired is Mode.PASSTHROUGH and not wanted else Mode.VGPU)


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
    only: frozenset[str] | None = None,
) -> tuple[Restored, ...]:
    """Bring every GPU of host.yaml to its mode, as after a boot; one that is as it should be is left alone.

    `only`: of these addresses.

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
    for address, said in sorted(_meant(gpus, look() if gpus else None, only).items()):
        steps: list[str] = []
        error: VgpuctlError | None = None
        unseen: str | None = None
        if said.mode == Mode.UNMANAGED or (said.mode, said.scheduler, said.mig, said.mixed_size) == (None,) * 4:
            continue
        try:
            for task in _restoring(world, address, said, wait_seconds, look):
                seen = look()
                try:
                    work = task.plan(seen)
                except Refused as refused:
                    raise works_on(seen, address, world.processes.this()) or refused from refused
                unseen = unseen_off(seen, work.gpu, Wish(said.mig, said.mixed_size))
                steps += work.lines
                if work.lines and not dry_run:
                    apply(world, task, work, progress)
        except Interrupted:
            raise
        except Exception as failure:  # noqa: BLE001 - one GPU must not keep the host's VMs without their vGPUs
            error = as_failure(failure)
        done.append(Restored(address, tuple(steps), error, unseen))
    return tuple(done)


def _meant(gpus: Mapping[str, GpuSpec], seen: Snapshot | None, only: frozenset[str] | None) -> dict[str, GpuSpec]:
    """Return what is said of each GPU that is there, and of each address that is not: it may still come."""
    from vgpuctl.spec.gpus import said_of_gpu

    named = {key: said for key, said in gpus.items() if is_pci(key)}
    found = {g.address: said_of_gpu(gpus, g) for g in (seen.gpus if seen is not None else ())}
    return {a: said for a, said in {**named, **found}.items() if only is None or a in only}


def _restoring(
    world: World, address: str, said: GpuSpec, wait_seconds: float, look: Callable[[], Snapshot]
) -> Iterator[Task]:
    """Yield what brings a GPU back, each when the one before is done: VFs first, for they take its scheduler away."""
    refuse_without_mode(address, said.mode, said.mig, said.mixed_size)
    if said.mode is not None:
        job = Job(address, said.mode, said.vfs, record=False, wait_seconds=wait_seconds, scheduler=said.scheduler)
        job = replace(job, mig=said.mig, mixed_size=said.mixed_size, after_boot=True)
        yield mode_task(world, job, look)
    if said.scheduler is not None and said.mode in (None, Mode.VGPU):
        again = restoring(world, address, said.scheduler, look)
        if again is not None:
            yield scheduler_task(world, replace(again, wait_seconds=wait_seconds), look)


def _plan(world: World, snapshot: Snapshot, job: Job) -> Work:
    gpu = one_gpu(snapshot, job.gpu)
    refuse_stuck(snapshot, [gpu.address])
    work = _work(world, snapshot, gpu, job)
    record = recorded(world, gpu, _said(gpu, job)) if job.record and job.mode is not None else ()
    keeps = tuple(c for name, promise in work.keeps for c in claims_of(world, name, promise))
    starts = to_start(world, snapshot, gpu, work.stops)
    return Work(gpu, work.stops, work.steps, (*record, *job.after), starts, keeps)


def _said(gpu: Gpu, job: Job) -> dict[str, object]:
    """Return what host.yaml is to say; the number of plain VFs, so that a boot makes as many."""
    said: dict[str, object] = {"mode": job.mode, "vfs": None}
    if job.mode == Mode.SRIOV:
        said["vfs"] = wanted_vfs(gpu, job.mode, job.vfs)
    if job.mig is not None:
        said["mig"] = as_written(job.mig)
    if job.mixed_size is not None:
        said["mixed_size"] = job.mixed_size
    return said


def _work(world: World, snapshot: Snapshot, gpu: Gpu, job: Job) -> EmptiedWork:
    """Return the running VMs to stop and what changes the GPU; nothing when it is as asked for.

    Raises:
        VgpuctlError: as `set_mode`.
    """
    refuse_misfits(snapshot, gpu, job.mode or Mode.VGPU)
    number = gpu.vfs_enabled if job.mode is None else wanted_vfs(gpu, job.mode, job.vfs)
    wish = _wish(world, gpu, job)
    if job.after_boot and unseen_off(snapshot, gpu, wish) is not None:
        wish = Wish()
    scheduler = _scheduler(world, snapshot, gpu, job, wish)
    known = types_of(world, gpu) if wish != Wish() else ()
    if wish.mixed_size and not gpu.mixed_size:
        known = with_places(world, gpu, known)
    change = change_of(snapshot, gpu, number, wish, known)
    if not change.cold and change.mode is None:
        return warm_work(snapshot, gpu, change, scheduler, drain=job.drain)
    running = users_to_drain(snapshot, gpu, number)
    if not job.drain:
        refuse_running(gpu, running)
    devices = cold_steps(gpu, number, change, scheduler, autoprobe=_autoprobe(world, gpu), kernel=_kernel(world))
    return EmptiedWork(running, devices)


def _wish(world: World, gpu: Gpu, job: Job) -> Wish:
    mig = gpu.desired_mig if job.mig is None else job.mig
    mixed_size = gpu.desired_mixed_size if job.mixed_size is None else job.mixed_size
    wish = wish_for(gpu, job.mode, mig, mixed_size)
    return replace(wish, mig=with_instances(world, gpu, wish.mig))


def _scheduler(world: World, snapshot: Snapshot, gpu: Gpu, job: Job, wish: Wish) -> SchedulerSpec | None:
    """Return the scheduler that a GPU for vGPUs is to have, None for the driver's own, or where NVML sets none.

    Raises:
        HostCannot: there is no such scheduler beside the MIG or the mixed sizes that are asked for.
    """
    asked = job.scheduler or gpu.desired_scheduler
    if asked is None or job.mode != Mode.VGPU:
        return None
    then = replace(as_wished(gpu, wish), types=types_of(world, gpu))
    mig = then.mig is not None and then.mig.enabled
    if (wish != Wish() or mig) and gpu.nvidia_driver:
        drop = f"host.yaml asks for it; vgpuctl apply --set 'gpus[{gpu.address}].scheduler=null' takes that out"
        hint = drop if asked == gpu.desired_scheduler else None
        refuse_impossible(replace(then, desired=None), asked, driver_version(world, snapshot), hint)
    able = gpu.scheduler is not None and bool(gpu.scheduler.interfaces)
    return asked if able else None


def _autoprobe(world: World, gpu: Gpu) -> bool:
    try:
        return world.sysfs.read(f"{gpu.path}/sriov_drivers_autoprobe").strip() != "0"
    except OSError:
        return True


def _kernel(world: World) -> str:
    try:
        return world.sysfs.read("/proc/sys/kernel/osrelease").strip()
    except OSError:
        return ""


def mode_task(world: World, job: Job, look: Callable[[], Snapshot]) -> Task:
    """Return the job for the frame that claims the GPU meanwhile."""

    def check(snapshot: Snapshot) -> None:
        gpu = one_gpu(snapshot, job.gpu)
        refuse_being_set_up(snapshot, [gpu.address])
        _work(world, snapshot, gpu, job)

    return Task(job.gpu, job.wait_seconds, look, check, lambda snapshot: _plan(world, snapshot, job))
