# SPDX-License-Identifier: Apache-2.0
"""The values of the global options: one `Settings` object for each command."""

from __future__ import annotations

from typing import Any

import click

from vgpuctl.config.arguments import MAX_WAIT_SECONDS

DEFAULT_HOST = "local"
HOST_VARIABLE = "VGPUCTL_HOST"
TARGET_OPTIONS = ("--host", "--root", "--connect")
"""How the options begin that say where a command works."""
DEFAULT_WAIT_SECONDS = 60.0
OUTPUTS = ("table", "wide", "json", "yaml", "csv", "name")


class Settings:
    """The values of the global options. `kind` is the running command, for the JSON document.

    `nothing` is what the command says of a list without rows. `args` is the command line.
    `quiet`: it contains --quiet, so other hosts' results are not printed.
    `ssh_hosts` are the hosts by ssh as they were given, with their ranges.
    A plain class: importing dataclasses takes a tenth of the program's start.
    """

    def __init__(
        self,
        *,
        host: str = DEFAULT_HOST,
        root: str = "/",
        connect: str | None = None,
        json: bool = False,
        yes: bool = False,
        wait: float = DEFAULT_WAIT_SECONDS,
        verbose: bool = False,
        progress: bool = False,
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
        self.ssh_hosts: tuple[str, ...] = ()
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
