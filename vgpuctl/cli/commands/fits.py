# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl fits`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.result import CommandOutput
from vgpuctl.cli.settings import Settings

STATUS_BY_FIT = {True: 0, False: 4, None: 1}


@make_command(
    "fits",
    examples=(
        ("vgpuctl --host sim:a100-40 fits --profile A100-4C:10", "where ten desktops would go"),
        (
            "vgpuctl --host sim:l40s-x4 fits --profile L40S-4Q:14 --profile L40S-8Q:8",
            "both together: yes with a place for each, or the fewest of them that are too many",
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
def command(settings: Settings, profiles: tuple[str, ...], gpu: str | None) -> int:
    """Say whether all these vGPUs, each in a VM of its own, fit on this host together as it is now.

    The exit status is 0 when they do: then it is shown which GPU each one goes to. It is 4 when they do not: then the
    fewest of them that are too many are shown, and what each GPU has room for. It is 1 when that is not known, because
    the driver keeps to itself how many fit or there are too many ways to try. Nothing is reserved.
    """
    return run.call(
        settings,
        "fits",
        lambda host: host.fits(*profiles, gpu=gpu),
        lambda result: CommandOutput(result, status=STATUS_BY_FIT[result.data.fits]),
    )
