# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl list-gpus`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings

if TYPE_CHECKING:
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.ports.host import Host


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

    def read(host: Host) -> QueryResult:
        from vgpuctl.engine import queries

        return queries.list_gpus(host, everything=everything)

    return run.query(settings, "list-gpus", read)
