# SPDX-License-Identifier: Apache-2.0
"""The global options: accepted before and after the command's name, stored in one `Settings` object for each command.

Both places have the same options; a value given after the command wins. VGPUCTL_HOST is read once, before the command.
No option has a default of click's, so a value that click parsed is one that was given. The values are taken when a
command's arguments are parsed, not in callbacks: what click says of an option during parsing differs between versions.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import complete
from vgpuctl.config.arguments import MAX_WAIT_SECONDS

if TYPE_CHECKING:
    from vgpuctl.cli.agent_login import AgentRoute

_DEFAULT_HOST = "local"
HOST_VARIABLE = "VGPUCTL_HOST"
TARGET_OPTIONS = ("--host", "--root", "--connect")
"""How the options begin that say where a command works."""
DEFAULT_WAIT_SECONDS = 60.0
_OUTPUTS = ("table", "wide", "json", "yaml", "csv", "name")

_PREFIX = "global_"


class Settings:
    """The values of the global options. `kind` is the running command, for the JSON document.

    `nothing` is what the command says of a list without rows. `args` is the command line.
    `quiet`: it contains --quiet, so other hosts' results are not printed.
    `ssh_hosts` are the hosts by ssh as they were given, with their ranges. `agent_route`: the way to the host agent of
    one of them, if the command's calls go through it.
    A plain class: importing dataclasses takes a tenth of the program's start.
    """

    def __init__(
        self,
        *,
        host: str = _DEFAULT_HOST,
        root: str = "/",
        connect: str | None = None,
        json: bool = False,
        yes: bool = False,
        wait: float = DEFAULT_WAIT_SECONDS,
        verbose: bool = False,
        progress: bool = False,
        override_controller: bool = False,
    ) -> None:
        self.host = host
        self.root = root
        self.connect = connect
        self.output = "json" if json else "table"
        self.color = "auto"
        self.columns: tuple[str, ...] = ()
        self.sort_by: str | None = None
        self.filter: tuple[str, ...] = ()
        self.no_headers = False
        self.yes = yes
        self.wait = wait
        self.verbose = verbose
        self.progress = progress
        self.override_controller = override_controller
        self.ssh_hosts: tuple[str, ...] = ()
        self.agent_route: AgentRoute | None = None
        self.host_deadline: float | None = None
        self.hosts_at_a_time: int | None = None
        self.kind = "vgpuctl"
        self.nothing: str | None = None
        self.quiet = False
        self.args: tuple[str, ...] = ()

    @property
    def json(self) -> bool:
        """Whether the result is one document for programs, JSON or YAML; then nobody is asked."""
        return self.output in ("json", "yaml")

    @property
    def needs_view_check(self) -> bool:
        """Whether options were given that only some commands have, or that name columns."""
        return bool(self.output in ("wide", "csv", "name") or self.columns or self.sort_by or self.filter)

    @property
    def is_remote(self) -> bool:
        """Whether the command runs on other hosts."""
        return bool(self.ssh_hosts)

    @property
    def remote_only_options(self) -> tuple[str, ...]:
        """The given options that mean nothing for this host."""
        given = {
            "--host-deadline": self.host_deadline is not None,
            "--hosts-at-a-time": self.hosts_at_a_time is not None,
        }
        return tuple(name for name, is_given in given.items() if is_given)


class Seconds(click.types.FloatParamType):
    """A time to wait."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number of seconds; `60` and `60s` are the same."""
        try:
            seconds = float(str(value).removesuffix("s"))
        except ValueError:
            seconds = -1
        if not 0 <= seconds <= MAX_WAIT_SECONDS:
            self.fail(f"'{value}' is not a number of seconds", param, ctx)
        return seconds


def global_options() -> list[click.Parameter]:
    """Return the global options, for the program itself or for one command."""
    return [
        _option(
            "host",
            metavar="local|sim:NAME|sim:FILE|ssh://[USER@]HOST[:PORT]",
            help="The host to work on: this one, a built-in simulated one, one described in a YAML file, or another one"
            " by ssh. Several by ssh: repeat it, or write a range in quotes, 'ssh://gpu{01..20}'. Without it:"
            " VGPUCTL_HOST in the environment.",
            shell_complete=complete.hosts,
            multiple=True,
        ),
        *_remote_options(),
        _option(
            "root",
            metavar="DIR",
            help="Read the host's files below DIR, for example a captured /sys. Read-only unless DIR is /.",
            type=click.Path(file_okay=False),
        ),
        _option("connect", metavar="URI", help="The libvirt to use; local URIs only."),
        _option(
            "output",
            "-o",
            type=click.Choice(_OUTPUTS),
            help="The form of the result. json, yaml: one document, and no questions. Lists also have wide: more"
            " columns; csv: every column, or those of --columns; name: only names or addresses, one per line.",
        ),
        _option("json", is_flag=True, help="The same as -o json."),
        _option(
            "color",
            type=click.Choice(("auto", "always", "never")),
            help="When to use colours. auto: on a terminal, unless NO_COLOR is set.",
        ),
        _option("yes", "-y", is_flag=True, help="Answer every question with yes."),
        _option(
            "wait",
            metavar="SECONDS",
            type=Seconds(),
            help="How long to wait for another vgpuctl or a busy device (60).",
        ),
        _option(
            "override-controller",
            is_flag=True,
            help="As root: change desktops of pools, about which a controller decides.",
        ),
        _option("progress", is_flag=True, help="Report progress on stderr, also with --json."),
        _option("verbose", "-v", is_flag=True, help="Show more: every fact of an error, and tracebacks."),
    ]


def list_options() -> list[click.Option]:
    """Return the options of every list."""
    return [
        _option(
            "columns",
            metavar="KEY,...",
            multiple=True,
            shell_complete=complete.columns,
            help="Show these columns, in this order.",
        ),
        _option(
            "sort-by",
            metavar="KEY,...",
            shell_complete=complete.columns,
            help="Sort by these columns; -KEY or KEY:desc: the largest first.",
        ),
        _option(
            "filter",
            metavar="KEY=VALUE,...",
            multiple=True,
            shell_complete=complete.columns,
            help="Show only rows for which each condition holds. Also KEY!=VALUE; globs: 'name=vdi-*'.",
        ),
        _option("no-headers", is_flag=True, help="Omit the header line."),
    ]


def _remote_options() -> list[click.Parameter]:
    """Return the global options about other hosts by ssh, except --host."""
    return [
        _option(
            "host-deadline",
            metavar="SECONDS",
            type=Seconds(),
            help="By ssh: the time limit for each host. A slower one is stopped, and the others are reported (600).",
        ),
        _option(
            "hosts-at-a-time",
            metavar="N",
            type=click.IntRange(1, 1000),
            help="By ssh: how many hosts work at once (32).",
        ),
    ]


def _option(name: str, *spellings: str, **arguments: Any) -> click.Option:
    return click.Option([*spellings, f"--{name}", f"{_PREFIX}{name.replace('-', '_')}"], **arguments)


def take_options(context: click.Context) -> None:
    """Move the global options that click has parsed from the context into the settings.

    Raises:
        click.UsageError: some of them contradict each other.
    """
    parsed = {name: context.params.pop(name) for name in tuple(context.params) if name.startswith(_PREFIX)}
    given = {name.removeprefix(_PREFIX): value for name, value in parsed.items() if _is_given(value)}
    settings = context.find_object(Settings)
    if settings is None:
        return
    try:
        named, from_environment = given.pop("host", ()), os.environ.get(HOST_VARIABLE)
        if named:
            _store_hosts(settings, named)
        elif context.parent is None and from_environment:
            _store_hosts(settings, (from_environment,))
        _store_output(settings, given.pop("output", None), is_json=given.pop("json", False))
    except click.UsageError as error:
        error.ctx = context
        raise
    for name, value in given.items():
        setattr(settings, name, value)


def _is_given(value: object) -> bool:
    return value is not None and value is not False and value != ()


def _store_output(settings: Settings, output: str | None, *, is_json: bool) -> None:
    """Store -o or --json; in one place --json and another -o contradict each other."""
    if is_json and output not in (None, "json"):
        raise click.UsageError(f"--json is -o json: it does not go with -o {output}")
    settings.output = "json" if is_json else output or settings.output


def _store_hosts(settings: Settings, named: tuple[str, ...]) -> None:
    """Store several hosts by ssh, or one other host: a command runs on one simulated host, or on this host alone."""
    by_ssh = tuple(dict.fromkeys(host for host in named if host.startswith("ssh:")))
    if by_ssh and len(by_ssh) != len(set(named)):
        raise click.UsageError("--host: hosts by ssh:// do not go with others in one command")
    if not by_ssh and len(set(named)) > 1:
        raise click.UsageError(
            f"--host: one command is for one of {', '.join(named)}; only hosts by ssh:// can be several"
        )
    settings.ssh_hosts = by_ssh
    if not by_ssh:
        settings.host = named[-1]
