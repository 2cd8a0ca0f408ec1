# SPDX-License-Identifier: Apache-2.0
"""The commands about GPUs: what each offers, what fits, and whether it takes new vGPUs."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.run import CommandOutput
from vgpuctl.cli.settings import Settings
from vgpuctl.cli.targets import Targets, change, query


@make_command(
    "list-gpus",
    examples=(
        ("vgpuctl list-gpus", "GPUs and other devices that carry vGPUs"),
        ("vgpuctl list-gpus --all", "every device that a VM can be given"),
        ("vgpuctl --host sim:a16 list-gpus --json", "the GPUs of a simulated host, for a program"),
    ),
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also list every SR-IOV function, and every device that vfio-pci or no driver is bound to.",
)
@click.pass_obj
def list_gpus(settings: Settings, everything: bool) -> int:
    """List the GPUs with their model, backend, mode, driver, memory, virtual functions and vGPUs.

    Unmanaged vGPUs, which vgpuctl did not create, are counted separately. A GPU without a backend cannot carry a vGPU
    as it is set up now; a warning shows why.
    """
    return run.call(settings, "list-gpus", lambda host: host.list_gpus(everything=everything))


@make_command(
    "show-gpu",
    examples=(
        ("vgpuctl --host sim:a100-40 show-gpu 0000:3b:00.0", "one GPU with every vGPU on it"),
        ("vgpuctl --host sim:l40s-x4 show-gpu --all", "every GPU"),
    ),
)
@targets.gpus
@click.pass_obj
def show_gpu(settings: Settings, targets: Targets) -> int:
    """Show GPUs with every vGPU on them and the VM that each belongs to.

    GPU is a PCI address, a model, a glob of these, or the kernel name of another mdev parent. 'vgpuctl list-gpus --all'
    shows them.
    """
    return query(settings, "show-gpu", targets, lambda host, gpu: host.show_gpu(gpu))


@make_command(
    "list-profiles",
    examples=(
        ("vgpuctl list-profiles", "profiles that fit now"),
        ("vgpuctl --host sim:a100-40 list-profiles --all", "every profile, also those without room"),
        ("vgpuctl --host sim:a100-40 list-profiles --gpu 0000:3b:00.0", "those of one GPU"),
    ),
)
@click.option("--gpu", metavar="ADDRESS", shell_complete=complete.gpus, help="Only the profiles of this GPU.")
@click.option("--all", "everything", is_flag=True, help="Also list profiles that have no room now.")
@click.pass_obj
def list_profiles(settings: Settings, gpu: str | None, everything: bool) -> int:
    """List the vGPU profiles that the drivers of this host offer.

    FREE is how many more fit now on the whole host, GPU is where they fit. '?' is unknown. In NVIDIA's names the letter
    at the end is the use: Q workstations, B office desktops, A published applications, C compute. GPUs and drivers do
    not offer all of them. The number is the framebuffer in GiB.
    """
    return run.call(settings, "list-profiles", lambda host: host.list_profiles(gpu=gpu, everything=everything))


@make_command(
    "explain",
    examples=(("vgpuctl --host sim:a100-40 explain A100-4C", "where it fits, where not, and why"),),
)
@click.argument("profile", shell_complete=complete.profiles)
@click.pass_obj
def explain(settings: Settings, profile: str) -> int:
    """Explain for every GPU how many more of PROFILE fit, what prevents more, and who holds the room.

    create-vm chooses a place by the same rules.
    """
    return run.call(settings, "explain", lambda host: host.explain(profile))


STATUS_BY_FIT = {True: 0, False: 4, None: 1}


@make_command(
    "fits",
    examples=(
        ("vgpuctl --host sim:a100-40 fits --profile A100-4C:10", "where ten desktops would go"),
        (
            "vgpuctl --host sim:l40s-x4 fits --profile L40S-4Q:14 --profile L40S-8Q:8",
            "both together: a place for each, or the fewest that do not fit",
        ),
        ("vgpuctl --host sim:hgx-h100 fits --gpus 4", "the four whole GPUs that one VM would get"),
    ),
)
@click.option(
    "--profile",
    "profiles",
    metavar="PROFILE[:N]",
    multiple=True,
    shell_complete=complete.profiles,
    help="A vGPU profile, with :N for N of it; repeatable.",
)
@click.option("--gpu", metavar="GPU", shell_complete=complete.gpus, help="Only on this GPU, or on those of this model.")
@click.option("--gpus", metavar="N", help="Instead of profiles: N whole GPUs for one VM (passthrough).")
@click.pass_obj
def fits(settings: Settings, profiles: tuple[str, ...], gpu: str | None, gpus: str | None) -> int:
    """Check whether these vGPUs, each in a VM of its own, fit on this host together now. Nothing is reserved.

    Exit status 0: they fit, and the page shows the GPU for each. 4: they do not fit, and the page shows the fewest to
    drop, and the room on each GPU. 1: unknown, because the driver does not report how many fit, or because the
    solver (the Python package highspy) is missing or takes too long.
    """
    return run.call(
        settings,
        "fits",
        lambda host: host.fits(*profiles, gpu=gpu, gpus=gpus),
        lambda result: CommandOutput(result, status=STATUS_BY_FIT[result.data.fits]),
    )


@make_command(
    "cordon",
    examples=(
        ("vgpuctl --host sim:a100-40 cordon 0000:3b:00.0", "before maintenance: nothing new goes there"),
        ("vgpuctl --host sim:l40s-x4 cordon L40S --all", "every L40S"),
    ),
)
@targets.gpus
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def cordon(settings: Settings, targets: Targets, dry_run: bool) -> int:
    """Place no new vGPUs and VMs on GPUs: before maintenance, or while a GPU is suspect.

    The vGPUs on it stay, and their VMs can be stopped and started. GPU is an address, a glob, or a model; --all allows
    a model that several GPUs have. vgpuctl writes this to /etc/vgpuctl/host.yaml, so a reboot does not end it.
    """
    return change(settings, "cordon", targets, lambda host, gpu: host.cordon(gpu, dry_run=dry_run), dry_run=dry_run)


@make_command(
    "uncordon",
    examples=(("vgpuctl --host sim:a100-40 uncordon 0000:3b:00.0", "new vGPUs may go there again"),),
)
@targets.gpus
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def uncordon(settings: Settings, targets: Targets, dry_run: bool) -> int:
    """Allow new vGPUs and VMs on GPUs again."""
    return change(settings, "uncordon", targets, lambda host, gpu: host.uncordon(gpu, dry_run=dry_run), dry_run=dry_run)
