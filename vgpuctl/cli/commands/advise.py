# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl advise`: advice, which nothing carries out by itself."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Block, Page, Pairs, Table, mib, or_dash
from vgpuctl.config.arguments import WORKLOADS
from vgpuctl.model.numbers import count_text

if TYPE_CHECKING:
    from vgpuctl.library import GpuHost
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results.advice import AdviceResult
    from vgpuctl.model.results.techniques import TechniqueResult, WorkloadAdviceResult

_MAX_DETAILED = 4
"""Of so many techniques, limits and commands are shown; JSON has all."""


def _workload(data: WorkloadAdviceResult) -> Page:
    headers = ("#", "TECHNIQUE", "FIT", "MEMORY", "COMPUTE", "FAULTS", "GPUS", "WHY")
    rows = tuple(
        (
            str(t.rank),
            t.technique,
            t.fit,
            t.isolation.memory.degree,
            t.isolation.compute.degree,
            t.isolation.faults.degree,
            f"{sum(not gpu.lacks for gpu in t.gpus)} of {len(t.gpus)}",
            t.reason,
        )
        for t in data.techniques
    )
    title = f"{data.workload}: {data.title}; isolation of memory, compute and faults; GPUs of this host"
    blocks: list[Block] = [title, "", Table(headers, rows, frozenset({"#"}), frozenset({"WHY"}))]
    usable = [t for t in data.techniques if t.fit in ("good", "possible") and not all(gpu.lacks for gpu in t.gpus)]
    for technique in usable[:_MAX_DETAILED]:
        blocks += ["", f"{technique.rank}. {technique.title}", Pairs(_details(technique))]
    return Page([*blocks, "", "limits, commands and sources of all: --json"])


def _details(technique: TechniqueResult) -> tuple[tuple[str, str], ...]:
    """Return the limits, what GPUs lack, and the commands for the GPU that needs the fewest."""
    items = [("limit", limit) for limit in technique.limits]
    lacking: dict[str, list[str]] = {}
    for gpu in technique.gpus:
        if gpu.lacks:
            lacking.setdefault(gpu.lacks[0], []).append(gpu.address)
    items += [("cannot", f"{', '.join(addresses)}: {reason}") for reason, addresses in lacking.items()]
    able = [gpu for gpu in technique.gpus if not gpu.lacks]
    items += [("can", ", ".join(gpu.address for gpu in able))]
    easiest = min(able, key=lambda gpu: (len(gpu.notes), len(gpu.commands)))
    items += [("first", note) for note in easiest.notes]
    return (*items, *(("command", command) for command in easiest.commands))


def _advice(data: AdviceResult | WorkloadAdviceResult) -> Page:
    from vgpuctl.model.results.advice import AdviceResult

    return _sizes(data) if isinstance(data, AdviceResult) else _workload(data)


def _sizes(data: AdviceResult) -> Page:
    headers = ("VM", "PROFILE", "PEAK", "WHEN", "DAYS", "ADVICE", "CONFIDENCE", "FREES", "WHY")
    rows = tuple(
        (
            row.vm if not row.index else f"{row.vm} {row.index}",
            row.profile,
            _gib(row.peak_memory_bytes),
            "-" if row.peak_time is None else _when(row.peak_time),
            str(row.days),
            f"{row.advised_profile or 'none'}{' (planned)' if row.planned else ''}",
            or_dash(row.confidence),
            "-" if row.frees_mib is None else mib(row.frees_mib),
            row.reason,
        )
        for row in data.sizes
    )
    blocks: list[Block] = [
        f"framebuffer of {count_text(len(rows), 'vGPU')}, its highest use in {count_text(data.days, 'day')}",
        "",
        Table(headers, rows, frozenset({"PEAK", "DAYS", "FREES"}), frozenset({"WHY"})),
    ]
    commands = dict.fromkeys(row.command for row in data.sizes if row.command is not None and not row.planned)
    if commands:
        blocks += ["", "to follow the advice at once; --apply does it when each VM is next off:"]
        blocks += [f"  {command}" for command in commands]
    if data.idle:
        blocks += ["", "on for five days, and hardly used:", *(f"  {vm.command}" for vm in data.idle)]
    used = tuple(
        (group.name or "-", str(group.vms), f"{group.given_gib_hours:g}", f"{group.used_gib_hours:g}")
        for group in data.consumption
    )
    numbers = frozenset({"VMS", "GIB-HOURS GIVEN", "USED"})
    blocks += ["", Table((data.by.upper(), "VMS", "GIB-HOURS GIVEN", "USED"), used, numbers)]
    return Page(blocks)


def _follow(host: GpuHost) -> Outcome[Any]:
    """Plan the advised profiles of each VM that no change waits for."""
    rows = host.advise_sizes(by="owner").data.sizes
    profiles = {row.vm: row.profiles for row in rows if row.profiles and not row.planned}
    return host.for_each(
        "set-vm", list(profiles), lambda each, name: each.set_vm(name, profile=profiles[name], when_off=True)
    )


def _when(seconds: float) -> str:
    """Return a time as this machine's clock shows it."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def _gib(number: int | None) -> str:
    return "?" if number is None else f"{number / 2**30:.1f} GiB"


def _write_page(path: str, text: str) -> str:
    """Write a page that only its owner can read, in place of an older one; return what is printed.

    Raises:
        FileFailed: it cannot be written; an older one is as it was.
    """
    import os
    import stat
    import tempfile

    from vgpuctl.errors import FileFailed

    directory = os.path.dirname(os.path.abspath(path))
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise FileFailed(f"{path} is not a regular file", hint=f"ls -ld {shlex.quote(path)}", path=path)
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=".vgpuctl-", dir=directory)  # its mode is 0600
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        hint = f"ls -ld {shlex.quote(directory)}; df -h {shlex.quote(directory)}"
        raise FileFailed(
            f"{path} cannot be written: {error.strerror}", hint=hint, path=path, errno=error.errno
        ) from error
    return f"wrote {path}\n"


@make_command(
    "advise",
    page=_advice,
    examples=(
        ("vgpuctl advise", "which VMs fit a smaller profile or need a larger one, and which are idle"),
        ("vgpuctl advise --by team", "and GPU memory by the label team"),
        ("vgpuctl advise --apply", "each VM gets its advised profile, a running one when it is next off"),
        ("vgpuctl --host sim:mixed advise --workload cad", "what fits CAD desktops on this host's GPUs, and why"),
    ),
)
@click.option("--workload", type=click.Choice(WORKLOADS), help="Compare ways to share a GPU for what the VMs do.")
@click.option("--by", metavar="owner|LABEL", help="Show GPU memory given and used by owner, or by a label. [owner]")
@click.option("--html", metavar="FILE", help="Write the advice as one page to this file, which only you can read.")
@click.option(
    "--apply",
    "follows",
    is_flag=True,
    help="Give each VM its advised profile when it is next off; now if it is off.",
)
@click.pass_obj
def advise(settings: Settings, workload: str | None, by: str | None, html: str | None, follows: bool) -> int:
    """Advise on profiles by the use of vGPUs, or with --workload on ways to share a GPU.

    The host agent keeps the use of vGPUs for 35 days. A profile is advised where the highest use, with a margin of 15 %
    and a quarter of a GiB, fits a smaller one of the same series, or fills the present one; not before ten days with a
    running guest driver, and not while weekly peaks rise.

    --workload compares vGPUs by scheduler, mixed sizes, MIG, whole GPUs and others: isolation of memory, compute and
    faults, reasons and limits, the GPUs of this host that can do it or what they lack, and commands.

    --apply plans what is advised as set-vm --when-off does; show-vm shows it. Otherwise nothing is changed, and nothing
    is chosen for you.
    """
    if follows and (workload is not None or by is not None or html is not None):
        raise click.UsageError("--apply cannot be combined with --workload, --by and --html")
    if follows:
        return run.call(settings, "set-vm", _follow)
    if workload is not None:
        if by is not None or html is not None:
            raise click.UsageError("--workload cannot be combined with --by and --html")
        return run.call(settings, "advise", lambda host: host.advise_workload(workload))
    group = by or "owner"
    if html is None:
        return run.call(settings, "advise", lambda host: host.advise_sizes(by=group))
    return run.call(
        settings,
        "usage-report",
        lambda host: host.usage_report(by=group),
        lambda result: run.CommandOutput(result, raw=_write_page(html, result.data.text)),
    )
