# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl list-vms`."""

from __future__ import annotations

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "list-vms",
    examples=(("vgpuctl --host sim:a100-40 list-vms", "every VM with its vGPUs"),),
)
@click.pass_obj
def command(settings: Settings) -> int:
    """List the VMs with their state and vGPUs: those that vgpuctl made, and unmanaged ones marked as such."""
    return run.call(settings, "list-vms", lambda host: host.list_vms())
