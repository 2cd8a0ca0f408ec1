# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl set-mig`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "set-mig",
    examples=(
        (
            "vgpuctl --host sim:h100-mig set-mig 0000:3f:00.0 3g.40gb 1g.10gb:3",
            "turns MIG on, and makes four GPU instances",
        ),
        (
            "vgpuctl --host sim:h100-mig set-mig 0000:3b:00.0 --for H100-1-10C:4 --dry-run",
            "what would be done for room for four vGPUs",
        ),
        ("vgpuctl --host sim:h100-mig set-mig 0000:3b:00.0 --off", "time-sliced vGPUs again"),
    ),
)
@click.argument("gpu", shell_complete=complete.gpus)
@click.argument("instances", metavar="[PROFILE[:N]]...", nargs=-1, shell_complete=complete.instances)
@click.option(
    "--for",
    "vgpus",
    metavar="VGPU_PROFILE[:N]",
    multiple=True,
    shell_complete=complete.profiles,
    help="As many GPU instances as N vGPUs of this profile need; repeat it for several.",
)
@click.option("--off", is_flag=True, help="Turn MIG off.")
@click.option(
    "--drain", is_flag=True, help="Shut running VMs down first where they are in the way, and start them again."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(
    settings: Settings,
    gpu: str,
    instances: tuple[str, ...],
    vgpus: tuple[str, ...],
    off: bool,
    drain: bool,
    dry_run: bool,
) -> int:
    """Partition a GPU into GPU instances (MIG), each for a MIG-backed vGPU, and write that to /etc/vgpuctl/host.yaml.

    The GPU then has these instances and no others: PROFILE as NVIDIA calls it, like 1g.10gb, or its number. Those that
    are there and fit stay, with what runs in them. MIG goes on or off only on a GPU without vGPUs. Instances are gone
    after a boot, and restore-host makes them again.
    """
    return run.call(
        settings,
        "set-mig",
        lambda host: host.set_mig(gpu, *instances, vgpus=vgpus, off=off, drain=drain, dry_run=dry_run),
    )
