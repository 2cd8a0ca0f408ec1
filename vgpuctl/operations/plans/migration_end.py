# SPDX-License-Identifier: Apache-2.0
"""Decide on which host a VM goes on whose move was interrupted, from what both hosts have of it. Pure.

The VM must never run on both. It runs on the source until all of it has come to the target, where it waits, paused. The
target's record says `arrived` only then (libvirt writes it), and nothing lets it run there before the source has said
that it does not run. So:

- Where it runs, it stays.
- Where the source's libvirt has ended it for the move (`migrated`), or has it no more, and all has come: the target.
- Where the source waits, paused, since libvirt did not hear whether the target has it: the target if all has come and
  waits there too, else the source.
- Where the source's record says `left`, all has come, as was certain before: the target.
- Where the source is off for another reason, it may have run on after the move failed, so that what the target has is
  old: the source, if the target's has never run, which is certain while it waits.

Where one of them has given it to the other, which has it no more, or where the target's may have run since, nobody can
tell: it may be on a third host, and the newer disks on either. Then a person says where it goes on.
"""

from __future__ import annotations

import shlex
from enum import StrEnum

from vgpuctl.errors import Busy, Failed
from vgpuctl.model.migration import MigrationRole
from vgpuctl.model.results.migration import MigrationStateResult
from vgpuctl.model.vm import VmState

RUNS_HERE, RUNS_THERE = "runs-here", "runs-there"
LETS_GO = "lets-go"
"""It is off here before it runs there, and all of it is still here until that is done."""
_OFF = (VmState.STOPPED, VmState.CRASHED)
MIGRATED = "migrated"
"""libvirt's reason for a domain that is off since it was moved (VIR_DOMAIN_SHUTOFF_MIGRATED)."""


class MigrationEnd(StrEnum):
    """Where a VM goes on. `none`: neither host has anything of a move."""

    SOURCE = "source"
    TARGET = "target"
    NONE = "none"


def decide_end(source: MigrationStateResult, target: MigrationStateResult) -> MigrationEnd:
    """Return where a VM goes on.

    Raises:
        Busy: libvirt is moving it now.
        Failed: it runs on both, or neither host has a VM that could run.
    """
    name = source.name if source.exists else target.name
    if source.is_migrating or target.is_migrating:
        raise Busy(f"libvirt is moving {name} now", hint="try again when that has ended", vm=name)
    runs_here, runs_there = _runs(source), target.exists and not target.is_copy and _runs(target)
    if runs_here and runs_there:
        raise Failed(
            f"{name} runs on {source.host} and on {target.host}",
            hint=f"stop it at once on the host where nobody has worked since: virsh destroy {name}",
            vm=name,
        )
    if source.role is None and target.role is None and not _is_half_left(source, target):
        return MigrationEnd.NONE
    if runs_here or runs_there:
        running, other = (source, target) if runs_here else (target, source)
        if other.exists and other.role is None and not other.is_copy:
            raise Failed(
                f"{name} runs on {running.host}, and {other.host} has it as a VM of its own: it could run on both",
                hint=f"if nobody has worked there since: vgpuctl delete-vm {shlex.quote(name)} on {other.host}",
                vm=name,
            )
        return MigrationEnd.SOURCE if runs_here else MigrationEnd.TARGET
    return _decide_stopped(name, source, target)


def loses_running_state(end: MigrationEnd, source: MigrationStateResult, target: MigrationStateResult) -> bool:
    """Return whether the target has the VM's running state, paused, and the source, where it goes on, has none."""
    is_kept = target.exists and target.role == MigrationRole.ARRIVED and target.state == VmState.PAUSED
    return end is MigrationEnd.SOURCE and is_kept and source.state in _OFF


def lost_alone(here: MigrationStateResult, outcome: str) -> str | None:
    """Return the host whose running state of a VM is lost, or may be, if one host's caller says where it goes on."""
    if outcome == RUNS_THERE:  # on the source, its caller says that the other host has all of it
        return here.host if here.state == VmState.PAUSED and here.role == MigrationRole.ARRIVED else None
    return here.peer if here.state in _OFF and not here.is_offline else None


def has_sent_state(here: MigrationStateResult) -> bool:
    """Return whether it is certain that the other host has got the running state of a VM that is off here."""
    return here.role == MigrationRole.LEFT or here.stop_reason == MIGRATED


def state_after(stays: MigrationStateResult) -> str | None:
    """Return the state of a VM on the host where it goes on, once its move has ended: what waited, paused, runs."""
    return VmState.RUNNING.value if stays.id is not None and stays.state == VmState.PAUSED else stays.state


def _decide_stopped(name: str, source: MigrationStateResult, target: MigrationStateResult) -> MigrationEnd:
    """Return where a VM goes on that runs on neither host."""
    if source.exists and source.role is None:
        return MigrationEnd.SOURCE  # it is an ordinary VM there again
    if target.exists and target.role is None and not target.is_copy:
        return MigrationEnd.TARGET  # the same on the target
    says_all = target.role == MigrationRole.ARRIVED or source.role == MigrationRole.LEFT
    has_all = target.exists and says_all and source.id in (None, target.id)
    if not source.exists and not has_all:
        raise Failed(
            f"{source.host} has no VM {name}, and not all of it has come to {target.host}",
            hint=f"where it was deleted: vgpuctl end-migration {shlex.quote(name)} --runs-there on {target.host}",
            vm=name,
        )
    if not source.exists and not source.is_removing:
        raise _not_certain(name, target, f"{source.host} has it no more, and may have given it to another host")
    has_left = source.role == MigrationRole.LEFT or source.stop_reason == MIGRATED
    if has_left and not has_all:
        raise _not_certain(name, source, f"it went to {target.host}, which has it no more")
    if has_left or not source.exists:
        return MigrationEnd.TARGET
    if has_all and target.state != VmState.PAUSED:
        raise _not_certain(name, source, f"it has come to {target.host} and may have run there; it is off there now")
    return MigrationEnd.TARGET if has_all and source.state == VmState.PAUSED else MigrationEnd.SOURCE


def _not_certain(name: str, host: MigrationStateResult, what: str) -> Failed:
    """Return the error for a VM of which a person has to say where it goes on. `host`: the one that still has it."""
    end = f"vgpuctl end-migration {shlex.quote(name)}"
    return Failed(
        f"it is not certain where {name} goes on: {what}",
        hint=f"on {host.host}: {end} --runs-here if that has the newest disks and it runs nowhere else; else {end} "
        "--runs-there",
        vm=name,
    )


def _is_half_left(source: MigrationStateResult, target: MigrationStateResult) -> bool:
    """Return whether one host has the VM, and the other one has not removed all of it."""
    has_source, has_target = (one.exists and not one.is_copy for one in (source, target))
    return (source.is_removing and has_target) or (target.is_removing and has_source)


def _runs(state: MigrationStateResult) -> bool:
    return state.exists and state.state not in (*_OFF, VmState.PAUSED)
