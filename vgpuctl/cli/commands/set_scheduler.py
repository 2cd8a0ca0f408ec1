# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl set-scheduler`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings

if TYPE_CHECKING:
    from vgpuctl.cli.result import ChangeContext
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.vgpu_scheduler import SchedulerSpec

POLICIES = ("best_effort", "equal_share", "fixed_share")
_OPTIONS = {"time_slice_ms": "--time-slice", "frequency_hz": "--frequency", "averaging_factor": "--averaging-factor"}
METHODS = ("auto", "nvml", "modprobe")


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
@click.option("--policy", type=click.Choice(POLICIES), required=True, help="Who gets the GPU's time.")
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
    type=click.Choice(METHODS),
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

    def act(context: ChangeContext) -> Outcome:
        from vgpuctl.engine import gpu_scheduler

        numbers = {"time_slice_ms": time_slice, "frequency_hz": frequency, "averaging_factor": averaging_factor}
        request = gpu_scheduler.SchedulerRequest(
            gpu, _requested_scheduler(policy, numbers), via, drain, wait_seconds=context.wait_seconds
        )
        return gpu_scheduler.set_scheduler(context.host, request, dry_run=dry_run, progress=context.progress)

    return run.change(settings, "set-scheduler", act)


def _requested_scheduler(policy: str, numbers: dict[str, int | None]) -> SchedulerSpec:
    """Return the given scheduler configuration, checked by the same rules as host.yaml.

    Raises:
        InvalidInput: it lists every problem.
    """
    from vgpuctl.config.rules import ValidationError
    from vgpuctl.config.scheduler_spec import parse_scheduler_spec
    from vgpuctl.errors import InvalidInput

    try:
        return parse_scheduler_spec({"policy": policy, **numbers})
    except ValidationError as error:
        messages = [
            f"{_OPTIONS.get(str(problem.path[0]), problem.path[0])}: {problem.text}" for problem in error.problems
        ]
        raise InvalidInput("; ".join(messages), hint="vgpuctl set-scheduler --help") from error
