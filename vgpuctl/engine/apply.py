# SPDX-License-Identifier: Apache-2.0
"""Make a host as host.yaml says: GPU by GPU in the order of their addresses, with set-mode's and set-scheduler's tasks.

Then the vGPUs of host.yaml that are missing. What stands against it on any GPU is told before the first write. What is
asked for is written to host.yaml by the last step of the last of these, so that it says what is true. A GPU that fails
is as it was; those before it stay set up, and so do all of them when a vGPU fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.cordon import WANT
from vgpuctl.engine.guards import require_system, require_writable
from vgpuctl.engine.host_plan import How, Planned, look_for, plan_host, refuse_all, task_of
from vgpuctl.engine.host_wish import Asked
from vgpuctl.engine.kept import lost_again, make_vgpus, plan_vgpus
from vgpuctl.engine.observe import observe
from vgpuctl.engine.run import carry_out
from vgpuctl.engine.setting_up import apply
from vgpuctl.errors import Interrupted, PartlyApplied, Temporary, VerifyFailed, VgpuctlError
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.step import Plan, Step
from vgpuctl.plan.host_diff import (
    Difference,
    as_asked,
    no_device,
    not_as_set,
    refuse_lost_vgpus,
    settings_differ,
    sides,
)
from vgpuctl.plan.kept import Kept
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
    kept, unknown = plan_vgpus(world, snapshot, asked, planned)
    settings = _settings(asked, kept)
    lines = _lines(planned, kept)
    changed = bool(settings or lines) or any(one.differences for one in planned)
    record = tuple(step.describe() for step in asked.record)
    refused = [f"{one.gpu.address}: {one.refusal}" for one in planned if one.refusal is not None]
    refused += [f"vGPU {one.entry.name}: {one.refusal}" for one in kept if one.refusal is not None]
    data = _data(planned, settings)
    warnings = (*snapshot.warnings, *refused)
    return Outcome(changed, data, (*lines, *record), warnings, (*notes, *unknown), dry_run=True)


def _lines(planned: tuple[Planned, ...], kept: tuple[Kept, ...]) -> tuple[str, ...]:
    """Return what is done, a line each; of what is refused none."""
    vgpus = tuple(one.line for one in kept if one.refusal is None)
    return (*(line for one in planned for line in one.lines), *vgpus)


def _settings(asked: Asked, kept: tuple[Kept, ...]) -> tuple[Difference, ...]:
    """Return what the other sections say otherwise, and the vGPUs that host.yaml keeps and that have no device."""
    missing = [one.entry.name for one in kept if one.entry.name in asked.now.vgpus]
    return (*settings_differ(asked.spec, asked.now), *(no_device(name, asked.spec.vgpus[name]) for name in missing))


def apply_host(world: World, asked: Asked, how: How, *, dry_run: bool, progress: Progress) -> Outcome:
    """Make the host as it is asked for, and host.yaml say so.

    Raises:
        NotFound, InvalidInput, HostCannot, InUse, Busy: with every GPU on which something stands against it.
        NoCapacity: a vGPU of host.yaml that is missing has no room.
        PartlyApplied: a GPU failed after others were set up.
        VgpuctlError: a step failed; what was done on that GPU is undone.
    """
    if not dry_run:
        require_writable(world)
    snapshot, notes = look_for(world, asked)
    require_system(snapshot)
    refuse_lost_vgpus(asked.spec, asked.now, asked.source)
    planned = plan_host(world, snapshot, asked, how)
    kept, unknown = plan_vgpus(world, snapshot, asked, planned)
    of_gpus, of_vgpus = ([one.refusal for one in some if one.refusal is not None] for some in (planned, kept))
    refuse_all(of_gpus, of_vgpus)
    settings = _settings(asked, kept)
    steps = _lines(planned, kept) + tuple(step.describe() for step in asked.record)
    warnings = snapshot.warnings
    if steps and not dry_run:
        done = _set_up_all(world, planned, () if kept else asked.record, progress)
        if kept:
            _make_all(world, asked, how, done, progress)
        warnings = _seen_after(world, planned, kept)
    return Outcome(bool(steps), _data(planned, settings), steps, warnings, (*notes, *unknown), dry_run=dry_run)


def _make_all(world: World, asked: Asked, how: How, done: list[str], progress: Progress) -> None:
    """Make the vGPUs and write host.yaml, after the GPUs were set up."""
    try:
        make_vgpus(world, asked, how.wait_seconds, progress)
    except VgpuctlError as error:
        if not done:
            raise
        raise _partly(error, done, asked.record) from error


def _set_up_all(world: World, planned: tuple[Planned, ...], record: tuple[Step, ...], progress: Progress) -> list[str]:
    """Set the GPUs up one after the other, and return what was done.

    The last of their tasks does `record` too, and takes all back with it.
    """
    todo = [(one.said, job, work) for one in planned for job, work in one.tasks]
    if not todo:
        if record:
            carry_out(world, Plan(steps=record), progress)
        return []
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
    return done


def _partly(error: VgpuctlError, done: list[str], record: tuple[Step, ...]) -> VgpuctlError:
    """Return the failure of a GPU, or of the vGPUs, after others were set up; those stay so, and are listed."""
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


def _seen_after(world: World, planned: tuple[Planned, ...], kept: tuple[Kept, ...]) -> tuple[str, ...]:
    """Look again: what was read back as set may have been taken away by a later step, or by the driver.

    Raises:
        VerifyFailed: naming what is not as it was set.
    """
    try:
        snapshot = observe(world, WANT)
    except VgpuctlError as error:
        return (f"it is done, but the host could not be looked at again: {error}",)
    wrong = lost_again(snapshot, kept)
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
            **sides(one.gpu, as_asked(one.gpu, one.said)),
            "differences": [row.data for row in one.differences],
            "steps": list(one.lines),
            "refused": None if one.refusal is None else one.refusal.message,
        }
        for one in planned
    ]
    return {"gpus": gpus, "settings": [row.data for row in settings]}
