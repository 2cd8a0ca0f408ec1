# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller ...`: run a controller, and what all commands share that ask one."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import CONTEXT_SETTINGS, LazyGroup, make_command
from vgpuctl.cli.command_table import COMMANDS, CONTROLLER_COMMANDS
from vgpuctl.cli.global_options import Settings, global_options
from vgpuctl.cli.shown import Column, Listing, Page, Pairs, value_text
from vgpuctl.errors import FileFailed, InvalidInput, NotFound
from vgpuctl.model.controller_service import TOKEN_VARIABLE, URL_VARIABLE

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.controller.client import FleetClient
    from vgpuctl.model.results.fleet import FieldChangeResult, FleetResult
    from vgpuctl.model.results.host import AgentResult

_MAX_TOKEN_BYTES = 4096
_MAX_SPEC_BYTES = 1 << 20
_EVENTS = 200
_Command = Callable[..., int]


class Where(NamedTuple):
    """Which controller is asked: its address, and the file of a token; None: as the environment says."""

    address: str | None
    token_file: str | None
    dry_run: bool


def _change_text(change: FieldChangeResult) -> str:
    before, after = ("nothing" if one is None else one for one in (change.before, change.after))
    return f"{change.field}: {before} -> {after}"


EVENTS = Listing(
    "events",
    (
        Column("time", "TIME", lambda event: event.time),
        Column("kind", "KIND", lambda event: event.kind),
        Column("actor", "ACTOR", lambda event: event.actor),
        Column("actor_kind", "ACTOR IS", lambda event: event.actor_kind),
        Column("address", "FROM", lambda event: event.address),
        Column("text", "TEXT", lambda event: event.text, free_text=True),
        Column(
            "changed", "CHANGED", lambda event: tuple(map(_change_text, event.changed)), free_text=True, level="wide"
        ),
        Column("id", "ID", lambda event: event.id, level="wide", numeric=True),
    ),
    lambda event: str(event.id),
)


def pairs_page(data: Any, *names: str) -> Page:
    """Return the page with some fields of a result, one a line."""
    items = [(name.replace("_", " "), value_text(getattr(data, name))) for name in names]
    return Page([Pairs(tuple((name, "-" if value in ("None", "") else value) for name, value in items))])


def _fleet_page(data: FleetResult) -> Page:
    return pairs_page(data, "version", "caller", "role", "incarnation", "holder", "pools", "hosts", "desktops")


def _run_page(data: AgentResult) -> Page:
    return Page(stderr_lines=[f"the controller at {data.socket} has ended"])


def changed_page(data: Any, text: str, *stderr: str) -> Page:
    """Return the page of a change, which a dry run did not make."""
    if data.dry_run:
        return Page([f"would change: {text}" if data.changed else text])
    return Page([text], list(stderr))


def connect(
    settings: Settings, address: str | None, token_file: str | None, dry_run: bool, *, as_person: bool = False
) -> FleetClient:
    """Return the controller that the options or the environment name. `as_person`: somebody signs in there.

    Raises:
        InvalidInput, FileFailed: they are wrong, or the token cannot be read.
    """
    from vgpuctl.controller import client
    from vgpuctl.regular_file import read_regular_file

    url = address or os.environ.get(URL_VARIABLE) or None
    if settings.is_remote or settings.host != "local" or settings.root != "/":
        raise InvalidInput("a controller is named by --controller, not by --host", hint=f"or by {URL_VARIABLE}")
    if as_person:
        return client.connect(url, as_person=True)
    path = token_file or os.environ.get(TOKEN_VARIABLE)
    token = None
    if path:
        try:
            token = read_regular_file(path, _MAX_TOKEN_BYTES).decode("ascii").strip()
        except FileNotFoundError as error:
            raise NotFound(f"there is no token file {path}", hint=f"--token-file FILE, or {TOKEN_VARIABLE}") from error
        except (OSError, ValueError) as error:
            raise FileFailed(f"the token's file {path} cannot be read: {error}", path=path) from error
    return client.connect(url, token, dry_run=dry_run)


def make_call(settings: Settings, where: Where, call: str, /, **arguments: Any) -> int:
    """Make a call of the controller's API, and print its result."""

    def work(guard: SignalGuard) -> run.CommandOutput:
        return run.CommandOutput(connect(settings, *where).call(call, **arguments))

    return run.perform(settings, f"controller-{call}", work)


def confirm(settings: Settings, question: str, details: tuple[str, ...] = (), *, dry_run: bool = False) -> None:
    """Return normally if the user, or --yes, says yes; nobody is asked for a dry run.

    Raises:
        NeedsConfirmation: the answer is no, or there is no user to ask.
    """
    from vgpuctl.cli import progress

    if not dry_run:
        progress.ConfirmationPrompt(settings)(question, details)


def at_controller(function: _Command) -> _Command:
    """Add the options that say which controller is asked; the command gets them as `where`."""
    from functools import wraps

    @wraps(function)
    def command(*args: Any, **kwargs: Any) -> int:
        where = Where(kwargs.pop("controller"), kwargs.pop("token_file"), kwargs.pop("dry_run", False))
        return function(*args, where=where, **kwargs)

    decorated: _Command = click.option(
        "--token-file", metavar="FILE", type=click.Path(dir_okay=False), help=f"The API token. [{TOKEN_VARIABLE}]"
    )(command)
    return click.option(
        "--controller",
        metavar="URL",
        help=f"https://HOST[:PORT], or an absolute path of a socket. [{URL_VARIABLE}, else this machine's]",
    )(decorated)


def changes_at_controller(function: _Command) -> _Command:
    """Add the options of `at_controller`, and --dry-run."""
    option = click.option("--dry-run", is_flag=True, help="Only check, and show what would change.")
    decorated: _Command = option(at_controller(function))
    return decorated


@make_command(
    "run",
    table=CONTROLLER_COMMANDS,
    page=_run_page,
    examples=(
        ("vgpuctl controller run", "what vgpuctl-controller.service does"),
        ("vgpuctl controller run --database @/etc/vgpuctl/database", "PostgreSQL; the file has the URL"),
    ),
)
@click.option(
    "--database",
    metavar="URL|@FILE",
    help="sqlite:////PATH or postgresql://USER@HOST/NAME; @FILE has the URL. [SQLite in the state directory]",
)
@click.option("--state", type=click.Path(file_okay=False), metavar="DIR", help="[/var/lib/vgpuctl-controller]")
@click.option(
    "--socket", "path", type=click.Path(dir_okay=False), metavar="PATH",
    help="Where admins of this machine connect. [/run/vgpuctl-controller/controller.sock]",
)  # fmt: skip
@click.option("--listen", metavar="ADDRESS:PORT", help="Serve the API there, too; other than loopback with TLS.")
@click.option("--tls-certificate", metavar="FILE", type=click.Path(dir_okay=False), help="For --listen: PEM.")
@click.option("--tls-key", metavar="FILE", type=click.Path(dir_okay=False), help="For --listen: PEM.")
@click.option(
    "--trusted-proxy", "proxies", metavar="NET", multiple=True,
    help="For --listen: believe a reverse proxy at this address, or in this network, where requests come from.",
)  # fmt: skip
@click.option("--sign-in", metavar="FILE", type=click.Path(dir_okay=False), help="sign-in.yaml: OIDC and LDAP.")
@click.option("--rdp-certificate", metavar="FILE", type=click.Path(dir_okay=False), help="PEM: signs users' RDP files.")
@click.option("--rdp-key", metavar="FILE", type=click.Path(dir_okay=False), help="For --rdp-certificate: PEM.")
@click.option("--event-days", metavar="N", type=click.IntRange(7, 3650), help="Events are kept so long. [90]")
@click.option("--events", metavar="N", type=click.IntRange(1000), help="At most so many, but all of 7 days. [1000000]")
@click.pass_obj
def run_controller(
    settings: Settings,
    database: str | None,
    state: str | None,
    path: str | None,
    listen: str | None,
    tls_certificate: str | None,
    tls_key: str | None,
    proxies: tuple[str, ...],
    sign_in: str | None,
    rdp_certificate: str | None,
    rdp_key: str | None,
    event_days: int | None,
    events: int | None,
) -> int:
    """Run a controller until SIGTERM or Ctrl-C, as an ordinary user.

    It reaches the agents of its hosts by ssh, with the keys and ssh_config of its user, or by the socket of this
    machine's agent. Hosts and desktops go on without it. On PostgreSQL several controllers can run; SQLite serves one.
    """

    def work(guard: SignalGuard) -> run.CommandOutput:
        from vgpuctl.controller import main
        from vgpuctl.controller.model import JournalLimits
        from vgpuctl.controller.rdp_signing import RdpSigner
        from vgpuctl.model.outcome import QueryResult
        from vgpuctl.model.results.host import AgentResult

        guard.restore_handlers()
        if listen is None and (tls_certificate or tls_key or proxies):
            raise InvalidInput("--tls-certificate, --tls-key and --trusted-proxy need --listen")
        port = None if listen is None else main.parse_listen(listen, tls_certificate, tls_key, proxies)
        if (rdp_certificate is None) is not (rdp_key is None):
            raise InvalidInput("--rdp-certificate and --rdp-key belong together")
        signer = None if rdp_certificate is None or rdp_key is None else RdpSigner(rdp_certificate, rdp_key)
        limits = JournalLimits(event_days or JournalLimits.days, events or JournalLimits.entries)
        ended = main.run(
            database=database, state=state, path=path, listen=port, limits=limits, sign_in=sign_in, signer=signer
        )
        return run.CommandOutput(QueryResult(AgentResult(ended)))

    return run.perform(settings, "controller-run", work)


@make_command(
    "upgrade-db",
    table=CONTROLLER_COMMANDS,
    page=lambda data: changed_page(data, f"{data.data.database}: its tables are those of this version"),
    examples=(
        ("vgpuctl controller upgrade-db --database @/etc/vgpuctl/database", "before the first run, and updates"),
    ),
)
@click.option("--database", metavar="URL|@FILE", help="As of controller run.")
@click.option("--state", type=click.Path(file_okay=False), metavar="DIR", help="[/var/lib/vgpuctl-controller]")
@click.option("--dry-run", is_flag=True, help="Only show whether it would change.")
@click.pass_obj
def upgrade_db(settings: Settings, database: str | None, state: str | None, dry_run: bool) -> int:
    """Make the tables of a database, or bring those of an older vgpuctl to this version. Stop all controllers first."""

    def work(guard: SignalGuard) -> run.CommandOutput:
        from pathlib import Path

        from vgpuctl.controller import main
        from vgpuctl.controller.database import engine, store
        from vgpuctl.model.controller_service import STATE_DIRECTORY
        from vgpuctl.model.outcome import Outcome
        from vgpuctl.model.results.fleet import DatabaseResult

        url = main.database_url(database, Path(state or STATE_DIRECTORY))
        changed = store.upgrade(url, dry_run=dry_run)
        return run.CommandOutput(Outcome(changed, DatabaseResult(engine.Database(url).name), dry_run=dry_run))

    return run.perform(settings, "controller-upgrade-db", work)


@make_command(
    "show-fleet", table=CONTROLLER_COMMANDS, page=_fleet_page,
    examples=(("vgpuctl controller show-fleet", "whether a token works, and what it allows"),),
)  # fmt: skip
@at_controller
@click.pass_obj
def show_fleet(settings: Settings, where: Where) -> int:
    """Show which controller answers, and what you may do there."""
    return make_call(settings, where, "show-fleet")


@make_command(
    "list-events", table=CONTROLLER_COMMANDS, listing=EVENTS,
    examples=(
        ("vgpuctl controller list-events", "the last 200: who did what, and what failed"),
        ("vgpuctl controller list-events --desktop office-001", "the last 200 about it"),
        ("vgpuctl controller list-events -o wide", "with what was changed: before and after"),
    ),
)  # fmt: skip
@click.option("--after", metavar="ID", type=click.IntRange(0), help="Only those after this one.")
@click.option("--limit", metavar="N", type=click.IntRange(1, 1000), help="So many at most. [200]")
@click.option("--desktop", metavar="DESKTOP", help="Only those about this desktop.")
@click.option("--pool", metavar="POOL", help="Only those about this pool.")
@click.option("--on", "host", metavar="HOST", help="Only those about this host.")
@click.option("--kind", metavar="KIND", help="Only those of this kind, such as assigned.")
@click.option("--person", metavar="PERSON", help="Only those by or about this person.")
@at_controller
@click.pass_obj
def list_events(settings: Settings, /, after: int | None, limit: int | None, where: Where, **chosen: str | None) -> int:
    """Show the fleet's journal, the newest last: who did what, and what failed."""
    if not any(chosen.values()):
        return make_call(settings, where, "list-events", after=after, limit=limit)
    if after is not None:
        raise click.UsageError("--after shows all new events: leave out the other options, or --after")

    def work(guard: SignalGuard) -> run.CommandOutput:
        from vgpuctl.model.outcome import QueryResult

        rows = connect(settings, *where).call("find-events", limit=limit or _EVENTS, **chosen).data
        return run.CommandOutput(QueryResult(tuple(reversed(rows))))

    return run.perform(settings, "controller-list-events", work)


_COMMANDS: dict[str, click.Command] = {
    str(one.name): one
    for one in (
        run_controller, upgrade_db, show_fleet, list_events,
    )
}  # fmt: skip


def _load(name: str) -> click.Command:
    """Return a command: one of this module, or of the one that the table names."""
    module = CONTROLLER_COMMANDS[name].module
    if module == "controller":
        return _COMMANDS[name]
    loaded: click.Command = import_module(f"vgpuctl.cli.commands.{module}").COMMANDS[name]
    return loaded


command = LazyGroup(
    "controller",
    headings={"Commands": {name: entry.summary for name, entry in CONTROLLER_COMMANDS.items()}},
    load=_load,
    help="Pools of desktops on many hosts: the controller, and what it is asked.",
    short_help=COMMANDS["controller"].summary,
    examples=(("vgpuctl controller run --help", "how it is run"),),
    params=global_options(),
    context_settings=CONTEXT_SETTINGS,
    subcommand_metavar="COMMAND",
)
