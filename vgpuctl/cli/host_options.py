# SPDX-License-Identifier: Apache-2.0
"""The options of apply, diff and assert, and the desired state that they describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import run

if TYPE_CHECKING:
    from vgpuctl.cli.result import CommandOutput
    from vgpuctl.cli.settings import Settings
    from vgpuctl.cli.signals import SignalGuard
    from vgpuctl.engine.desired_state import DesiredState
    from vgpuctl.ports.host import Host

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


def read_desired_state(host: Host, path: str | None, sets: tuple[str, ...], undo: int | None = None) -> DesiredState:
    """Return the desired state that the options describe. `undo`: how many versions of host.yaml to go back.

    Raises:
        InvalidInput, NotFound: the file or a change is missing or invalid.
    """
    from vgpuctl.cli import requests
    from vgpuctl.engine import desired_state

    display_name = "standard input" if path == "-" else path or ""
    file = None if path is None else desired_state.HostFileText(requests.read_text(path), display_name)
    if undo is not None:
        file = desired_state.read_previous_version(host, undo)
    return desired_state.read_desired_state(host, file, sets)


def compare(settings: Settings, kind: str, path: str | None, sets: tuple[str, ...], drain: bool, quiet: bool) -> int:
    """Run diff or assert: print the result, and return 7 when something differs."""

    def work(guard: SignalGuard) -> CommandOutput:
        from vgpuctl.cli import hosts
        from vgpuctl.cli.result import CommandOutput
        from vgpuctl.engine import apply, host_plan

        host = hosts.open_host(settings)
        apply_options = host_plan.ApplyOptions(drain, settings.wait)
        result = apply.diff_host(host, read_desired_state(host, path, sets), apply_options)
        data: dict[str, Any] = {
            **result.data,
            "steps": list(result.steps),
            "notes": list(result.notes),
            "dry_run": True,
        }
        status = DIFFERS_STATUS if result.changed else 0
        if quiet:
            return CommandOutput(data, result.changed, result.warnings if settings.json else (), raw="", status=status)
        return CommandOutput(data, result.changed, result.warnings, result.notes, status=status)

    return run.perform(settings, kind, work)
