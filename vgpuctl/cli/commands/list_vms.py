# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl list-vms`."""

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
    "list-vms",
    examples=(("vgpuctl --host sim:a100-40 list-vms", "every VM with its vGPUs"),),
)
@click.pass_obj
def command(settings: Settings) -> int:
    """List the VMs with their state and vGPUs: those that vgpuctl made, and unmanaged ones marked as such."""

    def read(host: Host) -> QueryResult:
        from vgpuctl.engine import queries

        return queries.list_vms(host)

    return run.query(settings, "list-vms", read)
