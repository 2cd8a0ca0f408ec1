# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller ...`: run a controller, and ask one. Each command but run and upgrade-db is a call of its API.

Size: one short command for each call.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import CONTEXT_SETTINGS, LazyGroup, make_command
from vgpuctl.cli.command_table import COMMANDS, CONTROLLER_COMMANDS
from vgpuctl.cli.global_options import Settings, global_options
from vgpuctl.cli.shown import Column, Listing, Page, Pairs, value_text
from vgpuctl.errors import FileFailed, InvalidInput
from vgpuctl.model.controller_service import TOKEN_VARIABLE, URL_VARIABLE

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.controller.client import FleetClient
    from vgpuctl.model.results.fleet import (
        FieldChangeResult,
        FleetHostResult,
        FleetImageResult,
        FleetResult,
        PoolResult,
    )
    from vgpuctl.model.results.host import AgentResult

_MAX_TOKEN_BYTES = 4096
_MAX_SPEC_BYTES = 1 << 20
_Command = Callable[..., int]


class Where(NamedTuple):
    """Which controller is asked: its address, and the file of a token; None: as the environment says."""

    address: str | None
    token_file: str | None
    dry_run: bool


POOLS = Listing(
    "pools",
    (
        Column("name", "NAME", lambda pool: pool.name),
        Column("kind", "KIND", lambda pool: pool.kind),
        Column("state", "STATE", lambda pool: pool.state, is_state=True),
        Column("image", "IMAGE", lambda pool: pool.image),
        Column("profiles", "PROFILE", lambda pool: pool.profiles),
        Column("ready", "READY", lambda pool: pool.ready, numeric=True),
        Column("assigned", "ASSIGNED", lambda pool: pool.assigned, numeric=True),
        Column("desktops", "DESKTOPS", lambda pool: pool.desktops, numeric=True),
        Column("maximum", "MAXIMUM", lambda pool: pool.maximum, numeric=True),
        Column("reason", "REASON", lambda pool: pool.reason, free_text=True, optional=True),
    ),
    lambda pool: str(pool.name),
)
HOSTS = Listing(
    "hosts",
    (
        Column("name", "NAME", lambda host: host.name),
        Column("state", "STATE", lambda host: "held" if host.held else host.state, is_state=True),
        Column("desktops", "DESKTOPS", lambda host: host.desktops, numeric=True),
        Column("seen", "SEEN", lambda host: host.seen),
        Column("labels", "LABELS", lambda host: tuple(f"{key}={value}" for key, value in host.labels.items())),
        Column("address", "ADDRESS", lambda host: host.address),
        Column("agent", "AGENT", lambda host: host.agent_version, level="wide"),
        Column("driver", "DRIVER", lambda host: host.driver, level="wide"),
        Column("holder", "CONTROLLER", lambda host: host.holder, level="wide"),
        Column("problem", "PROBLEM", lambda host: host.held or host.problem, free_text=True, optional=True),
    ),
    lambda host: str(host.name),
)


def _host_states(image: FleetImageResult) -> tuple[str, ...]:
    """Return on how many hosts an image is in each state."""
    counts = Counter(text.partition(" ")[0].rstrip(":") for text in image.hosts.values())
    return tuple(f"{count} {state}" for state, count in sorted(counts.items()))


IMAGES = Listing(
    "images",
    (
        Column("name", "NAME", lambda image: image.name),
        Column("version", "VERSION", lambda image: image.version),
        Column("os", "OS", lambda image: image.os),
        Column("pools", "POOLS", lambda image: image.pools),
        Column("hosts", "HOSTS", _host_states),
        Column("path", "PATH", lambda image: image.path, level="wide"),
        Column("retired", "RETIRED", lambda image: image.retired, level="wide"),
    ),
    lambda image: str(image.name),
)


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


def _pool_page(data: PoolResult) -> Page:
    page = pairs_page(
        data, "name", "kind", "state", "reason", "image", "profiles", "maximum", "spare", "desktops", "ready",
        "assigned", "counts",
    )  # fmt: skip
    return Page([*page.blocks, "", *_spec_lines(data)])


def _spec_lines(data: PoolResult) -> list[str]:
    from vgpuctl.cli import document

    return document.text({"spec": data.spec}, "yaml").splitlines()


def _changed_pool(data: Any) -> Page:
    pool: PoolResult = data.data
    return changed_page(data, f"pool {pool.name}: {pool.state if data.changed else 'unchanged'}")


def _host_page(data: FleetHostResult) -> Page:
    return pairs_page(
        data, "name", "address", "state", "held", "problem", "labels", "desktops", "running", "machine_id", "host_key",
        "agent_version", "driver", "holder", "seen", "offers", "images",
    )  # fmt: skip


def changed_host(data: Any) -> Page:
    """Return the page of a host that was changed."""
    host: FleetHostResult = data.data
    return changed_page(data, f"host {host.name}: {'held: ' + host.held if host.held else host.state}")


def _image_page(data: FleetImageResult) -> Page:
    return pairs_page(
        data, "name", "version", "os", "file", "url", "path", "bytes", "sha256", "retired", "pools", "hosts"
    )  # fmt: skip


def _changed_image(data: Any) -> Page:
    image: FleetImageResult = data.data
    return changed_page(data, f"image {image.name}: {image.path}" if data.changed else f"image {image.name}: unchanged")


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
        help=f"https://HOST[:PORT], or the path of a socket. [{URL_VARIABLE}, else this machine's]",
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
    "add-host", table=CONTROLLER_COMMANDS, page=changed_host,
    examples=(
        ("vgpuctl controller add-host gpu01 local", "the agent of this machine"),
        ("vgpuctl controller add-host gpu02 ssh://fleet@gpu02 --label site=berlin", "another one, whose key is known"),
    ),
)  # fmt: skip
@click.argument("name", metavar="NAME")
@click.argument("address", metavar="local|ssh://USER@HOST[:PORT]")
@click.option("--host-key", metavar="SHA256:...", help="The host's SSH key; without it, the one in known_hosts.")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Pools choose hosts by labels; repeatable.")
@click.option(
    "--lost-controller", is_flag=True, help="It obeys a controller whose database is lost; see import-desktops."
)
@changes_at_controller
@click.pass_obj
def add_host(
    settings: Settings,
    name: str,
    address: str,
    host_key: str | None,
    labels: tuple[str, ...],
    lost_controller: bool,
    where: Where,
) -> int:
    """Add a host to the fleet. Its agent must answer; its account has fleet in the host's agent: accounts:."""
    return make_call(
        settings, where, "add-host", name=name, address=address, host_key=host_key, labels=_labels(labels),
        lost_controller=lost_controller or None,
    )  # fmt: skip


def _labels(texts: tuple[str, ...]) -> dict[str, str]:
    from vgpuctl.config import labels

    return labels.parse_selector(texts, "label") if texts else {}


@make_command(
    "list-hosts", table=CONTROLLER_COMMANDS, listing=HOSTS,
    examples=(("vgpuctl controller list-hosts -o wide", "with versions, and the controller that has each"),),
)  # fmt: skip
@at_controller
@click.pass_obj
def list_hosts(settings: Settings, where: Where) -> int:
    """List the hosts of the fleet."""
    return make_call(settings, where, "list-hosts")


@make_command(
    "show-host", table=CONTROLLER_COMMANDS, page=_host_page,
    examples=(("vgpuctl controller show-host gpu01", "its key, and how many more vGPUs of each profile it has"),),
)  # fmt: skip
@click.argument("name", metavar="HOST")
@at_controller
@click.pass_obj
def show_host(settings: Settings, name: str, where: Where) -> int:
    """Show one host."""
    return make_call(settings, where, "show-host", name=name)


def _host_command(name: str, help_text: str, example: str, question: str | None = None) -> click.Command:
    """Return a command that changes one host."""

    def function(settings: Settings, name_: str, where: Where) -> int:
        if question is None:
            return make_call(settings, where, name, name=name_)

        def work(guard: SignalGuard) -> run.CommandOutput:
            confirm(settings, question.format(name_), dry_run=where.dry_run)
            return run.CommandOutput(connect(settings, *where).call(name, name=name_))

        return run.perform(settings, f"controller-{name}", work)

    function.__doc__ = help_text
    with_options = click.argument("name_", metavar="HOST")(changes_at_controller(click.pass_obj(function)))
    decorate = make_command(
        name, table=CONTROLLER_COMMANDS, page=changed_host, examples=((f"vgpuctl controller {name} gpu01", example),)
    )
    return decorate(with_options)


cordon_host = _host_command("cordon-host", "Make no new desktops on a host; those there stay.", "before work on it")
remove_host = _host_command(
    "remove-host", "Remove a host without desktops from the fleet.", "after drain-host", "Remove host {}?"
)


@make_command(
    "accept-host", table=CONTROLLER_COMMANDS, page=changed_host,
    examples=(("vgpuctl controller accept-host gpu01", "after you have looked why it is held"),),
)  # fmt: skip
@click.argument("name", metavar="HOST")
@click.option("--host-key", metavar="SHA256:...", help="Its new SSH key, where that is why it is held.")
@at_controller
@click.pass_obj
def accept_host(settings: Settings, name: str, host_key: str | None, where: Where) -> int:
    """Let a held host go on as it is now: it is another machine, has another driver or key, or lost its fence."""

    def work(guard: SignalGuard) -> run.CommandOutput:
        confirm(settings, f"Host {name} is trusted as it is now. Accept it?", dry_run=where.dry_run)
        return run.CommandOutput(connect(settings, *where).call("accept-host", name=name, host_key=host_key))

    return run.perform(settings, "controller-accept-host", work)


@make_command(
    "label-host", table=CONTROLLER_COMMANDS, page=changed_host,
    examples=(("vgpuctl controller label-host gpu01 site=berlin rack=7", "these are all of its labels then"),),
)  # fmt: skip
@click.argument("name", metavar="HOST")
@click.argument("labels", nargs=-1, metavar="[KEY=VALUE]...")
@changes_at_controller
@click.pass_obj
def label_host(settings: Settings, name: str, labels: tuple[str, ...], where: Where) -> int:
    """Set all labels of a host; without any, it has none."""
    return make_call(settings, where, "label-host", name=name, labels=_labels(labels))


@make_command(
    "ensure-image", table=CONTROLLER_COMMANDS, page=_changed_image,
    examples=(
        ("vgpuctl controller ensure-image office --file office-11.qcow2", "the controller sends it to the hosts"),
        (
            "vgpuctl controller ensure-image office --url https://images.example.org/office.qcow2 --sha256 DIGITS",
            "each host fetches it",
        ),
        ("vgpuctl controller ensure-image office --path /srv/shared/office-11.qcow2", "storage that hosts share"),
    ),
)  # fmt: skip
@click.argument("name", metavar="NAME")
@click.option("--file", metavar="FILE", type=click.Path(dir_okay=False), help="A qcow2 or raw image of this machine.")
@click.option("--url", metavar="URL", help="Where each host fetches it: https, below its agent: allow: image_urls.")
@click.option("--path", metavar="PATH", help="Where each host has it already; nobody copies it.")
@click.option("--folder", metavar="FOLDER", help="Of copies on hosts, in their agent: allow: folders. [/srv/images]")
@click.option("--version", "version", metavar="TEXT", default="1", help="For people. [1]")
@click.option("--os", "system", metavar="TEXT", default="linux", help="linux, windows11 or another word. [linux]")
@click.option("--sha256", metavar="DIGITS", help="The file's checksum; needed with --url, computed for --file.")
@click.option("--size", metavar="BYTES", type=int, help="The file's size, if it is known.")
@click.option("--retired", is_flag=True, help="No pool may begin to use it.")
@changes_at_controller
@click.pass_obj
def ensure_image(
    settings: Settings, name: str, file: str | None, url: str | None, path: str | None, folder: str | None,
    version: str, system: str, sha256: str | None, size: int | None, retired: bool, where: Where,
) -> int:  # fmt: skip
    """Add an image: one of --file, --url and --path says where it is. Again: what failed on hosts is tried now.

    Hosts whose desktops need it get a copy, with its checksum checked, and lose it when nothing in the fleet uses it.
    A file is read from this machine, the controller's own, each time that a host gets it: leave it there.
    """
    return make_call(
        settings, where, "ensure-image", name=name, file=None if file is None else os.path.abspath(file), url=url,
        path=path, folder=folder, version=version, os=system, sha256=sha256, size=size, retired=retired,
    )  # fmt: skip


@make_command(
    "show-image", table=CONTROLLER_COMMANDS, page=_image_page,
    examples=(("vgpuctl controller show-image office", "which hosts have it, and why one has not"),),
)  # fmt: skip
@click.argument("name", metavar="IMAGE")
@at_controller
@click.pass_obj
def show_image(settings: Settings, name: str, where: Where) -> int:
    """Show one image, and what each host has of it."""
    return make_call(settings, where, "show-image", name=name)


@make_command(
    "list-images", table=CONTROLLER_COMMANDS, listing=IMAGES,
    examples=(("vgpuctl controller list-images", "and which pools use them"),),
)  # fmt: skip
@at_controller
@click.pass_obj
def list_images(settings: Settings, where: Where) -> int:
    """List the images of the fleet."""
    return make_call(settings, where, "list-images")


@make_command(
    "delete-image", table=CONTROLLER_COMMANDS, page=_changed_image,
    examples=(("vgpuctl controller delete-image office-10", "the hosts' copies go, the file itself stays"),),
)  # fmt: skip
@click.argument("name", metavar="IMAGE")
@changes_at_controller
@click.pass_obj
def delete_image(settings: Settings, name: str, where: Where) -> int:
    """Delete an image that no pool and no desktop uses; hosts delete their copies once no disk there needs them."""
    return make_call(settings, where, "delete-image", name=name)


@make_command(
    "ensure-pool", table=CONTROLLER_COMMANDS, page=_changed_pool,
    examples=(("vgpuctl controller ensure-pool office -f office.yaml", "forty desktops, five always ready"),),
)  # fmt: skip
@click.argument("name", metavar="POOL")
@click.option(
    "-f",
    "--file",
    "file",
    metavar="FILE",
    required=True,
    type=click.Path(dir_okay=False, allow_dash=True),
    help="The pool spec; - reads standard input.",
)
@changes_at_controller
@click.pass_obj
def ensure_pool(settings: Settings, name: str, file: str, where: Where) -> int:
    """Create a pool, or change it to match a spec file."""

    def work(guard: SignalGuard) -> run.CommandOutput:
        from vgpuctl.library.text_file import read_text

        text = read_text(file, "spec")
        return run.CommandOutput(connect(settings, *where).call("ensure-pool", name=name, text=text, file=file))

    return run.perform(settings, "controller-ensure-pool", work)


@make_command(
    "list-pools", table=CONTROLLER_COMMANDS, listing=POOLS,
    examples=(("vgpuctl controller list-pools", "how many desktops are ready, and how many have users"),),
)  # fmt: skip
@at_controller
@click.pass_obj
def list_pools(settings: Settings, where: Where) -> int:
    """List the pools."""
    return make_call(settings, where, "list-pools")


@make_command(
    "show-pool", table=CONTROLLER_COMMANDS, page=_pool_page,
    examples=(("vgpuctl controller show-pool office", "with its spec"),),
)  # fmt: skip
@click.argument("name", metavar="POOL")
@at_controller
@click.pass_obj
def show_pool(settings: Settings, name: str, where: Where) -> int:
    """Show one pool, what its desktops do, and its spec."""
    return make_call(settings, where, "show-pool", name=name)


@make_command(
    "pause-pool", table=CONTROLLER_COMMANDS, page=_changed_pool,
    examples=(("vgpuctl controller pause-pool office --reason 'new storage'", "users keep their desktops"),),
)  # fmt: skip
@click.argument("name", metavar="POOL")
@click.option("--reason", metavar="TEXT", help="Shown to who asks for a desktop.")
@changes_at_controller
@click.pass_obj
def pause_pool(settings: Settings, name: str, reason: str | None, where: Where) -> int:
    """Make, start and refresh nothing for a pool, until resume-pool."""
    return make_call(settings, where, "pause-pool", name=name, reason=reason)


@make_command(
    "resume-pool", table=CONTROLLER_COMMANDS, page=_changed_pool,
    examples=(("vgpuctl controller resume-pool office", "also after errors paused it"),),
)  # fmt: skip
@click.argument("name", metavar="POOL")
@changes_at_controller
@click.pass_obj
def resume_pool(settings: Settings, name: str, where: Where) -> int:
    """Let a paused pool go on; errors before that no longer count."""
    return make_call(settings, where, "resume-pool", name=name)


@make_command(
    "delete-pool", table=CONTROLLER_COMMANDS, page=_changed_pool,
    examples=(("vgpuctl controller delete-pool office --yes", "also desktops that users have"),),
)  # fmt: skip
@click.argument("name", metavar="POOL")
@changes_at_controller
@click.pass_obj
def delete_pool(settings: Settings, name: str, where: Where) -> int:
    """Delete a pool with all its desktops and their disks, also those that users have."""

    def work(guard: SignalGuard) -> run.CommandOutput:
        client = connect(settings, *where)
        pool: PoolResult = client.call("show-pool", name=name).data
        question = f"Delete pool {name} with {pool.desktops} desktops and their disks; {pool.assigned} have users?"
        confirm(settings, question, dry_run=where.dry_run)
        return run.CommandOutput(client.call("delete-pool", name=name))

    return run.perform(settings, "controller-delete-pool", work)


@make_command(
    "list-events", table=CONTROLLER_COMMANDS, listing=EVENTS,
    examples=(
        ("vgpuctl controller list-events", "the last 200: who did what, and what failed"),
        ("vgpuctl controller list-events -o wide", "with what was changed: before and after"),
    ),
)  # fmt: skip
@click.option("--after", metavar="ID", type=click.IntRange(0), help="Only those after this one.")
@click.option("--limit", metavar="N", type=click.IntRange(1, 1000), help="So many at most. [200]")
@at_controller
@click.pass_obj
def list_events(settings: Settings, after: int | None, limit: int | None, where: Where) -> int:
    """Show the fleet's journal: who did what, and what failed."""
    return make_call(settings, where, "list-events", after=after, limit=limit)


_COMMANDS: dict[str, click.Command] = {
    str(one.name): one
    for one in (
        run_controller, upgrade_db, show_fleet, add_host, list_hosts, show_host, cordon_host, label_host, accept_host,
        remove_host, ensure_image, list_images, show_image, delete_image, ensure_pool, list_pools, show_pool,
        pause_pool, resume_pool, delete_pool, list_events,
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
