# SPDX-License-Identifier: Apache-2.0
"""What makes a host as host.yaml says: each GPU's differences, and its tasks with their work, or why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.capacity.demand import not_offered
from vgpuctl.engine.cordon import WANT
from vgpuctl.engine.guards import refuse_being_set_up, require_system
from vgpuctl.engine.host_wish import Asked
from vgpuctl.engine.layout import Job, mode_task
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.partition import with_instances
from vgpuctl.engine.scheduler import WANT as SCHEDULER_WANT
from vgpuctl.engine.scheduler import SchedulerJob, scheduler_task
from vgpuctl.engine.setting_up import Task, Work
from vgpuctl.errors import InvalidInput, NotFound, Refused, VgpuctlError
from vgpuctl.model.address import address_key, is_pci
from vgpuctl.model.gpu import Gpu, Mode
from vgpuctl.model.scheduler import SchedulerSpec
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.plan.host_diff import Difference, differences
from vgpuctl.plan.partition import as_wished, refuse_without_mode, wish_for
from vgpuctl.plan.scheduler import differs
from vgpuctl.spec.gpus import by_model, said_of_gpu
from vgpuctl.spec.host import GpuSpec
from vgpuctl.steps.scheduler import SetInstanceSchedulers, SetScheduler
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from vgpuctl.model.world import World


AnyJob = Job | SchedulerJob


class How(Value):
    """How it is gone about. `drain`: running VMs may be stopped and started again."""

    drain: bool = False
    wait_seconds: float = 60.0


class Planned(Value):
    """One GPU: what is asked for, what differs, the tasks with their work, or why there are none."""

    gpu: Gpu
    said: GpuSpec
    differences: tuple[Difference, ...]
    tasks: tuple[tuple[AnyJob, Work], ...] = ()
    refusal: VgpuctlError | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """What is done, a line each."""
        return tuple(line for _, work in self.tasks for line in work.lines)


def look_for(world: World, asked: Asked) -> tuple[Snapshot, tuple[str, ...]]:
    """Look at the host, at other devices than GPUs only where one is or was named; say what no GPU of it is or offers.

    Raises:
        NotFound: an address means none.
    """
    gpus = asked.spec.gpus
    models = by_model(gpus)
    snapshot = observe(world, Want())
    named = [key for key in gpus if is_pci(key)]
    if any(snapshot.gpu(key) is None for key in (*named, *asked.now.gpus) if is_pci(key)):
        snapshot = observe(world, WANT)
    missing = [address for address in named if snapshot.gpu(address) is None]
    if missing:
        here = ", ".join(f"{g.address} ({g.model})" for g in snapshot.gpus if g.display_class) or "none"
        raise NotFound(
            f"{asked.source} names {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not on this host",
            hint=f"GPUs here: {here}",
            gpus=missing,
        )
    unseen = [model for model in models if not any(g.display_class and g.called(model) for g in snapshot.gpus)]
    unasked = not_offered(snapshot, asked.spec.placement.demand, asked.file.text, asked.file.name)
    return snapshot, (
        *(f"no GPU of this host is a {model}; what {asked.source} says of it waits" for model in unseen),
        *(one.text for one in unasked),
    )


def plan_host(world: World, snapshot: Snapshot, asked: Asked, how: How) -> tuple[Planned, ...]:
    """Return every GPU of which something is asked for, or was before; in the order of their addresses."""
    found = []
    for gpu in sorted(snapshot.gpus, key=lambda g: address_key(g.address)):
        said = said_of_gpu(asked.spec.gpus, gpu)
        unknown: VgpuctlError | None = None
        try:
            if said.mode == Mode.VGPU:  # MIG of a wider entry counts for nothing else, whatever the GPU is
                said = replace(said, mig=with_instances(world, gpu, said.mig))
        except VgpuctlError as error:
            unknown = error
        rows = differences(gpu, said)
        if said == GpuSpec() and not rows:
            continue
        try:
            if unknown is not None:
                raise unknown
            one = Planned(gpu, said, rows, _tasks(world, snapshot, gpu, said, how))
        except VgpuctlError as refusal:
            one = Planned(gpu, said, rows, refusal=refusal)
        found.append(one)
    return tuple(found)


def _tasks(world: World, snapshot: Snapshot, gpu: Gpu, said: GpuSpec, how: How) -> tuple[tuple[AnyJob, Work], ...]:
    """Return what has to be done on a GPU, in its order: new VFs take its scheduler away, so that comes after.

    Raises:
        VgpuctlError: as set-mode and set-scheduler do.
    """
    found: list[tuple[AnyJob, Work]] = []
    snapshot = _as_meant(snapshot, gpu.address, said)
    if said.mode is None and said.vfs is not None:
        raise InvalidInput(
            f"vfs: {said.vfs} is said of {gpu.address}, and no mode, with which it goes",
            hint="say mode: sriov too, in the same entry of gpus: or in a wider one",
            gpu=gpu.address,
        )
    refuse_without_mode(gpu.address, said.mode, said.mig, said.mixed_size)
    if said.mode is not None:
        job = Job(gpu.address, said.mode, said.vfs, how.drain, False, how.wait_seconds, said.scheduler)
        job = replace(job, mig=said.mig, mixed_size=said.mixed_size)
        found.append((job, task_of(world, job, said).plan(snapshot)))
    sets = (SetScheduler, SetInstanceSchedulers)
    set_already = any(isinstance(step, sets) for _, work in found for step in work.devices)
    if (
        said.scheduler is not None
        and said.mode in (None, Mode.VGPU)
        and not set_already
        and _to_set(gpu, said.scheduler)
    ):
        wish = SchedulerJob(gpu.address, said.scheduler, drain=how.drain, record=False, wait_seconds=how.wait_seconds)
        found.append((wish, task_of(world, wish, said).plan(_partitioned(snapshot, gpu, said))))
    found = [(job, work) for job, work in found if work.lines]
    if found:
        refuse_being_set_up(snapshot, [gpu.address])
    return tuple(found)


def _to_set(gpu: Gpu, wanted: SchedulerSpec) -> bool:
    """Say whether a scheduler may have to be set: it does not run, or only the driver's files can tell."""
    able = gpu.scheduler is not None and bool(gpu.scheduler.interfaces)
    return not able or differs(gpu, wanted)


def _as_meant(snapshot: Snapshot, address: str, said: GpuSpec) -> Snapshot:
    """Return the look with the mode that is asked for: the one of host.yaml, as `unmanaged`, goes with it.

    So do MIG and mixed sizes: what host.yaml says of them now is not what is asked for.
    """
    meant = {
        "desired": Mode(said.mode) if said.mode is not None else None,
        "desired_mig": said.mig,
        "desired_mixed_size": said.mixed_size,
    }
    gpus = tuple(replace(g, **meant) if g.address == address else g for g in snapshot.gpus)
    return replace(snapshot, gpus=gpus)


def _partitioned(snapshot: Snapshot, gpu: Gpu, said: GpuSpec) -> Snapshot:
    """Return the look with MIG and mixed sizes of a GPU as they are when its scheduler is set."""
    then = as_wished(gpu, wish_for(gpu, said.mode, said.mig, said.mixed_size))
    then = replace(then, desired=None if said.mode is None else Mode(said.mode))
    return replace(snapshot, gpus=tuple(then if g.address == gpu.address else g for g in snapshot.gpus))


def task_of(world: World, job: AnyJob, said: GpuSpec) -> Task:
    """Return the job for the frame that claims its GPU meanwhile. `said`: all that is asked for of the GPU."""

    def look(want: Want) -> Callable[[], Snapshot]:
        def looked() -> Snapshot:
            snapshot = observe(world, want)
            require_system(snapshot)
            return _as_meant(snapshot, job.gpu, said)

        return looked

    if isinstance(job, Job):
        return mode_task(world, job, look(WANT))
    return scheduler_task(world, job, look(SCHEDULER_WANT))


def refuse_all(gpus: list[VgpuctlError], vgpus: list[VgpuctlError], so: str = "nothing was changed") -> None:
    """Raise what stands against it: alone as it is, of several the first kind with the sentences of all.

    `so`: what came of it.
    """
    refusals = [*gpus, *vgpus]
    if len(refusals) == 1:
        raise refusals[0]
    if refusals:
        first = refusals[0]
        kind = type(first) if all(type(one) is type(first) for one in refusals) else Refused
        what = [f"{len(gpus)} GPU{'s' * (len(gpus) > 1)} cannot be set up"] if gpus else []
        what += [f"{len(vgpus)} vGPU{'s' * (len(vgpus) > 1)} cannot be made"] if vgpus else []
        raise kind(
            "\n".join([f"{' and '.join(what)}, so {so}:", *(one.message for one in refusals)]),
            hint=first.hint,
            refused=[{"code": one.code, "message": one.message, "hint": one.hint} for one in refusals],
        )
