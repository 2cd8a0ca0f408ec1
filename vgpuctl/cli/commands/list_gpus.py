# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl list-gpus`."""

from __future__ import annotations

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


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
    help="Also list every SR-IOV function, and every device bound to vfio-pci or to no driver.",
)
@click.pass_obj
def command(settings: Settings, everything: bool) -> int:
    """List the GPUs: model, backend, mode, driver, memory, virtual functions, and who uses them.

    Foreign vGPUs, which vgpuctl did not make, are counted and marked. A GPU without a backend cannot carry a
    vGPU as it is set up now; a warning says why.
    """
    return run.call(settings, "list-gpus", lambda host: host.list_gpus(everything=everything))
