# SPDX-License-Identifier: Apache-2.0
"""The commands that look after the whole host."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.run import CommandOutput
from vgpuctl.cli.settings import Settings

CHECK_FAILED_STATUS = 6


@make_command(
    "doctor",
    examples=(
        ("vgpuctl --host sim:a100-40 doctor", "everything that can be checked"),
        ("vgpuctl --host sim:a100-40 doctor iommu libvirt vfs", "these checks alone"),
        ("vgpuctl --host sim:a100-40 doctor --fix --dry-run", "what --fix would mend"),
        ("vgpuctl doctor --root /srv/captured --json", "a captured tree, for a program"),
    ),
)
@click.argument("ids", metavar="[CHECK]...", nargs=-1, shell_complete=complete.checks)
@click.option(
    "--fix",
    is_flag=True,
    help="Mend what is safe to mend: what reconcile and restore-host mend, and the mode of /run/vgpuctl. Asks before.",
)
@click.option("--dry-run", is_flag=True, help="With --fix: only say what would be done.")
@click.pass_obj
def doctor(settings: Settings, ids: tuple[str, ...], fix: bool, dry_run: bool) -> int:
    """Check this host: firmware, kernel, drivers, libvirt, GPUs, and what was left behind.

    Each check says what it saw and what to do. The exit status is 6 when a check fails, else 0; the result is printed
    in both cases. What cannot be seen, as without root, is unknown and no failure. docs/reference/doctor.md lists the
    checks.
    """
    if dry_run and not fix:
        raise click.UsageError("--dry-run goes with --fix: without it nothing is changed")

    return run.call(
        settings,
        "doctor",
        lambda host: host.fix_problems(*ids, dry_run=dry_run) if fix else host.doctor(*ids),
        lambda result: CommandOutput(result, status=CHECK_FAILED_STATUS if result.data.verdict == "fail" else 0),
    )


@make_command(
    "reconcile-host",
    examples=(
        ("vgpuctl --host sim:a100-40 reconcile-host --dry-run", "what is unfinished, and what would be done"),
        ("vgpuctl --host sim:a100-40 reconcile-host", "do it"),
    ),
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def reconcile(settings: Settings, dry_run: bool) -> int:
    """Finish or undo what a crash, a kill or a reboot interrupted.

    Half-made VMs are undone, half-removed ones removed, and devices that no VM and no process owns any more are
    removed when nothing uses them. A record or a claim that was lost is written again, and files that a killed
    command left half-written are removed. It goes on until nothing is left to do, at most five rounds. Foreign
    devices are left alone. vGPUs that are missing after a reboot are made by start-vm, those of host.yaml by
    restore-host.
    """
    return run.call(settings, "reconcile-host", lambda host: host.reconcile_host(dry_run=dry_run))


@make_command(
    "restore-host",
    examples=(
        ("vgpuctl --host sim:a100-40 restore-host --dry-run", "what is missing, and what would be made"),
        ("vgpuctl --host sim:a100-40 restore-host", "make it"),
    ),
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def restore_host(settings: Settings, dry_run: bool) -> int:
    """Make every missing vGPU again, as after a boot: those of host.yaml, then those of every VM.

    vgpuctl-restore.service runs this before libvirt starts, so libvirt is not asked: the VMs are read from its files.
    Drivers and virtual functions are waited for, at most 'boot: deadline_seconds:' of /etc/vgpuctl/host.yaml (300). A
    vGPU that cannot be made stops no other; the list of failures comes at the end. After a boot, GPUs that are not
    ready hold libvirt back for 'boot: hold_libvirt_seconds:' (30); autostart VMs of GPUs that come later are started
    when their GPUs are ready.
    """
    return run.call(settings, "restore-host", lambda host: host.restore_host(dry_run=dry_run))
