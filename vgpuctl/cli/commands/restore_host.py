# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl restore-host`."""

from __future__ import annotations

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "restore-host",
    examples=(
        ("vgpuctl --host sim:a100-40 restore-host --dry-run", "what is missing, and what would be made"),
        ("vgpuctl --host sim:a100-40 restore-host", "make it"),
    ),
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, dry_run: bool) -> int:
    """Make every missing vGPU again, as after a boot: those of host.yaml, then those of every VM.

    vgpuctl-restore.service runs this before libvirt starts, so libvirt is not asked: the VMs are read from its files.
    Drivers and virtual functions are waited for, at most 'boot: deadline_seconds:' of /etc/vgpuctl/host.yaml (300). A
    vGPU that cannot be made stops no other; the list of failures comes at the end. After a boot, GPUs that are not
    ready hold libvirt back for 'boot: hold_libvirt_seconds:' (30); autostart VMs of GPUs that come later are started
    when their GPUs are ready.
    """
    return run.call(settings, "restore-host", lambda host: host.restore_host(dry_run=dry_run))
