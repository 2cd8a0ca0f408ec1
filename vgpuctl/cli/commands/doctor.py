# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings

if TYPE_CHECKING:
    from vgpuctl.cli.result import CommandOutput
    from vgpuctl.cli.signals import SignalGuard
    from vgpuctl.model.outcome import Outcome

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

    def work(guard: SignalGuard) -> CommandOutput:
        from vgpuctl.cli.result import CommandOutput

        if fix:
            outcome = _fix(settings, guard, ids, dry_run=dry_run)
            data, changed = outcome.data, outcome.changed
        else:
            from vgpuctl.cli import hosts
            from vgpuctl.engine import diagnose
            from vgpuctl.model.outcome import Outcome

            outcome = Outcome(False, diagnose.diagnose(hosts.open_host(settings), ids))
            data, changed = outcome.data, False
        result_data = {**data, "steps": list(outcome.steps), "notes": list(outcome.notes), "dry_run": outcome.dry_run}
        status = CHECK_FAILED_STATUS if data["verdict"] == "fail" else 0
        return CommandOutput(result_data, changed, outcome.warnings, outcome.notes, status=status)

    return run.perform(settings, "doctor", work)


def _fix(settings: Settings, guard: SignalGuard, ids: tuple[str, ...], *, dry_run: bool) -> Outcome:
    from vgpuctl.cli import confirm, hosts, progress
    from vgpuctl.engine import diagnose

    host = hosts.open_host_to_change(settings)
    reporter = progress.choose_progress(settings, guard)
    try:
        return diagnose.fix_problems(
            host,
            ids,
            dry_run=dry_run,
            confirm=confirm.ConfirmationPrompt(settings),
            wait_seconds=settings.wait,
            progress=reporter,
        )
    finally:
        reporter.close()
