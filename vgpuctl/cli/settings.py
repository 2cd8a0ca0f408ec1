# SPDX-License-Identifier: Apache-2.0
"""The global options: accepted before and after the command's name, kept in one `Settings` object.

Both places have the same options; what is typed after the command wins. VGPUCTL_HOST is read once, in front.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from vgpuctl.cli import complete

DEFAULT_HOST = "local"
DEFAULT_WAIT_SECONDS = 60.0
LONGEST_WAIT_SECONDS = 1e9


class Settings:
    """What the global options say. `kind` is the command that runs, for the JSON document.

    `words` is the command line. A plain class: importing dataclasses is a tenth of the program's start.
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
    ) -> None:
        self.host = host
        self.root = root
        self.connect = connect
        self.json = json
        self.yes = yes
        self.wait = wait
        self.verbose = verbose
        self.kind = "vgpuctl"
        self.words: tuple[str, ...] = ()


class Seconds(click.types.FloatParamType):
    """A time to wait."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number of seconds; `60` and `60s` are the same."""
        try:
            seconds = float(str(value).removesuffix("s"))
        except ValueError:
            seconds = -1
        if not 0 <= seconds <= LONGEST_WAIT_SECONDS:
            self.fail(f"'{value}' is not a number of seconds", param, ctx)
        return seconds


def global_options(*, in_front: bool) -> list[click.Parameter]:
    """Return the global options for the program itself (`in_front`) or for one command."""
    return [
        _option(
            "host",
            in_front=in_front,
            metavar="local|sim:NAME|sim:FILE",
            help="The host to work on: this one, a built-in simulated one, or one described in a YAML file."
            " VGPUCTL_HOST in the environment stands for it.",
            envvar="VGPUCTL_HOST" if in_front else None,
            shell_complete=complete.hosts,
        ),
        _option(
            "root",
            metavar="DIR",
            help="Read the host's files below DIR, for example a captured /sys. Read-only unless DIR is /.",
            type=click.Path(file_okay=False),
        ),
        _option("connect", metavar="URI", help="The libvirt to use; local URIs only."),
        _option("json", is_flag=True, help="Print exactly one JSON document; never ask."),
        _option("yes", is_flag=True, help="Answer every question with yes."),
        _option(
            "wait",
            metavar="SECONDS",
            type=Seconds(),
            help="How long to wait for another vgpuctl or a busy device (60).",
        ),
        _option("verbose", "-v", is_flag=True, help="Say more: every fact of an error, and tracebacks."),
    ]


def _option(name: str, *spellings: str, in_front: bool = False, **arguments: Any) -> click.Option:
    return click.Option(
        [*spellings, f"--{name}", f"global_{name}"],
        expose_value=False,
        callback=_store(name),
        **arguments,
    )


def _store(name: str) -> Callable[[click.Context, click.Parameter, object], object]:
    def store(context: click.Context, parameter: click.Parameter, value: object) -> object:
        source = context.get_parameter_source(parameter.name or "")
        settings = context.find_object(Settings)
        if settings is not None and source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
            setattr(settings, name, value)
        return value

    return store
