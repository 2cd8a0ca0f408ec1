# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller backup|restore|...`: what is done about a lost database and lost hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.command_table import CONTROLLER_COMMANDS
from vgpuctl.cli.commands.controller import (
    Where,
    at_controller,
    changes_at_controller,
    confirm,
    connect,
    make_call,
)
from vgpuctl.cli.commands.controller_desktops import changed_desktop
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Page, Pairs
from vgpuctl.errors import InvalidInput

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.model.results.fleet import (
        BackupResult,
        FleetRestoreResult,
        ImportedDesktopsResult,
        RestoredDatabaseResult,
    )

_DATABASE = click.option("--database", metavar="URL|@FILE", help="As of controller run.")
_STATE = click.option("--state", type=click.Path(file_okay=False), metavar="DIR", help="[/var/lib/vgpuctl-controller]")
_NEXT = "start the controller; then vgpuctl controller show-restore, and confirm-restore"


def _url(database: str | None, state: str | None) -> str:
    from pathlib import Path

    from vgpuctl.controller import main
    from vgpuctl.model.controller_service import STATE_DIRECTORY

    return main.database_url(database, Path(state or STATE_DIRECTORY))


def _backup_page(data: BackupResult) -> Page:
    rows = data.rows
    return Page(
        [f"{data.file}: {rows.get('pool', 0)} pools, {rows.get('desktop', 0)} desktops, {rows.get('host', 0)} hosts"],
        ["API tokens and SSH keys are not in it"],
    )


def _restored_page(data: RestoredDatabaseResult) -> Page:
    return Page([f"{data.database}: restored as {data.incarnation}; it was {data.former}"], [_NEXT])


def _restore_lines(data: FleetRestoreResult) -> tuple[str, ...]:
    lines = [f"kept from everybody: {one.desktop}: {one.why}" for one in data.kept]
    lines += [f"not in the database: {one.desktop} on {one.host}: {one.why}" for one in data.unknown]
    lines += [f"host {name} did not answer: {problem}" for name, problem in sorted(data.silent.items())]
    lines += [f"pool {name} needs its spec, and stays paused" for name in data.pools_without_spec]
    if data.waits and data.taken:
        lines += [f"people, rights and tokens are those of {data.taken}: who was disabled or lost a right since has it"]
    return tuple(lines)


def _restore_page(outcome: Any) -> Page:
    data: FleetRestoreResult = getattr(outcome, "data", outcome)
    word = "confirmed" if data.source else "the database was not restored"
    word = "waits for confirm-restore" if data.waits else word
    pairs = (
        ("state", word), ("source", data.source or "-"), ("backup of", data.taken or "-"), ("since", data.begun or "-")
    )  # fmt: skip
    former = ", ".join(data.former) or "-"
    hints = [f"vgpuctl controller accept-desktop {one.desktop}" for one in data.kept[:1]]
    hints += ["vgpuctl controller import-desktops adds those that the database does not have"] if data.unknown else []
    hints += [f"vgpuctl controller ensure-pool {name} -f FILE" for name in data.pools_without_spec[:1]]
    if data.waits and data.taken:
        hints += [f"vgpuctl controller list-{what}" for what in ("people", "entitlements", "tokens")]
    table = Pairs((*pairs, ("incarnation", data.incarnation), ("former", former)))
    return Page([table, *_restore_lines(data)], hints)


def _import_page(outcome: Any) -> Page:
    data: ImportedDesktopsResult = outcome.data
    blocks = [f"desktops: {len(data.desktops)}", f"pools without a spec, paused: {', '.join(data.pools) or '-'}"]
    blocks += [f"images: {', '.join(data.images)}"] if data.images else []
    hints = [f"left out: {problem}" for problem in data.problems]
    hints += [f"vgpuctl controller show-pool {name}; then ensure-pool {name} -f FILE" for name in data.pools]
    return Page(blocks, [*hints, *(["then vgpuctl controller confirm-restore"] if data.desktops else [])])


@make_command(
    "backup", table=CONTROLLER_COMMANDS, page=_backup_page,
    examples=(
        ("vgpuctl controller backup /var/backups/fleet.gz", "also while the controller runs"),
        ("vgpuctl controller backup fleet.gz --database @/etc/vgpuctl/database", "of PostgreSQL"),
    ),
)  # fmt: skip
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))
@_DATABASE
@_STATE
@click.pass_obj
def backup(settings: Settings, file: str, database: str | None, state: str | None) -> int:
    """Write pools, desktops, users, hosts, images and the journal to one file, which any database can be restored from.

    API tokens are left out: a restore would bring back those that were deleted since.
    """

    def work(guard: SignalGuard) -> run.CommandOutput:
        from pathlib import Path

        from vgpuctl.controller.database import backup as files
        from vgpuctl.controller.times import time_text
        from vgpuctl.model.outcome import QueryResult
        from vgpuctl.model.results.fleet import BackupResult

        made = files.write_backup(_url(database, state), Path(file))
        result = BackupResult(file, made.version, made.incarnation, time_text(made.at) or "", made.rows)
        return run.CommandOutput(QueryResult(result, changed=True))

    return run.perform(settings, "controller-backup", work)


@make_command(
    "restore", table=CONTROLLER_COMMANDS, page=_restored_page,
    examples=(
        ("vgpuctl controller restore /var/backups/fleet.gz", "into an empty database"),
        ("vgpuctl controller restore --in-place --database @/etc/vgpuctl/database", "after pg_restore"),
    ),
)  # fmt: skip
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(dir_okay=False))
@click.option("--in-place", is_flag=True, help="The database itself was restored, by pg_restore or another copy.")
@click.option("--replace", is_flag=True, help="Delete what is in the database.")
@_DATABASE
@_STATE
@click.pass_obj
def restore(
    settings: Settings, file: str | None, in_place: bool, replace: bool, database: str | None, state: str | None
) -> int:
    """Restore a database, of either kind, from a backup, while no controller runs.

    Hosts do not obey a restored database: nothing is changed there until show-restore and confirm-restore. API tokens
    must be made again.
    """

    def work(guard: SignalGuard) -> run.CommandOutput:
        import os
        from pathlib import Path

        from vgpuctl.controller import main
        from vgpuctl.controller.database import backup as files
        from vgpuctl.library.audit import process_user
        from vgpuctl.model.controller_service import STATE_DIRECTORY

        if (file is None) is not in_place or (in_place and replace):
            raise InvalidInput("specify a FILE, with --replace or without, or --in-place alone")
        url, actor = _url(database, state), process_user(os.getuid())
        if file is None:
            return _renewed(files.renew_incarnation(url, actor))
        read = files.read_backup(Path(file))
        if database is None:
            main.make_directory(Path(state or STATE_DIRECTORY))
        counts = files.count_rows(url)
        if counts and replace:
            confirm(settings, f"Delete what is in the database ({files.counts_text(counts)}), and restore {file}?")
        return _renewed(files.restore_backup(url, Path(file), actor, replace=replace), read.rows)

    return run.perform(settings, "controller-restore", work)


def _renewed(renewed: Any, rows: Any = None) -> run.CommandOutput:
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.model.results.fleet import RestoredDatabaseResult

    result = RestoredDatabaseResult(renewed.database, renewed.incarnation, renewed.former, rows or {})
    return run.CommandOutput(QueryResult(result, changed=True))


@make_command(
    "show-restore", table=CONTROLLER_COMMANDS, page=_restore_page,
    examples=(("vgpuctl controller show-restore", "which desktops somebody else has on their hosts"),),
)  # fmt: skip
@at_controller
@click.pass_obj
def show_restore(settings: Settings, where: Where) -> int:
    """Compare a restored database with what all hosts have."""
    return make_call(settings, where, "show-restore")


@make_command(
    "confirm-restore", table=CONTROLLER_COMMANDS, page=_restore_page,
    examples=(("vgpuctl controller confirm-restore", "after show-restore; hosts obey the restored database then"),),
)  # fmt: skip
@changes_at_controller
@click.pass_obj
def confirm_restore(settings: Settings, where: Where) -> int:
    """Let the fleet go on after a restore or an import: its hosts obey this database for good, and no former one.

    Floating desktops without a user are refreshed. Nobody gets a desktop that is another person's on its host.
    """

    def work(guard: SignalGuard) -> run.CommandOutput:
        client = connect(settings, *where)
        shown: FleetRestoreResult = client.call("show-restore").data
        confirm(settings, "Let the hosts obey this database from now on?", _restore_lines(shown), dry_run=where.dry_run)
        return run.CommandOutput(client.call("confirm-restore"))

    return run.perform(settings, "controller-confirm-restore", work)


@make_command(
    "import-desktops", table=CONTROLLER_COMMANDS, page=_import_page,
    examples=(("vgpuctl controller import-desktops --yes", "after add-host --lost-controller for each host"),),
)  # fmt: skip
@changes_at_controller
@click.pass_obj
def import_desktops(settings: Settings, where: Where) -> int:
    """Add the desktops that VMs of the hosts say they are, where the database is lost, or does not have them.

    Pools that the database does not have are paused until ensure-pool gives their specs. Nothing is made, removed or
    refreshed anywhere until confirm-restore.
    """

    def work(guard: SignalGuard) -> run.CommandOutput:
        confirm(
            settings,
            "Add desktops from hosts' records, and stop all work on hosts until confirm-restore?",
            dry_run=where.dry_run,
        )
        return run.CommandOutput(connect(settings, *where).call("import-desktops"))

    return run.perform(settings, "controller-import-desktops", work)


@make_command(
    "accept-desktop", table=CONTROLLER_COMMANDS, page=changed_desktop,
    examples=(("vgpuctl controller accept-desktop office-001 --yes", "whose desktop it is: as its host says"),),
)  # fmt: skip
@click.argument("name", metavar="DESKTOP")
@changes_at_controller
@click.pass_obj
def accept_desktop(settings: Settings, name: str, where: Where) -> int:
    """Let a desktop be what its VM's record says, where that contradicts the database."""

    def work(guard: SignalGuard) -> run.CommandOutput:
        client = connect(settings, *where)
        shown = client.call("show-desktop", name=name).data
        confirm(
            settings, f"Believe the host about {name}?", (shown.error,) if shown.error else (), dry_run=where.dry_run
        )
        return run.CommandOutput(client.call("accept-desktop", name=name))

    return run.perform(settings, "controller-accept-desktop", work)


COMMANDS: dict[str, click.Command] = {
    str(one.name): one for one in (backup, restore, show_restore, confirm_restore, import_desktops, accept_desktop)
}
