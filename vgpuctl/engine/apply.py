# SPDX-License-Identifier: Apache-2.0
"""Make a host as host.yaml says: GPU by GPU in the order of their addresses, with set-mode's and set-scheduler's tasks.

What stands against it on any GPU is told before the first write. What is asked for is written to host.yaml by the
last GPU's last step, so that it says what is true. A GPU that fails is as it was; those before it stay set up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.cordon import WANT
from vgpuctl.engine.guards import require_system, require_writable
from vgpuctl.engine.host_plan import How, Planned, look_for, plan_host, refuse_all, task_of
from vgpuctl.engine.host_wish import Asked
from vgpuctl.engine.observe import observe
from vgpuctl.engine.run import carry_out
from vgpuctl.engine.setting_up import apply
from vgpuctl.errors import Interrupted, PartlyApplied, Temporary, VerifyFailed, VgpuctlError
from vgpuctl.model.gpu import Mode
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.step import Plan, Step
from vgpuctl.plan.host_diff import Difference, as_it_is, not_as_set, refuse_lost_vgpus, said_value, settings_differ
from vgpuctl.spec.host import GpuSpec
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def diff_host(world: World, asked: Asked, how: How) -> Outcome:
    """Return what `apply_host` would do, and what stands against it; nothing is changed.

    Raises:
        NotFound: host.yaml names a GPU that is not here.
    """
    snapshot, notes = look_for(world, asked)
    planned = plan_host(world, snapshot, asked, how)
    settings = settings_differ(asked.spec, asked.now)
    lines = tuple(line for one in planned for line in one.lines)
    changed = bool(settings or lines) or any(one.differences for one in planned)
    record = tuple(step.describe() for step in asked.record)
    refused = tuple(f"{one.gpu.address}: {one.refusal}" for one in planned if one.refusal is not None)
    data = _data(planned, settings)
    return Outcome(changed, data, (*lines, *record), (*snapshot.warnings, *refused), notes, dry_run=True)


def apply_host(world: World, asked: Asked, how: How, *, dry_run: bool, progress: Progress) -> Outcome:
    """Make the host as it is asked for, and host.yaml say so.

    Raises:
        NotFound, InvalidInput, HostCannot, InUse, Busy: with every GPU on which something stands against it.
        PartlyApplied: a GPU failed after others were set up.
        VgpuctlError: a step failed; what was done on that GPU is undone.
    """
    if not dry_run:
        require_writable(world)
    snapshot, notes = look_for(world, asked)
    require_system(snapshot)
    refuse_lost_vgpus(asked.spec, asked.now, asked.source)
    planned = plan_host(world, snapshot, asked, how)
    refuse_all([one.refusal for one in planned if one.refusal is not None])
    settings = settings_differ(asked.spec, asked.now)
    steps = tuple(line for one in planned for line in one.lines) + tuple(step.describe() for step in asked.record)
    warnings = snapshot.warnings
    if steps and not dry_run:
        _carry_out_all(world, planned, asked.record, progress)
        warnings = _seen_after(world, asked, planned)
    return Outcome(bool(steps), _data(planned, settings), steps, warnings, notes, dry_run=dry_run)


def _carry_out_all(world: World, planned: tuple[Planned, ...], record: tuple[Step, ...], progress: Progress) -> None:
    """Set the GPUs up one after the other; the last of their tasks writes host.yaml too, and takes all back with it."""
    todo = [(one.said, job, work) for one in planned for job, work in one.tasks]
    if not todo:
        carry_out(world, Plan(steps=record), progress)
        return
    said, job, work = todo[-1]
    todo[-1] = (said, replace(job, after=record), replace(work, after=(*work.after, *record)))
    done: list[str] = []
    for said, job, work in todo:
        try:
            apply(world, task_of(world, job, said), work, progress)
        except VgpuctlError as error:
            if not done:
                raise
            failure = _partly(error, done, record)
            if failure is error:
                raise
            raise failure from error
        done += [f"GPU {job.gpu}: {line}" for line in work.lines]


def _partly(error: VgpuctlError, done: list[str], record: tuple[Step, ...]) -> VgpuctlError:
    """Return the failure of a GPU after others were set up; those stay so, and are listed."""
    error.left += done
    unsaid = ", which host.yaml does not say yet" if record else ""
    hint = f"the GPUs before it are set up{unsaid}: run the command again"
    if isinstance(error, Interrupted | Temporary | PartlyApplied):
        error.hint = "; ".join(filter(None, (error.hint, hint)))
        return error
    partly = PartlyApplied(
        error.message, hint="; ".join(filter(None, (error.hint, hint))), **{**error.facts, "cause": error.code}
    )
    partly.undone, partly.left = error.undone, error.left
    return partly


def _seen_after(world: World, asked: Asked, planned: tuple[Planned, ...]) -> tuple[str, ...]:
    """Look again: what was read back as set may have been taken away by a later step, or by the driver.

    Raises:
        VerifyFailed: naming what is not as it was set.
    """
    try:
        snapshot = observe(world, WANT)
    except VgpuctlError as error:
        return (f"it is done, but the host could not be looked at again: {error}",)
    wrong: list[str] = []
    for one in planned:
        gpu = snapshot.gpu(one.gpu.address)
        wrong += not_as_set(gpu, one.said) if gpu is not None and one.tasks else ()
    if wrong:
        raise VerifyFailed(
            f"it was set and read back, and is otherwise now: {'; '.join(wrong)}",
            hint="journalctl -k -n 20; another program may set these GPUs too",
        )
    return snapshot.warnings


def _data(planned: tuple[Planned, ...], settings: tuple[Difference, ...]) -> dict[str, object]:
    gpus = [
        {
            "address": one.gpu.address,
            "model": one.gpu.model,
            "before": said_value(as_it_is(one.gpu)),
            "after": said_value(_wanted(one)),
            "differences": [row.data for row in one.differences],
            "steps": list(one.lines),
            "refused": None if one.refusal is None else one.refusal.message,
        }
        for one in planned
    ]
    return {"gpus": gpus, "settings": [row.data for row in settings]}


def _wanted(one: Planned) -> GpuSpec:
    """Return how a GPU is afterwards: what is asked for, and as it is where nothing is."""
    now, said = as_it_is(one.gpu), one.said
    kept: dict[str, object] = {"mode": said.mode or now.mode, "vfs": said.vfs if said.mode else now.vfs}
    if said.mode == now.mode and said.vfs is None:
        kept["vfs"] = now.vfs
    if kept["mode"] == Mode.VGPU:
        kept["mig"] = now.mig if said.mig is None else said.mig
        kept["mixed_size"] = now.mixed_size if said.mixed_size is None else said.mixed_size
    return replace(said, **kept, cordoned=said.cordoned or None, scheduler=said.scheduler or now.scheduler)
