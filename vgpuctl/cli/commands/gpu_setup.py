# SPDX-License-Identifier: Apache-2.0
"""The commands that set a GPU up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import complete, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.commands.gpus import gpu_change_page
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.gpu_page import configured_text, running_text
from vgpuctl.cli.shown import Page, dry_run
from vgpuctl.cli.targets import Rows, Targets, change, count_rows
from vgpuctl.config.arguments import COMPUTE_PARTITIONS, GPU_MODES, MEMORY_PARTITIONS, SCHEDULER_POLICIES

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results.gpus import ChangedGpuResult


@make_command(
    "set-mode",
    page=gpu_change_page,
    shown_by="show-gpu",
    examples=(
        ("vgpuctl --host sim:mixed set-mode 0000:17:00.0 vgpu", "turns the VFs of an NVIDIA GPU on"),
        (
            "vgpuctl --host sim:mixed set-mode 0000:86:00.0 sriov --vfs 4 --dry-run",
            "what would be done for 4 plain VFs",
        ),
        ("vgpuctl --host sim:b60 set-mode 0000:3b:00.0 sriov --vfs 4 --vf-memory 4GiB", "4 VFs of 4 GiB"),
        (
            "vgpuctl --host sim:mi300x set-mode 0000:3b:00.0 sriov --vfs 1 --compute-partition CPX "
            "--memory-partition NPS4 --dry-run",
            "what would be done for the partition modes of an AMD GPU",
        ),
        (
            "vgpuctl --host sim:a100-40 set-mode 0000:3b:00.0 passthrough",
            "turns VFs off and keeps all of it for one VM",
        ),
        ("vgpuctl --host sim:l40s-x4 set-mode --all vgpu --dry-run", "what would be done for every GPU"),
    ),
)
@targets.gpus_before(*GPU_MODES)
@click.argument("mode", type=click.Choice(GPU_MODES))
@click.option("--vfs", type=click.IntRange(min=1), metavar="N", help="How many plain virtual functions. [all]")
@click.option(
    "--vf-memory",
    metavar="SIZE",
    help="GPU memory of each plain virtual function; 4GiB, a bare number is MiB. [host.yaml's, else as it is]",
)
@click.option(
    "--compute-partition", type=click.Choice(COMPUTE_PARTITIONS), help="The compute partition mode of an AMD GPU."
)
@click.option(
    "--memory-partition", type=click.Choice(MEMORY_PARTITIONS), help="The memory partition mode of an AMD GPU."
)
@click.option(
    "--drain", is_flag=True, help="Shut running VMs down first, at most --wait seconds, and start them again."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def set_mode(
    settings: Settings,
    targets: Targets,
    mode: str,
    vfs: int | None,
    vf_memory: str | None,
    compute_partition: str | None,
    memory_partition: str | None,
    drain: bool,
    dry_run: bool,
) -> int:
    """Set GPUs up for vGPUs, for plain virtual functions (sriov), for one VM (passthrough), or for nothing.

    vgpuctl turns the virtual functions on or off for the mode, and writes the mode to /etc/vgpuctl/host.yaml. After a
    boot it is set again, and nothing of another mode is placed there. Nothing changes while a VM uses the GPU, or has a
    vGPU there that would be lost. 'unmanaged' changes no device: vgpuctl then places nothing there. Several GPUs are
    set up one after another. AMD's driver gim takes the number of virtual functions only when it is loaded, so vgpuctl
    loads it again, with no VM on any of its GPUs. It has one pair of partition modes for all its GPUs.
    """
    return change(
        settings,
        "set-mode",
        targets,
        lambda host, gpu: host.set_mode(
            gpu,
            mode,
            vfs=vfs,
            vf_memory=vf_memory,
            compute_partition=compute_partition,
            memory_partition=memory_partition,
            drain=drain,
            dry_run=dry_run,
        ),
        question=_stop_question if drain else None,
        dry_run=dry_run,
    )


@make_command(
    "set-mig",
    page=gpu_change_page,
    shown_by="show-gpu",
    examples=(
        (
            "vgpuctl --host sim:h100-mig set-mig 0000:3f:00.0 3g.40gb 1g.10gb:3",
            "turns MIG on, and creates four GPU instances",
        ),
        (
            "vgpuctl --host sim:h100-mig set-mig 0000:3b:00.0 --for H100-1-10C:4 --dry-run",
            "what would be done for room for four vGPUs",
        ),
        ("vgpuctl --host sim:h100-mig set-mig 0000:3b:00.0 --off", "time-sliced vGPUs again"),
    ),
)
@click.argument("gpu", required=False, metavar="GPU", shell_complete=complete.gpus)
@click.argument("instances", metavar="[PROFILE[:N]]...", nargs=-1, shell_complete=complete.instances)
@targets.all_gpus_option
@click.option(
    "--for",
    "vgpus",
    metavar="VGPU_PROFILE[:N]",
    multiple=True,
    shell_complete=complete.profiles,
    help="The GPU instances that N vGPUs of this profile need; repeatable.",
)
@click.option("--off", is_flag=True, help="Turn MIG off.")
@click.option("--drain", is_flag=True, help="Shut down running VMs that prevent the change, and start them again.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def set_mig(
    settings: Settings,
    gpu: str | None,
    instances: tuple[str, ...],
    everything: bool,
    vgpus: tuple[str, ...],
    off: bool,
    drain: bool,
    dry_run: bool,
) -> int:
    """Divide a GPU into GPU instances (MIG), each for a MIG-backed vGPU, and write that to /etc/vgpuctl/host.yaml.

    The GPU then has these instances and no others. PROFILE is NVIDIA's name, like 1g.10gb, or its number. Existing
    instances that are requested stay, with what runs in them. MIG can be turned on or off only on a GPU without vGPUs.
    A boot removes the instances, and restore-host creates them again. For several GPUs, GPU is a glob or a list in
    braces; with --all there is no GPU argument.
    """
    words = instances if gpu is None else (gpu, *instances)
    selected = Targets("GPU", () if everything else words[:1], everything)
    targets.require_some(selected)
    profiles = words if everything else words[1:]
    return change(
        settings,
        "set-mig",
        selected,
        lambda host, name: host.set_mig(name, *profiles, vgpus=vgpus, off=off, drain=drain, dry_run=dry_run),
        question=_stop_question if drain else None,
        dry_run=dry_run,
    )


ON_OFF = ("on", "off")


@make_command(
    "set-mixed-size",
    page=gpu_change_page,
    shown_by="show-gpu",
    examples=(
        ("vgpuctl --host sim:rtx-pro-6000 set-mixed-size 0000:3b:00.0 on", "vGPUs of several sizes at once"),
        (
            "vgpuctl --host sim:rtx-pro-6000 set-mixed-size 0000:3b:00.0 off --drain --dry-run",
            "what draining would do",
        ),
    ),
)
@targets.gpus_before(*ON_OFF)
@click.argument("mixed", metavar="on|off", type=click.Choice(ON_OFF))
@click.option(
    "--drain",
    is_flag=True,
    help="Shut running VMs down first, at most --wait seconds, remove all vGPUs, and restore them afterwards.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def set_mixed_size(settings: Settings, targets: Targets, mixed: str, drain: bool, dry_run: bool) -> int:
    """Allow vGPUs of several sizes on a GPU at once, or of one size only, and write that to /etc/vgpuctl/host.yaml.

    With mixed sizes a vGPU can begin at few places only, so fewer of some sizes fit. The scheduler fixed_share and MIG
    are not possible. The driver changes this only on a GPU without vGPUs; --drain removes the vGPUs temporarily and
    restores them. The setting is lost with the virtual functions, and set again with them and after a boot.
    """
    return change(
        settings,
        "set-mixed-size",
        targets,
        lambda host, gpu: host.set_mixed_size(gpu, on=mixed == "on", drain=drain, dry_run=dry_run),
        question=_stop_question if drain else None,
        dry_run=dry_run,
    )


def _scheduler_change_page(result: Outcome[ChangedGpuResult]) -> Page:
    """A GPU whose scheduler was set: its steps in a dry run, otherwise what runs now."""
    if result.dry_run:
        return dry_run(result)
    return Page([f"{_scheduler_change(result.data)}{'' if result.steps else '; nothing to do'}"])


def _scheduler_change(data: ChangedGpuResult) -> str:
    """Return one line about a GPU whose scheduler was set."""
    scheduler = data.scheduler
    if scheduler is not None and scheduler.running is None:  # without NVML nothing reports it
        return f"{data.address}: {configured_text(scheduler.configured)}, with which its driver was loaded"
    return f"{data.address}: {running_text(None if scheduler is None else scheduler.running)}"


@make_command(
    "set-scheduler",
    page=_scheduler_change_page,
    shown_by="show-gpu",
    examples=(
        (
            "vgpuctl --host sim:a100-40 set-scheduler 0000:3b:00.0 --policy fixed_share --time-slice 2",
            "each vGPU gets the same share, whether the others run or not",
        ),
        (
            "vgpuctl --host sim:a100-40 set-scheduler 0000:3b:00.0 --policy equal_share --frequency 480 --drain",
            "shuts the VMs on it down first, and starts them again",
        ),
        (
            "vgpuctl --host sim:b60 set-scheduler 0000:5e:00.0 --policy fixed_share --time-slice 8",
            "plain VFs of an Intel card, while VMs run",
        ),
    ),
)
@targets.gpus
@click.option("--policy", type=click.Choice(SCHEDULER_POLICIES), required=True, help="How the GPU's time is divided.")
@click.option(
    "--time-slice",
    "time_slice",
    type=click.IntRange(min=1),
    metavar="MS",
    help="Strict round robin, with time slices of MS milliseconds.",
)
@click.option(
    "--frequency", type=click.IntRange(min=1), metavar="HZ", help="Adaptive round robin, with HZ time slices a second."
)
@click.option(
    "--averaging-factor",
    "averaging_factor",
    type=click.IntRange(min=1),
    metavar="N",
    help="Adaptive round robin: the number of time slices over which a VM's time is averaged.",
)
@click.option(
    "--preempt-timeout",
    "preempt_timeout",
    type=click.IntRange(min=1),
    metavar="US",
    help="How many microseconds a VM may keep the GPU after its slice (Intel).",
)
@click.option(
    "--drain",
    is_flag=True,
    help="Shut running VMs down first, at most --wait seconds, remove all vGPUs, and restore them afterwards.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def set_scheduler(
    settings: Settings,
    targets: Targets,
    policy: str,
    time_slice: int | None,
    frequency: int | None,
    averaging_factor: int | None,
    preempt_timeout: int | None,
    drain: bool,
    dry_run: bool,
) -> int:
    """Set how the driver divides a GPU's time among its vGPUs or VFs, and write that to /etc/vgpuctl/host.yaml.

    best_effort guarantees nothing. equal_share gives each running vGPU the same share. fixed_share gives each vGPU the
    same share, whether the others run or not. NVIDIA's driver changes this only on a GPU without vGPUs; --drain removes
    the vGPUs temporarily and restores them. Intel's driver xe changes it for plain VFs while VMs run. What was set is
    lost when the driver is loaded again, or VFs are turned off; restore-host sets it again after a boot. Where the
    loaded driver cannot set it, the command writes host.yaml, shows the line for a file in /etc/modprobe.d, and ends
    with exit status 6.
    """
    return change(
        settings,
        "set-scheduler",
        targets,
        lambda host, gpu: host.set_scheduler(
            gpu,
            policy,
            time_slice_ms=time_slice,
            frequency_hz=frequency,
            averaging_factor=averaging_factor,
            preempt_timeout_us=preempt_timeout,
            drain=drain,
            dry_run=dry_run,
        ),
        question=_stop_question if drain else None,
        dry_run=dry_run,
    )


def _stop_question(rows: Rows, _: Rows) -> str:
    return f"Shut down the running VMs on {count_rows(rows, 'GPU')}, and start them again afterwards?"
