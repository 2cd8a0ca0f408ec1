# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl assert`."""

from __future__ import annotations

import click

from vgpuctl.cli import host_options
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "assert",
    examples=(("vgpuctl --host sim:mixed assert", "in a script: exit status 0 when the host is as host.yaml says"),),
)
@host_options.options
@click.pass_obj
def command(settings: Settings, path: str | None, sets: tuple[str, ...], drain: bool) -> int:
    """Exit with 0 when the host is as host.yaml says, with 7 when it is not. As diff, without its output."""
    return host_options.compare(settings, "assert", path, sets, drain, quiet=True)
