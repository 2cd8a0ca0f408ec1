# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl doctor`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.result import CommandOutput
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
def command(settings: Settings, ids: tuple[str, ...], fix: bool, dry_run: bool) -> int:
    """Check this host: firmware, kernel, drivers, libvirt, GPUs, and what was left behind.

    Each check says what it saw and what to do. The exit status is 6 when a check fails, else 0; the result is printed
    in both cases. What cannot be seen, as without root, is unknown and no failure. docs/doctor.md lists the checks.
    """
    if dry_run and not fix:
        raise click.UsageError("--dry-run goes with --fix: without it nothing is changed")

    return run.call(
        settings,
        "doctor",
        lambda host: host.fix_problems(*ids, dry_run=dry_run) if fix else host.doctor(*ids),
        lambda result: CommandOutput(result, status=CHECK_FAILED_STATUS if result.data.verdict == "fail" else 0),
    )
