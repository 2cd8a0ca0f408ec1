# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl show-gpu`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "show-gpu",
    examples=(("vgpuctl --host sim:a100-40 show-gpu 0000:3b:00.0", "one GPU with every vGPU on it"),),
)
@click.argument("address", shell_complete=complete.gpus)
@click.pass_obj
def command(settings: Settings, address: str) -> int:
    """Show one GPU with every vGPU on it and the VM that each belongs to.

    ADDRESS is a PCI address, or the kernel name of another mdev parent: what 'vgpuctl list-gpus --all' lists.
    """
    return run.call(settings, "show-gpu", lambda host: host.show_gpu(address))
