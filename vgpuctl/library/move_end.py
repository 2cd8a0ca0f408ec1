# SPDX-License-Identifier: Apache-2.0
"""End a move that was interrupted, or that its driver stopped, by the calls of both hosts, or of one alone.

Where the VM goes on is `plans.migration_end`'s to decide, from what the hosts have. It runs on one host at most at
every instant, and nothing of it is removed from a host before it is certain that the other one has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import Busy, HostCannot, LibvirtFailed, NotFound, Refused
from vgpuctl.model.hint_commands import end_migration_command
from vgpuctl.model.migration import SOURCE_ROLES, MigrationRole
from vgpuctl.model.outcome import Outcome, confirm_everything
from vgpuctl.model.results.migration import EndedMigrationResult
from vgpuctl.model.vm import VmState
from vgpuctl.operations.plans.migration_end import (
    LETS_GO,
    RUNS_HERE,
    RUNS_THERE,
    MigrationEnd,
    decide_end,
    has_sent_state,
    loses_running_state,
    lost_alone,
    state_after,
)

if TYPE_CHECKING:
    from vgpuctl.library.migration import MigrationCalls
    from vgpuctl.model.outcome import Confirm
    from vgpuctl.model.results.migration import MigrationStateResult


def finish_here(
    host: MigrationCalls, uuid: str, migration_id: str, seen: str | None = None, *, dry_run: bool = False
) -> bool:
    """Have a VM run on a host from now on; return whether something changed.

    Raises:
        Busy: it is not there any more. Then nothing of it may be removed from the other host.
    """
    done = host.finish_migration(uuid, migration_id=migration_id, outcome=RUNS_HERE, seen=seen, dry_run=dry_run)
    if done.data.outcome != RUNS_HERE:
        raise Busy(
            f"{done.data.host} has nothing any more of the move of {done.data.name}: another program ended it there",
            hint="run the command again",
            vm=done.data.name,
        )
    return done.changed


def settle(
    source: MigrationCalls,
    target: MigrationCalls,
    name: str,
    *,
    peer: str | None = None,
    confirm: Confirm | None = None,
    dry_run: bool = False,
) -> EndedMigrationResult:
    """End a move on both hosts, wherever it was interrupted; where there is none, nothing changes.

    The VM runs on the target before anything of it is removed from the source. Where that has it paused, it is off
    there first, so that it never runs on both. A removal that was interrupted is finished. `peer`: the target's name
    for errors. `confirm` is asked before its running state, which waits on the target, is given up; without it that is
    refused.

    Raises:
        Busy: libvirt is moving it now, it is in a move with a third host, or nobody may be asked.
        Failed: it runs on both, or on neither and not all of it has come.
        VgpuctlError: a host does not answer; nothing runs that did not run before.
    """
    here, there = show_both(source, target, name, peer)
    end, uuid = decide_end(here, there), here.uuid or there.uuid
    goes_on = there if end is MigrationEnd.TARGET or (end is MigrationEnd.NONE and not here.exists) else here
    lost_on = there.host if loses_running_state(end, here, there) else None
    if lost_on is not None and not dry_run:
        _ask_to_lose(here, there, confirm)
    changed = False
    removed: tuple[str, ...] = ()
    if end is not MigrationEnd.NONE and uuid is not None:
        changed, removed = _end_on_both((source, here), (target, there), uuid, end, dry_run=dry_run)
    return EndedMigrationResult(
        here.name if here.exists else there.name,
        uuid,
        here.host,
        there.host,
        end.value,
        changed,
        state=state_after(goes_on),
        removed=removed,
        lost_on=lost_on,
    )


def _end_on_both(
    source: tuple[MigrationCalls, MigrationStateResult],
    target: tuple[MigrationCalls, MigrationStateResult],
    uuid: str,
    end: MigrationEnd,
    *,
    dry_run: bool,
) -> tuple[bool, tuple[str, ...]]:
    """End a move as it was decided, first where the VM goes on; return whether something changed, and what was removed.

    `source`, `target`: each host with what it has of the VM.
    """
    changed = False
    removed: tuple[str, ...] = ()
    from_host, here = source
    if end is MigrationEnd.TARGET and here.state == VmState.PAUSED and not dry_run:
        done = from_host.finish_migration(uuid, migration_id=here.id or "", outcome=LETS_GO, seen=here.seen)
        changed, removed = done.changed, done.steps
        source = (from_host, from_host.show_migration(uuid).data)
    (host, known), (other, left) = (target, source) if end is MigrationEnd.TARGET else (source, target)
    if known.id is not None or known.is_removing:
        changed |= finish_here(host, uuid, known.id or "", known.seen, dry_run=dry_run)
    if left.id is not None or left.is_removing:
        done = other.finish_migration(
            uuid, migration_id=left.id or "", outcome=RUNS_THERE, seen=left.seen, dry_run=dry_run
        )
        changed, removed = changed or done.changed, (*removed, *done.steps)
    return changed, removed


def _ask_to_lose(here: MigrationStateResult, there: MigrationStateResult, confirm: Confirm | None) -> None:
    """Ask before a VM's running state on the target is given up. `here`: its source, where it is off.

    Raises:
        Busy: nobody may be asked.
    """
    name = here.name
    facts = f"{name} is off on {here.host}; what it had in its memory came to {there.host}, where it waits, paused"
    if confirm is None:
        raise Busy(
            f"{facts}: to end the earlier move loses that",
            hint=f"{end_migration_command(name, there.host)} asks about that",
            vm=name,
        )
    confirm(
        f"Give up what {name} has in its memory? {facts}. Then start-vm boots it from its disks on {here.host}.", ()
    )


def show_both(
    source: MigrationCalls, target: MigrationCalls, name: str, peer: str | None = None
) -> tuple[MigrationStateResult, MigrationStateResult]:
    """Return what both hosts have of a VM.

    Raises:
        Refused: they are one host.
        Busy: it is in a move with a third host, or in one the other way: its end is not for these two to decide so.
    """
    here = source.show_migration(name).data
    try:
        there = target.show_migration(here.uuid or name).data
    except (HostCannot, LibvirtFailed) as error:
        if peer is not None:
            error.message = f"on {peer}: {error.message}"
            error.hint = None if error.hint is None else f"on {peer}: {error.hint}"
        raise
    if here.machine_id == there.machine_id:
        raise Refused(
            f"both hosts have the machine id {here.machine_id}: they are one host, or copies of one image",
            hint="name another host; if one was cloned from the other, give the clone an id of its own (rm "
            "/etc/machine-id, then systemd-machine-id-setup) and restart it",
            machine_id=here.machine_id,
        )
    for one, other, roles in (
        (here, there, SOURCE_ROLES),
        (there, here, frozenset(MigrationRole) - SOURCE_ROLES),
    ):
        if one.role is None or (one.role in roles and one.peer_machine_id in (None, other.machine_id)):
            continue
        ends = (one.host, one.peer) if one.role in SOURCE_ROLES else (one.peer, one.host)
        end = end_migration_command(one.name, one.peer or "", on=one.host)
        raise Busy(
            f"{one.name} moves from {ends[0]} to {ends[1]}, or that move was interrupted",
            hint=f"if no migrate-vm works on it any more: {end}; "
            "where that host is gone for good, or was installed again: with --runs-here or --runs-there",
            vm=one.name,
            peer=one.peer,
        )
    return here, there


def settle_with(
    this: MigrationCalls,
    other: MigrationCalls,
    name: str,
    *,
    confirm: Confirm = confirm_everything,
    dry_run: bool = False,
) -> Outcome[EndedMigrationResult]:
    """End a move between this host and another one, whichever of the two is its source. `confirm`: as for `settle`.

    Raises:
        NotFound: neither host has such a VM, nor anything of its move.
        VgpuctlError: as `settle`.
    """
    here = this.show_migration(name).data
    there = other.show_migration(here.uuid or name).data
    if not any(one.exists or one.role is not None or one.is_removing for one in (here, there)):
        raise NotFound(f"there is no VM {name} on {here.host} and {there.host}", hint="vgpuctl list-vms", vm=name)
    is_source = here.role in SOURCE_ROLES or (here.role is None and there.role not in SOURCE_ROLES)
    source, target = (this, other) if is_source else (other, this)
    settled = settle(source, target, here.uuid or name, confirm=confirm, dry_run=dry_run)
    return Outcome(settled.changed, settled, dry_run=dry_run)


def settle_alone(
    this: MigrationCalls, name: str, outcome: str, *, confirm: Confirm, dry_run: bool = False
) -> Outcome[EndedMigrationResult]:
    """End a move on this host alone, since its caller knows where the VM runs, and the other host is gone.

    What is not possible here is refused before anybody is asked, and the question says what is lost.

    Raises:
        NotFound: there is no move of such a VM here.
        VgpuctlError: it is not possible here, as `finish_migration` says.
    """
    here = this.show_migration(name).data
    if here.id is None:
        raise NotFound(f"no move of {name} was interrupted on this host", hint="vgpuctl list-vms", vm=name)
    peer, uuid = here.peer or "the other host", here.uuid or name
    done = this.finish_migration(uuid, migration_id=here.id, outcome=outcome, seen=here.seen, dry_run=True)
    if not dry_run:
        confirm(_question_alone(here, peer, outcome), ())
        done = this.finish_migration(uuid, migration_id=here.id, outcome=outcome, seen=here.seen)
    is_source, runs_here = here.role in SOURCE_ROLES, outcome == RUNS_HERE
    hosts = (here.host, peer) if is_source else (peer, here.host)
    data = EndedMigrationResult(
        here.name,
        here.uuid,
        *hosts,
        (MigrationEnd.SOURCE if is_source is runs_here else MigrationEnd.TARGET).value,
        done.changed,
        asked_both=False,
        not_asked=peer,
        state=state_after(here) if runs_here else None,
        removed=() if runs_here else done.steps,
        lost_on=lost_alone(here, outcome),
    )
    return Outcome(done.changed, data, done.steps, done.warnings, done.notes, dry_run)


def _question_alone(here: MigrationStateResult, peer: str, outcome: str) -> str:
    """Return what a person has to be sure of who ends a move on one host alone, and what is lost by that."""
    if outcome == RUNS_THERE:
        removed = f"{here.name} is removed from this host{', with its disks' if here.copies_disks else ''}"
        lost = f" It is paused here: what it has in its memory here is lost, unless {peer} has that, too."
        return f"Does {peer} certainly have {here.name}? {removed}.{lost if here.state == VmState.PAUSED else ''}"
    sure = f"Is {here.name} certainly not running on {peer}? If it is, both write to its disks and destroy them."
    if lost_alone(here, outcome) is None:
        return sure
    sent = "was sent" if has_sent_state(here) else "may have been sent"
    lost = f"What it had in its memory {sent} to {peer}, and is lost if you go on: start-vm boots it from its disks."
    return f"{here.name} is off here. {lost} {sure}"
