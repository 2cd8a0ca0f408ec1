# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl advise`: advice, which nothing carries out by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Block, Page, Pairs, Table
from vgpuctl.config.arguments import WORKLOADS

if TYPE_CHECKING:
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


@make_command(
    "advise",
    page=_workload,
    examples=(
        ("vgpuctl --host sim:mixed advise --workload cad", "what fits CAD desktops on this host's GPUs, and why"),
        ("vgpuctl --host sim:h100-mig advise --workload inference --json", "all of it for a program"),
    ),
)
@click.option("--workload", type=click.Choice(WORKLOADS), required=True, help="What the VMs do.")
@click.pass_obj
def advise(settings: Settings, workload: str) -> int:
    """Compare the ways to share a GPU for a workload: vGPUs by scheduler, mixed sizes, MIG, whole GPUs and others.

    Each has its isolation of memory, compute and faults, its reasons and limits, the GPUs of this host that can do it
    or what they lack, and commands. Nothing is changed, and nothing is chosen for you.
    """
    return run.call(settings, "advise", lambda host: host.advise_workload(workload))
