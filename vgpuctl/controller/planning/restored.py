# SPDX-License-Identifier: Apache-2.0
"""A database that was restored or imported: what hosts have of its desktops is of a former incarnation, and newer.

Nothing is changed on hosts until an admin confirms it. Then a row follows its VM's record: its generation is raised to
the record's. A record that names another person than the row contradicts it: nobody gets that desktop until an admin
accepts what the host has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from vgpuctl.controller.model import Desktop, DesktopReport, FleetHost, Pool, PoolKind
from vgpuctl.controller.planning.host_look import HostVm, names_another
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.value import Value, replace

RESTORED = "the database was restored: see vgpuctl controller show-restore, then confirm-restore"
"""Why hosts are held until a restore or an import is confirmed."""


class RecordOfDesktop(Value):
    """What a host's VM says of a desktop, where the database says something else. `why`: for people."""

    host: str
    vm: str
    mark: DesktopMark
    why: str


class Comparison(Value):
    """`kept`: desktops whose VM is another person's than their row says, or was moved to another host since.

    `unknown`: VMs that no row is about.
    """

    kept: tuple[RecordOfDesktop, ...] = ()
    unknown: tuple[RecordOfDesktop, ...] = ()


def doubted(desktop: Desktop, pool: Pool) -> Desktop:
    """Return a row of a restored database as it begins again: what its host said before counts no more.

    A floating desktop without a user counts as dirty: its generation grows, so it is refreshed before anybody gets it.
    """
    report = desktop.report
    if report is not None:
        report = replace(report, ready=False, user=None, code=None, error=None, hint=None, record_generation=None)
    counts_as_dirty = pool.spec.kind is PoolKind.FLOATING and desktop.user is None
    return replace(
        desktop,
        report=report,
        generation=desktop.generation + counts_as_dirty,
        handed_out=False,
        errors=0,
        not_before=0.0,
    )


def raised_generation(desktop: Desktop, mark: DesktopMark, pool: Pool | None, former: Collection[str]) -> int | None:
    """Return the generation that a row needs so that its VM's record of a former incarnation is not newer.

    None: it needs none. A floating desktop without a user needs a higher one, because it counts as dirty; so does one
    whose record is nobody's any more, because a record of one generation is of one user.
    """
    if mark.incarnation not in former or names_another(desktop, mark):
        return None
    is_floating = pool is not None and pool.spec.kind is PoolKind.FLOATING
    must_exceed = (is_floating and desktop.user is None) or mark.user != desktop.user
    if mark.generation < desktop.generation or (mark.generation == desktop.generation and not must_exceed):
        return None
    return mark.generation + must_exceed


def compare(
    rows: Mapping[str, Desktop], vms: Iterable[tuple[FleetHost, HostVm]], incarnations: Collection[str]
) -> Comparison:
    """Compare the desktops' rows, by id, with the marked VMs of the hosts.

    `incarnations`: the database's own and its former ones; other databases' VMs are not looked at.
    """
    kept, unknown = [], []
    for host, vm in vms:
        mark = vm.mark
        if mark is None or mark.incarnation not in incarnations:
            continue
        row = rows.get(mark.id)
        if row is None:
            whose = "nobody's" if mark.user is None else f"{mark.user}'s"
            unknown.append(RecordOfDesktop(host.name, vm.name, mark, f"a desktop of pool {mark.pool}, {whose}"))
        elif names_another(row, mark):
            text = f"on {host.name} it is {mark.user}'s, and in the database {row.user or 'nobody'}'s"
            kept.append(RecordOfDesktop(host.name, row.name, mark, text))
        elif row.host_id not in (None, host.id) and mark.generation > row.generation:
            text = (
                f"it was moved to {host.name} after this backup: before confirm-restore delete the VM of its former "
                "host with --keep-disks, or both write to its disks"
            )
            kept.append(RecordOfDesktop(host.name, row.name, mark, text))
    return Comparison(tuple(kept), tuple(unknown))


def how_to_go_on(host: str) -> str:
    """Return what an admin does where a host obeys another database, or knows more than this one."""
    return (
        "if this database is an older copy: stop this controller, vgpuctl controller restore --in-place, start it, "
        "vgpuctl controller confirm-restore; if another controller uses a copy of it: stop that one, then vgpuctl "
        f"controller accept-host {host}"
    )


def record_of(report: DesktopReport | None) -> tuple[str | None, int] | None:
    """Return user and generation of the record that contradicts a row; None: none does."""
    if report is None or report.record_generation is None:
        return None
    return report.record_user, report.record_generation
