# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl set-mixed-size`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings

ON_OFF = ("on", "off")


@make_command(
    "set-mixed-size",
    examples=(
        ("vgpuctl --host sim:rtx-pro-6000 set-mixed-size 0000:3b:00.0 on", "vGPUs of several sizes beside each other"),
        (
            "vgpuctl --host sim:rtx-pro-6000 set-mixed-size 0000:3b:00.0 off --drain --dry-run",
            "what draining would do",
        ),
    ),
)
@click.argument("gpu", shell_complete=complete.gpus)
@click.argument("mixed", metavar="on|off", type=click.Choice(ON_OFF))
@click.option(
    "--drain",
    is_flag=True,
    help="Shut running VMs down first, at most --wait seconds, remove all vGPUs, and bring them back after.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, gpu: str, mixed: str, drain: bool, dry_run: bool) -> int:
    """Let vGPUs of several sizes be on a GPU at once, or of one size only, and write that to /etc/vgpuctl/host.yaml.

    With mixed sizes a vGPU has to begin at one of few places, so of some sizes fewer fit; there is no fixed_share
    scheduler and no MIG. The driver changes this only on a GPU without vGPUs; --drain makes it so for a moment. It is
    lost when the virtual functions go, and set again with them and after a boot.
    """
    return run.call(
        settings,
        "set-mixed-size",
        lambda host: host.set_mixed_size(gpu, on=mixed == "on", drain=drain, dry_run=dry_run),
    )
