# SPDX-License-Identifier: Apache-2.0
"""Set how NVIDIA's driver divides a GPU's time among its vGPUs: now, through NVML, or for the driver's next load.

NVML does it only on a GPU without vGPUs: with `drain` VMs are shut down, their devices removed and made again. What was
set is written to host.yaml after it is true, and `engine.layout` sets it again after a boot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.engine.claim import claims_of
from vgpuctl.engine.cordon import one_gpu, recorded
from vgpuctl.engine.guards import refuse_stuck, require_system, require_writable
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.observe.modprobe import driver_version, loaded_parameters, names_in_etc, read_modprobe
from vgpuctl.engine.setting_up import Task, Work, apply, to_start
from vgpuctl.errors import HostCannot, VgpuctlError
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.scheduler import SchedulerSpec
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.plan.host_diff import as_it_is, sides
from vgpuctl.plan.modprobe import modprobe_notes, modprobe_steps, next_load_notes, word_for
from vgpuctl.plan.report import gpu_value
from vgpuctl.plan.scheduler import AUTO, MODPROBE, NVML, differs, refuse_impossible, scheduler_work, way_of
from vgpuctl.scheduler.modprobe import loaded
from vgpuctl.spec.scheduler import scheduler_value
from vgpuctl.steps.scheduler import command, words
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World

WANT = Want(types=True, every_function=True)
UNTIL_LOADED = "what NVML sets is lost when the driver is loaded again: vgpuctl restore-host sets it again after a boot"


class SchedulerJob(Value):
    """What a GPU's scheduler is to be. `via`: nvml, modprobe, or auto; `record`: write it to host.yaml afterwards.

    `after`: further steps, when it is done.
    """

    gpu: str
    wanted: SchedulerSpec
    via: str = AUTO
    drain: bool = False
    record: bool = True
    wait_seconds: float = 60.0
    after: tuple[Step, ...] = ()


def set_scheduler(world: World, job: SchedulerJob, *, dry_run: bool, progress: Progress) -> Outcome:
    """Set a GPU's scheduler and write that to host.yaml.

    Raises:
        InUse: vGPUs are on the GPU and may not be removed meanwhile.
        HostCannot: the GPU or its driver has no such scheduler, or NVML cannot set it.
        Refused: modprobe's files set the parameter where it cannot be changed safely.
        VgpuctlError: a step failed; what was done is undone.
    """
    if not dry_run:
        require_writable(world)

    def look() -> Snapshot:
        snapshot = observe(world, WANT)
        require_system(snapshot)
        return snapshot

    snapshot = look()
    gpu = one_gpu(snapshot, job.gpu)
    way = way_of(snapshot, gpu, job.via)
    work = planned(world, snapshot, job)
    notes = _notes(world, snapshot, gpu, job, way)
    if not dry_run and work.lines:
        apply(world, scheduler_task(world, job, look), work, progress)
        value, warnings = _seen_after(world, gpu, snapshot, job)
    else:
        value, warnings = gpu_value(snapshot, gpu), snapshot.warnings
    changed = sides(gpu, replace(as_it_is(gpu), scheduler=job.wanted))
    data = {**value, **changed, "via": way, "takes_effect": "now" if way == NVML else "when-loaded"}
    return Outcome(bool(work.lines), data, work.lines, warnings, notes, dry_run=dry_run)


def _seen_after(
    world: World, gpu: Gpu, before: Snapshot, job: SchedulerJob
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Look again. Everything is done and was read back: a look that fails now is a warning, no failure."""
    try:
        snapshot = observe(world, WANT)
        return gpu_value(snapshot, one_gpu(snapshot, gpu.address)), snapshot.warnings
    except VgpuctlError as error:
        unseen = f"it is done, but the host could not be looked at again: {error}"
        asked = replace(gpu, desired_scheduler=job.wanted, scheduler=None)
        return gpu_value(before, asked), (unseen,)


def scheduler_task(world: World, job: SchedulerJob, look: Callable[[], Snapshot]) -> Task:
    """Return the job for the frame that claims the GPU meanwhile."""

    def check(snapshot: Snapshot) -> None:
        gpu = one_gpu(snapshot, job.gpu)
        scheduler_work(gpu, job.wanted, snapshot, drain=job.drain)

    return Task(job.gpu, job.wait_seconds, look, check, lambda snapshot: planned(world, snapshot, job))


def planned(world: World, snapshot: Snapshot, job: SchedulerJob) -> Work:
    """Return what setting the scheduler takes, by what was seen.

    Raises:
        VgpuctlError: as `set_scheduler`.
    """
    gpu = one_gpu(snapshot, job.gpu)
    refuse_stuck(snapshot, [gpu.address])
    driver = driver_version(world, snapshot)
    refuse_impossible(gpu, job.wanted, driver)
    record = recorded(world, gpu, {"scheduler": scheduler_value(job.wanted)}) if job.record else ()
    record = (*record, *job.after)
    if way_of(snapshot, gpu, job.via) == MODPROBE:
        files = modprobe_steps(gpu, job.wanted, read_modprobe(world), driver)
        return Work(gpu, (), (), (*files, *record))
    work = scheduler_work(gpu, job.wanted, snapshot, drain=job.drain)
    keeps = tuple(c for name, promise in work.keeps for c in claims_of(world, name, promise))
    return Work(gpu, work.stops, work.steps, record, to_start(world, snapshot, gpu, work.stops), keeps)


def restoring(world: World, address: str, wanted: SchedulerSpec, look: Callable[[], Snapshot]) -> SchedulerJob | None:
    """Return the job that sets a GPU's scheduler again after a boot, None when it runs as host.yaml wants it.

    Raises:
        HostCannot: it does not, and NVML cannot set it.
    """
    snapshot = look()
    gpu = one_gpu(snapshot, address)
    driver = driver_version(world, snapshot)
    refuse_impossible(gpu, wanted, driver)
    if way_of(snapshot, gpu, AUTO) == NVML:
        return SchedulerJob(address, wanted, NVML, record=False) if differs(gpu, wanted) else None
    word = loaded(loaded_parameters(world) or "", address)
    if word == word_for(gpu, wanted, driver, word) or not differs(gpu, wanted):
        return None
    raise HostCannot(
        f"{address} does not run the scheduler {words(wanted)}: NVML cannot set it, and its driver was loaded with"
        f" {'no word for it' if word is None else f'0x{word:08X}'}",
        hint=f"{command(address, wanted)} --via modprobe writes the file; then load the driver again, or reboot",
        check="scheduler",
        gpu=address,
    )


def _notes(world: World, snapshot: Snapshot, gpu: Gpu, job: SchedulerJob, way: str) -> tuple[str, ...]:
    files = read_modprobe(world)
    if way == MODPROBE:
        return modprobe_notes(gpu, files, names_in_etc(world))
    return (UNTIL_LOADED, *next_load_notes(gpu, job.wanted, files, driver_version(world, snapshot)))
