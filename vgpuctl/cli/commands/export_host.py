# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl export`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings

if TYPE_CHECKING:
    from vgpuctl.cli.result import CommandOutput
    from vgpuctl.cli.signals import SignalGuard


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

    def work(guard: SignalGuard) -> CommandOutput:
        from vgpuctl.cli import hosts
        from vgpuctl.cli.result import CommandOutput
        from vgpuctl.engine import export

        result = export.export_host(hosts.open_host(settings))
        data = result.data
        text = data["text"] if isinstance(data, dict) else ""
        return CommandOutput(data, warnings=result.warnings, raw=str(text))

    return run.perform(settings, "export", work)
