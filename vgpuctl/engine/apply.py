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
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.run import carry_out
from vgpuctl.engine.setting_up import apply
from vgpuctl.errors import Interrupted, PartlyApplied, Temporary, VerifyFailed, VgpuctlError
from vgpuctl.model.gpu import Owner
from vgpuctl.model.outcome import Confirm, Outcome, Progress
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
from vgpuctl.plan.host_removals import Removal, removals
from vgpuctl.plan.kept import Kept
from vgpuctl.steps.host_file import PATH
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def diff_host(world: World, asked: Asked, how: How) -> Outcome:
    """Return what `apply_host` would do, and what stands against it; nothing is changed.

    Raises:
        NotFound: host.yaml names a GPU that is not here.
    """
    if asked.broken is not None:
        world, asked = _as_if_replaced(world, asked), replace(asked, now=asked.spec)
    snapshot, notes = look_for(world, asked)
    planned = plan_host(world, snapshot, asked, how)
    kept, unknown = plan_vgpus(world, snapshot, asked, planned)
    settings = _settings(asked, kept)
    gone = removals(asked.spec, asked.now, snapshot.gpus)
    lines = _lines(planned, kept)
    changed = bool(settings or lines or gone or asked.broken) or any(one.differences for one in planned)
    record = tuple(step.describe() for step in asked.record)
    refused = [f"{one.gpu.address}: {one.refusal}" for one in planned if one.refusal is not None]
    refused += [f"vGPU {one.entry.name}: {one.refusal}" for one in kept if one.refusal is not None]
    data = _data(planned, settings, gone)
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


def apply_host(world: World, asked: Asked, how: How, *, dry_run: bool, confirm: Confirm, progress: Progress) -> Outcome:
    """Make the host as it is asked for, and host.yaml say so; asks before another file takes entries away.

    Raises:
        NeedsConfirmation: entries would go, and the answer is no, or nobody can be asked.
        NotFound, InvalidInput, HostCannot, InUse, Busy: with every GPU on which something stands against it.
        NoCapacity: a vGPU of host.yaml that is missing has no room.
        PartlyApplied: a GPU failed after others were set up.
        VgpuctlError: a step failed; what was done on that GPU is undone.
    """
    if not dry_run:
        require_writable(world)
    if asked.broken is not None:
        return _replace_broken(world, asked, how, dry_run=dry_run, confirm=confirm, progress=progress)
    snapshot, notes = look_for(world, asked)
    require_system(snapshot)
    refuse_lost_vgpus(asked.spec, asked.now, asked.source)
    planned = plan_host(world, snapshot, asked, how)
    kept, unknown = plan_vgpus(world, snapshot, asked, planned)
    of_gpus, of_vgpus = ([one.refusal for one in some if one.refusal is not None] for some in (planned, kept))
    refuse_all(of_gpus, of_vgpus)
    settings = _settings(asked, kept)
    gone = removals(asked.spec, asked.now, snapshot.gpus)
    steps = _lines(planned, kept) + tuple(step.describe() for step in asked.record)
    warnings = snapshot.warnings
    if steps and not dry_run:
        _ask_before_loss(asked, gone, confirm)
        done = _set_up_all(world, planned, () if kept else asked.record, progress)
        if kept:
            _make_all(world, asked, how, done, progress)
        warnings = _seen_after(world, planned, kept)
    return Outcome(bool(steps), _data(planned, settings, gone), steps, warnings, (*notes, *unknown), dry_run=dry_run)


def _ask_before_loss(asked: Asked, gone: tuple[Removal, ...], confirm: Confirm) -> None:
    """Ask before another file takes entries of host.yaml away; what --set takes out was named by whoever typed it."""
    if asked.replaces and gone:
        what = f"{len(gone)} {'entry loses' if len(gone) == 1 else 'entries lose'} keys or go"
        confirm(f"put {asked.source} in the place of {PATH}? {what}", tuple(one.line for one in gone))


def _replace_broken(
    world: World, asked: Asked, how: How, *, dry_run: bool, confirm: Confirm, progress: Progress
) -> Outcome:
    """Put another file in the place of a host.yaml that cannot be understood, and then make the host as it says.

    The file comes first here: until it is there nobody can tell what may be placed where. Every refusal comes before.
    """
    then = _as_if_replaced(world, asked)
    after = replace(asked, now=asked.spec, record=(), broken=None)
    planned = apply_host(then, after, how, dry_run=True, confirm=confirm, progress=progress)
    record = tuple(step.describe() for step in asked.record)
    if dry_run:
        return replace(planned, changed=True, steps=(*record, *planned.steps))
    lost = [v for v in observe(then, Want(models=False)).vgpus if v.owner is Owner.LEAKED]
    confirm(
        f"put {asked.source} in the place of {PATH}? What that says cannot be told, so neither can what goes",
        (str(asked.broken), *(f"{v.carrier} on {v.gpu} is nobody's then, and reconcile removes it" for v in lost)),
    )
    carry_out(world, Plan(steps=asked.record), progress)
    try:
        done = apply_host(world, after, how, dry_run=False, confirm=confirm, progress=progress)
    except VgpuctlError as error:
        raise _partly(error, list(record), f"{PATH} is {asked.source} now: vgpuctl apply goes on from there") from error
    return replace(done, changed=True, steps=(*record, *done.steps))


class _TextOfAnother(Value):
    """A host.yaml that says what another file says, for a look at the host as if it were there."""

    text: str

    def read(self) -> str | None:
        """Return the text."""
        return self.text

    def kept(self, number: int) -> str | None:
        """Return none: whoever looks needs none."""
        return None

    def replace(self, text: str, was: str | None, *, taken_back: bool = False) -> None:
        """Refuse: nothing is written to what is only supposed."""
        raise AssertionError(f"{PATH} was to be written in a dry run")


def _as_if_replaced(world: World, asked: Asked) -> World:
    return replace(world, host_file=_TextOfAnother(asked.file.text))


def _make_all(world: World, asked: Asked, how: How, done: list[str], progress: Progress) -> None:
    """Make the vGPUs and write host.yaml, after the GPUs were set up."""
    try:
        make_vgpus(world, asked, how.wait_seconds, progress)
    except VgpuctlError as error:
        if not done:
            raise
        raise _partly(error, done, _hint(asked.record)) from error


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
            failure = _partly(error, done, _hint(record))
            if failure is error:
                raise
            raise failure from error
        done += [f"GPU {job.gpu}: {line}" for line in work.lines]
    return done


def _hint(record: tuple[Step, ...]) -> str:
    unsaid = ", which host.yaml does not say yet" if record else ""
    return f"the GPUs before it are set up{unsaid}: run the command again"


def _partly(error: VgpuctlError, done: list[str], hint: str) -> VgpuctlError:
    """Return the failure of a GPU, or of the vGPUs, after something else was done; that stays so, and is listed."""
    error.left += done
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


def _data(
    planned: tuple[Planned, ...], settings: tuple[Difference, ...], gone: tuple[Removal, ...]
) -> dict[str, object]:
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
    return {"gpus": gpus, "settings": [row.data for row in settings], "removed": [one.data for one in gone]}
