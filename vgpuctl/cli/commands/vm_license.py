# SPDX-License-Identifier: Apache-2.0
"""The command that brings a new token for NVIDIA's license into the seeds of VMs."""

from __future__ import annotations

import click

from vgpuctl.cli import targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.targets import Targets, change


@make_command(
    "refresh-license",
    shown_by="show-vm",
    words=("written", "left alone"),
    examples=(
        ("vgpuctl refresh-license 'desk-*'", "after a new token was put into the license's folder; then reboot them"),
        ("vgpuctl refresh-license desk-1 --clear --dry-run", "what taking the token out of the seed would do"),
    ),
)
@targets.vms()
@click.option("--clear", is_flag=True, help="Take the license out of the seed; the guest keeps what it has.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def refresh_license(settings: Settings, targets: Targets, clear: bool, dry_run: bool) -> int:
    """Write the licenses of VMs into their seeds again, with the current tokens; guests get them at their next boot.

    VMs without a license are left alone. The host agent takes a license out of a seed again once the
    guest is licensed, so that no secret lies there longer than needed; --clear does the same.
    """
    return change(
        settings,
        "refresh-license",
        targets,
        lambda host, name: host.refresh_license(name, clear=clear, dry_run=dry_run),
        dry_run=dry_run,
    )
