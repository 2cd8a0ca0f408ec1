# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl export`."""

from __future__ import annotations

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.result import CommandOutput
from vgpuctl.cli.settings import Settings


@make_command(
    "export",
    examples=(("vgpuctl --host sim:mixed export", "a host.yaml to keep, or to begin with"),),
)
@click.pass_obj
def command(settings: Settings) -> int:
    """Print the host.yaml of this host as it is: modes, virtual functions, schedulers, cordons.

    Every GPU is named by its address; defaults and vGPUs without a VM are those of the current file. diff finds no
    difference between what is printed and the host.
    """
    return run.call(
        settings,
        "export",
        lambda host: host.export_host(),
        lambda result: CommandOutput(result, raw=result.data.text),
    )
