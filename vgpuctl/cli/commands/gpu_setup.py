# SPDX-License-Identifier: Apache-2.0
"""The commands that set a GPU up."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings
from vgpuctl.config.arguments import SCHEDULER_METHODS
from vgpuctl.config.vm_fields import GPU_MODES, SCHEDULER_POLICIES


@make_command(
    "set-mode",
    examples=(
        ("vgpuctl --host sim:mixed set-mode 0000:17:00.0 vgpu", "turns the VFs of an NVIDIA GPU on"),
        (
            "vgpuctl --host sim:mixed set-mode 0000:86:00.0 sriov --vfs 4 --dry-run",
            "what would be done for 4 plain VFs",
        ),
        (
            "vgpuctl --host sim:a100-40 set-mode 0000:3b:00.0 passthrough",
            "turns VFs off and keeps all of it for one VM",
        ),
    ),
)
@click.argument("gpu", shell_complete=complete.gpus)
@click.argument("mode", type=click.Choice(GPU_MODES))
@click.option(
    "--vfs", type=click.IntRange(min=1), metavar="N", help="How many plain virtual functions. [all there can be]"
)
@click.option(
    "--drain", is_flag=True, help="Shut running VMs down first, at most --wait seconds, and start them again."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def set_mode(settings: Settings, gpu: str, mode: str, vfs: int | None, drain: bool, dry_run: bool) -> int:
    """Set a GPU up: for vGPUs, for plain virtual functions (sriov), for one VM (passthrough), or not at all.

    The virtual functions are turned on or off as the mode wants them, and the mode is written to
    /etc/vgpuctl/host.yaml, so that it can be set again after a boot and nothing of another mode is placed there.
    Nothing changes while a VM uses the GPU, or has a vGPU there that would be lost. unmanaged changes no device:
    vgpuctl then places nothing there.
    """
    return run.call(settings, "set-mode", lambda host: host.set_mode(gpu, mode, vfs=vfs, drain=drain, dry_run=dry_run))


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
def set_mig(
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
def set_mixed_size(settings: Settings, gpu: str, mixed: str, drain: bool, dry_run: bool) -> int:
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
def set_scheduler(
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
