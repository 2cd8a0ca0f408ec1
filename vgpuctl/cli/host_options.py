# SPDX-License-Identifier: Apache-2.0
"""The options of apply, diff and assert, and the desired state that they describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.result import CommandOutput
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.cli.settings import Settings
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results.host import HostDifferenceResult

DIFFERS_STATUS = 7
_OPTIONS = (
    click.option(
        "-f",
        "--file",
        "path",
        metavar="FILE|-",
        type=click.Path(dir_okay=False, allow_dash=True),
        help="A file in the place of /etc/vgpuctl/host.yaml; - reads it from standard input.",
    ),
    click.option(
        "--set",
        "sets",
        metavar="gpus[GPU].KEY=VALUE",
        multiple=True,
        help="Change a key first; GPU as host.yaml names it, VALUE as it is written there. Repeat it for several.",
    ),
    click.option(
        "--drain", is_flag=True, help="Shut running VMs down first, at most --wait seconds, and start them again."
    ),
)


def options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options."""
    for add in reversed(_OPTIONS):
        function = add(function)
    return function


def compare(settings: Settings, kind: str, path: str | None, sets: tuple[str, ...], drain: bool, quiet: bool) -> int:
    """Run diff or assert: print the result, and return 7 when something differs."""

    def present(result: Outcome[HostDifferenceResult]) -> CommandOutput:
        status = DIFFERS_STATUS if result.changed else 0
        if not quiet:
            return CommandOutput(result, status=status)
        return CommandOutput(result if settings.json else replace(result, warnings=(), notes=()), "", status)

    return run.call(settings, kind, lambda host: host.diff(file=path, sets=sets, drain=drain), present)
