# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl uninstall-host`."""

from __future__ import annotations

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "uninstall-host",
    examples=(
        ("vgpuctl --host sim:a100-40 uninstall-host --dry-run", "what would be taken away"),
        (
            "vgpuctl --host sim:a100-40 uninstall-host --restart-libvirt",
            "take it away",
        ),
    ),
)
@click.option("--restart-libvirt", is_flag=True, help="Restart libvirt's daemon as well; running VMs stay.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, restart_libvirt: bool, dry_run: bool) -> int:
    """Take away what install-host put in place. VMs and their vGPUs stay, and so does host.yaml.

    A file that was changed by hand is kept and named. /etc/vgpuctl goes only when it is empty.
    """
    return run.call(
        settings,
        "uninstall-host",
        lambda host: host.uninstall_host(restart_libvirt=restart_libvirt, dry_run=dry_run),
    )
