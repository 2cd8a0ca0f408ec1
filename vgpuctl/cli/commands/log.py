# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl log`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Column, Listing, Page, or_unknown, shorten_names
from vgpuctl.config.arguments import DEFAULT_LOG_LINES, MAX_LOG_LINES

if TYPE_CHECKING:
    from vgpuctl.model.results.host import LogEntryResult


def log_result(entry: LogEntryResult) -> str:
    """Return how a command ended: `ok`, `no change`, or the error's code."""
    return "no change" if entry.result == "ok" and not entry.changed else entry.result


def local_time(entry: LogEntryResult) -> str:
    """Return when a command ended, in local time; the text of another version as it is."""
    try:
        return datetime.fromisoformat(entry.time).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return entry.time


def log_command(entry: LogEntryResult) -> str:
    """Return the command line without the program's name and without --host: the log is one host's.

    A line that no shell takes, such as one that was cut, is returned as it is.
    """
    text = entry.arguments.removeprefix("vgpuctl ")
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    kept = tuple(_without_host(words))
    return text if len(kept) == len(words) else shlex.join(kept)


def _without_host(words: Sequence[str]) -> Iterator[str]:
    is_value = False
    for word in words:
        if not is_value and word != "--host" and not word.startswith("--host="):
            yield word
        is_value = word == "--host"


LOG = Listing(
    "entries of the log",
    (
        Column("time", "TIME", lambda entry: entry.time, local_time),
        Column("user", "USER", lambda entry: entry.user, lambda entry: or_unknown(entry.user)),
        Column("uid", "UID", lambda entry: entry.uid, level="wide", numeric=True),
        Column("result", "RESULT", lambda entry: entry.result, log_result),
        Column(
            "seconds", "SECONDS", lambda entry: entry.duration_seconds, lambda entry: f"{entry.duration_seconds:.1f}",
            numeric=True,
        ),
        Column("vms", "VMS", lambda entry: entry.vms, lambda entry: shorten_names(entry.vms) or "-", "wide"),
        Column("gpus", "GPUS", lambda entry: entry.gpus, lambda entry: shorten_names(entry.gpus) or "-", "wide"),
        Column("command", "COMMAND", log_command, free_text=True),
        Column("error", "ERROR", lambda entry: entry.error, level="wide", free_text=True),
        Column("left", "LEFT", lambda entry: entry.left, level="named", free_text=True),
        Column("spec", "SPEC", lambda entry: entry.spec, level="named", free_text=True),
        Column("changed", "CHANGED", lambda entry: entry.changed, level="named"),
        Column("status", "STATUS", lambda entry: entry.exit_status, level="named", numeric=True),
    ),
    lambda entry: f"{entry.time} {entry.command}",
)  # fmt: skip


def _log(data: tuple[LogEntryResult, ...]) -> Page:
    return Page(stderr_lines=[] if data else ["no such commands in the log"])


def _nothing(*, vm: str | None, gpu: str | None, user: str | None, since: str | None, failed: bool) -> str:
    """Return what is said when no command matches: `no failed commands in the log for VM vdi-001 since 7d`."""
    given = {"for VM": vm, "for GPU": gpu, "of user": user, "since": since}
    limits = "".join(f" {word} {value}" for word, value in given.items() if value is not None)
    return f"no {'failed ' if failed else ''}commands in the log{limits}"


@make_command(
    "log",
    page=_log,
    listing=LOG,
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
