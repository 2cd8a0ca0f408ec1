# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl log`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings
from vgpuctl.config.arguments import DEFAULT_LOG_LINES, MAX_LOG_LINES


@make_command(
    "log",
    examples=(
        ("vgpuctl --host sim:a100-40 log --lines 10", "the last ten commands that changed this host"),
        ("vgpuctl --host sim:a100-40 log --vm vdi-001 --since 7d", "what was done with a VM in a week"),
        ("vgpuctl --host sim:a100-40 log --gpu 0000:3b:00.0 --failed", "what failed on a GPU"),
        ("vgpuctl log --user ada --since yesterday --json", "what a user did, for a program"),
    ),
)
@click.option("--vm", metavar="NAME", shell_complete=complete.vms, help="Only commands for this VM.")
@click.option("--gpu", metavar="ADDRESS", shell_complete=complete.gpus, help="Only commands for this GPU.")
@click.option("--since", metavar="TIME", help="Only since then: 30m, 2h, 7d, yesterday, '2026-11-25 13:30'.")
@click.option("--user", metavar="NAME", help="Only commands of this user: who logged in, also with sudo.")
@click.option("--failed", is_flag=True, help="Only commands that failed.")
@click.option(
    "--lines",
    type=click.IntRange(1, MAX_LOG_LINES),
    metavar="N",
    default=DEFAULT_LOG_LINES,
    help=f"The newest N commands ({DEFAULT_LOG_LINES}).",
)
@click.pass_obj
def log(
    settings: Settings,
    vm: str | None,
    gpu: str | None,
    since: str | None,
    user: str | None,
    failed: bool,
    lines: int,
) -> int:
    """Show which commands changed this host or tried to: when, who, with which result. The newest are last.

    The table of -o wide also has the VMs, the GPUs and the error. --filter and --sort-by work on the newest --lines
    commands.

    The log is in systemd's journal (journalctl -t vgpuctl), as far back as that goes. Without root you see what the
    journal shows you; members of the group systemd-journal or adm see everything. Dry runs and commands that only
    read are not in it.
    """
    settings.nothing = _nothing(vm=vm, gpu=gpu, user=user, since=since, failed=failed)
    return run.call(
        settings,
        "log",
        lambda host: host.log(vm=vm, gpu=gpu, since=since, user=user, failed=failed, lines=lines),
    )


def _nothing(*, vm: str | None, gpu: str | None, user: str | None, since: str | None, failed: bool) -> str:
    """Return what is said when no command matches: `no failed commands in the log for VM vdi-001 since 7d`."""
    given = {"for VM": vm, "for GPU": gpu, "of user": user, "since": since}
    limits = "".join(f" {word} {value}" for word, value in given.items() if value is not None)
    return f"no {'failed ' if failed else ''}commands in the log{limits}"
