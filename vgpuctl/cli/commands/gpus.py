# SPDX-License-Identifier: Apache-2.0
"""The commands about GPUs: what each offers, what fits, and whether it takes new vGPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.run import CommandOutput
from vgpuctl.cli.settings import Settings
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.library import GpuHost
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.model.results.gpus import GpuResult


@make_command(
    "list-gpus",
    examples=(
        ("vgpuctl list-gpus", "GPUs and other devices that carry vGPUs"),
        ("vgpuctl list-gpus --all", "every device that a VM can be given"),
        ("vgpuctl --host sim:a16 list-gpus --json", "the GPUs of a simulated host, for a program"),
        ("vgpuctl list-gpus --plot gpus.svg", "a picture of the GPUs and their vGPUs"),
    ),
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also list every SR-IOV function, and every device bound to vfio-pci or to no driver.",
)
@click.option("--plot", metavar="FILE", type=click.Path(), help="Draw them: FILE.svg or FILE.png. Needs matplotlib.")
@click.pass_obj
def list_gpus(settings: Settings, everything: bool, plot: str | None) -> int:
    """List the GPUs: model, backend, mode, driver, memory, virtual functions, and who uses them.

    Foreign vGPUs, which vgpuctl did not make, are counted and marked. A GPU without a backend cannot carry a
    vGPU as it is set up now; a warning says why. --plot draws each
    GPU as a bar of its framebuffer, with its vGPUs in it.
    """

    def work(host: GpuHost) -> QueryResult[tuple[GpuResult, ...]]:
        if not plot:
            return host.list_gpus(everything=everything)
        from vgpuctl.cli import gpu_plot, new_file
        from vgpuctl.cli import plot as pictures

        new_file.require_new(plot, "--plot")
        picture_format = pictures.check_format(plot)
        result = host.list_gpus(everything=everything)
        new_file.write_new(plot, gpu_plot.draw(result.data, picture_format), "--plot")
        return replace(result, notes=(*result.notes, f"picture: {plot}"))

    return run.call(settings, "list-gpus", work)


@make_command(
    "show-gpu",
    examples=(("vgpuctl --host sim:a100-40 show-gpu 0000:3b:00.0", "one GPU with every vGPU on it"),),
)
@click.argument("address", shell_complete=complete.gpus)
@click.pass_obj
def show_gpu(settings: Settings, address: str) -> int:
    """Show one GPU with every vGPU on it and the VM that each belongs to.

    ADDRESS is a PCI address, or the kernel name of another mdev parent: what 'vgpuctl list-gpus --all' lists.
    """
    return run.call(settings, "show-gpu", lambda host: host.show_gpu(address))


@make_command(
    "list-profiles",
    examples=(
        ("vgpuctl list-profiles", "profiles that can be made now"),
        ("vgpuctl --host sim:a100-40 list-profiles --all", "every profile, also those without room"),
        ("vgpuctl --host sim:a100-40 list-profiles --gpu 0000:3b:00.0", "those of one GPU"),
    ),
)
@click.option("--gpu", metavar="ADDRESS", shell_complete=complete.gpus, help="Only the profiles of this GPU.")
@click.option("--all", "everything", is_flag=True, help="Also list profiles that have no room now.")
@click.pass_obj
def list_profiles(settings: Settings, gpu: str | None, everything: bool) -> int:
    """List the vGPU profiles that the drivers of this host offer.

    FREE is how many more can be made now on the whole host together, WHERE says on which GPUs. A '?' is not
    known: only the driver's answer to an attempt tells.
    """
    return run.call(settings, "list-profiles", lambda host: host.list_profiles(gpu=gpu, everything=everything))


@make_command(
    "explain",
    examples=(("vgpuctl --host sim:a100-40 explain A100-4C", "where it fits, where not, and why"),),
)
@click.argument("profile", shell_complete=complete.profiles)
@click.pass_obj
def explain(settings: Settings, profile: str) -> int:
    """Say for every GPU how many more of PROFILE fit, what stands in the way, and who holds the room.

    The numbers come from the same rules that create-vm places by.
    """
    return run.call(settings, "explain", lambda host: host.explain(profile))


STATUS_BY_FIT = {True: 0, False: 4, None: 1}


@make_command(
    "fits",
    examples=(
        ("vgpuctl --host sim:a100-40 fits --profile A100-4C:10", "where ten desktops would go"),
        (
            "vgpuctl --host sim:l40s-x4 fits --profile L40S-4Q:14 --profile L40S-8Q:8",
            "both together: yes with a place for each, or the fewest that are too many",
        ),
    ),
)
@click.option(
    "--profile",
    "profiles",
    metavar="PROFILE[:N]",
    multiple=True,
    required=True,
    shell_complete=complete.profiles,
    help="A vGPU profile, with :N for so many of it; repeat it for several profiles.",
)
@click.option("--gpu", metavar="GPU", shell_complete=complete.gpus, help="Only on this GPU, or on those of a model.")
@click.pass_obj
def fits(settings: Settings, profiles: tuple[str, ...], gpu: str | None) -> int:
    """Say whether all these vGPUs, each in a VM of its own, fit on this host together as it is now.

    The exit status is 0 when they do: then it is shown which GPU each one goes to. It is 4 when they do not: then the
    fewest without which the others fit are shown, and what each GPU has room for. It is 1 when that is not known,
    because the driver does not say how many fit, or the solver (the Python package highspy) is missing or takes too
    long. Nothing is reserved.
    """
    return run.call(
        settings,
        "fits",
        lambda host: host.fits(*profiles, gpu=gpu),
        lambda result: CommandOutput(result, status=STATUS_BY_FIT[result.data.fits]),
    )


@make_command(
    "cordon",
    examples=(("vgpuctl --host sim:a100-40 cordon 0000:3b:00.0", "before maintenance: nothing new goes there"),),
)
@click.argument("gpu", shell_complete=complete.gpus)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def cordon(settings: Settings, gpu: str, dry_run: bool) -> int:
    """Keep new vGPUs and VMs from a GPU: before maintenance, or while it is suspect.

    What is on it stays, and its VMs can be stopped and started. GPU is an address, or a model that this host has once.
    It is written to /etc/vgpuctl/host.yaml and so outlives a reboot; the comments there stay.
    """
    return run.call(settings, "cordon", lambda host: host.cordon(gpu, dry_run=dry_run))


@make_command(
    "uncordon",
    examples=(("vgpuctl --host sim:a100-40 uncordon 0000:3b:00.0", "new vGPUs may go there again"),),
)
@click.argument("gpu", shell_complete=complete.gpus)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def uncordon(settings: Settings, gpu: str, dry_run: bool) -> int:
    """Let new vGPUs and VMs on a GPU again."""
    return run.call(settings, "uncordon", lambda host: host.uncordon(gpu, dry_run=dry_run))
