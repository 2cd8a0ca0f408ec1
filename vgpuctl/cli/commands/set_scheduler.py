# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl set-scheduler`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings
from vgpuctl.config.arguments import SCHEDULER_METHODS
from vgpuctl.config.vm_fields import SCHEDULER_POLICIES


@make_command(
    "set-scheduler",
    examples=(
        (
            "vgpuctl --host sim:a100-40 set-scheduler 0000:3b:00.0 --policy fixed_share --time-slice 2",
            "each vGPU the same part, whether the others run or not",
        ),
        (
            "vgpuctl --host sim:a100-40 set-scheduler 0000:3b:00.0 --policy equal_share --frequency 480 --drain",
            "shuts the VMs on it down first, and starts them again",
        ),
        (
            "vgpuctl --host sim:t4 set-scheduler 0000:3b:00.0 --policy equal_share --via modprobe --dry-run",
            "what would be written for the next load of the driver",
        ),
    ),
)
@click.argument("gpu", shell_complete=complete.gpus)
@click.option("--policy", type=click.Choice(SCHEDULER_POLICIES), required=True, help="Who gets the GPU's time.")
@click.option(
    "--time-slice", "time_slice", type=click.IntRange(min=1), metavar="MS", help="Strict turns of this many ms."
)
@click.option(
    "--frequency", type=click.IntRange(min=1), metavar="HZ", help="Adaptive round robin, so many turns a second."
)
@click.option(
    "--averaging-factor",
    "averaging_factor",
    type=click.IntRange(min=1),
    metavar="N",
    help="Adaptive round robin: over how many turns a VM's time is evened out.",
)
@click.option(
    "--via",
    type=click.Choice(SCHEDULER_METHODS),
    default="auto",
    help="nvml: now; modprobe: when the driver is loaded next; auto: nvml where that can be. [auto]",
)
@click.option(
    "--drain",
    is_flag=True,
    help="Shut running VMs down first, at most --wait seconds, remove all vGPUs, and bring them back after.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(
    settings: Settings,
    gpu: str,
    policy: str,
    time_slice: int | None,
    frequency: int | None,
    averaging_factor: int | None,
    via: str,
    drain: bool,
    dry_run: bool,
) -> int:
    """Set how NVIDIA's driver divides a GPU's time among its vGPUs, and write that to /etc/vgpuctl/host.yaml.

    best_effort guarantees nothing. equal_share gives each vGPU that runs the same part, fixed_share each the same part
    whether the others run or not. The driver changes this only on a GPU without vGPUs; --drain makes it so for a
    moment. What NVML sets is lost when the driver is loaded again, and set again by restore-host after a boot.
    """
    return run.call(
        settings,
        "set-scheduler",
        lambda host: host.set_scheduler(
            gpu,
            policy,
            time_slice_ms=time_slice,
            frequency_hz=frequency,
            averaging_factor=averaging_factor,
            via=via,
            drain=drain,
            dry_run=dry_run,
        ),
    )
