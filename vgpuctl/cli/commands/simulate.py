# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl simulate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings
from vgpuctl.config.arguments import MAX_DAYS, MAX_LOAD, MAX_REQUESTS, MAX_SIMULATED_HOSTS, SIMULATION_PATTERNS
from vgpuctl.config.vm_fields import DEFAULT_PLACEMENT_POLICY, PLACEMENT_POLICIES
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.library import GpuHost
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.model.results.simulation import SimulationResult


@make_command(
    "simulate",
    examples=(
        ("vgpuctl --host sim:l40s-x4 simulate --generate vdi-day", "a day of desktops on four L40S"),
        ("vgpuctl --host sim:l40s-x4 simulate --generate churn --host-count 4 --compare", "every policy on 16 L40S"),
        ("vgpuctl simulate --requests week.csv --plot week.svg", "what was asked for last week, on this host's GPUs"),
    ),
)
@click.option(
    "--requests",
    "requests",
    metavar="CSV",
    type=click.Path(),
    help="Arrivals and departures: docs/simulate.md. The Alibaba GPU trace's columns are taken, too.",
)
@click.option("--generate", type=click.Choice(SIMULATION_PATTERNS), help="Make requests up, of this pattern.")
@click.option(
    "--load",
    type=click.IntRange(1, MAX_LOAD),
    metavar="PERCENT",
    help="Generate what asks for so much of the framebuffer. [100]",
)
@click.option(
    "--count",
    type=click.IntRange(1, MAX_REQUESTS),
    metavar="N",
    help="Generate so many requests in place of a load; for vdi-day so many desktops.",
)
@click.option(
    "--mix",
    multiple=True,
    metavar="PROFILE:WEIGHT",
    help="Generate requests for these profiles: A16-2B, or 2B for any model's. [the pattern's]",
)
@click.option("--days", type=click.IntRange(1, MAX_DAYS), metavar="N", help="How long. [vdi-day: 1, others: 7]")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="The same seed makes the same requests. [1]")
@click.option("--write", metavar="CSV", type=click.Path(), help="Keep what was generated, for --requests.")
@click.option(
    "--placement",
    type=click.Choice(PLACEMENT_POLICIES),
    help=f"The policy. [host.yaml's, else {DEFAULT_PLACEMENT_POLICY}]",
)
@click.option("--compare", is_flag=True, help="Every policy on the same requests.")
@click.option(
    "--host-count",
    type=click.IntRange(1, MAX_SIMULATED_HOSTS),
    default=1,
    metavar="N",
    help="So many hosts like this. [1]",
)
@click.option("--keep", is_flag=True, help="What is on the GPUs now stays there. [they are taken as empty]")
@click.option(
    "--mig-on-demand",
    is_flag=True,
    help="On GPUs with MIG each vGPU makes its own GPU instance. [those that are there are used]",
)
@click.option("--plot", metavar="FILE", type=click.Path(), help="Draw it: FILE.svg or FILE.png. Needs matplotlib.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    write: str | None,
    plot: str | None,
    **options: Any,
) -> int:
    """Replay arrivals and departures of vGPUs on the GPUs of a host, or of many; nothing is changed.

    Says how many requests are admitted and refused by profile, how much framebuffer is allocated over time, how many
    GPUs are locked to another size, and how much framebuffer is stranded: free, and of no use for what is asked for.
    THOUGH FREE counts the refused for whom a GPU had the framebuffer.

    least-waste protects the mix of the requests that are replayed.
    """
    request_fields = {**options, "mix": tuple(options["mix"])}

    def work(host: GpuHost) -> QueryResult[SimulationResult]:
        from vgpuctl.cli import new_file
        from vgpuctl.cli import plot as pictures
        from vgpuctl.library import simulation
        from vgpuctl.model.outcome import QueryResult

        request = simulation.SimulationRequest(**request_fields)
        simulation.check(request)
        if write is not None and request.requests is not None:
            raise simulation.usage_error("--write goes with --generate")
        if plot and plot == write:
            raise simulation.usage_error("--plot and --write name one file")
        for option, path in (("--plot", plot), ("--write", write)):
            if path:
                new_file.require_new(path, option)
        picture_format = pictures.check_format(plot) if plot else ""
        result = host.simulate(request)
        data = replace(result.data, plot=plot or None, written=write)
        picture = pictures.draw(data, picture_format) if plot else b""
        if write:
            new_file.write_new(write, "".join(result.csv).encode(), "--write")
        if plot:
            new_file.write_new(plot, picture, "--plot")
        return QueryResult(data, result.warnings)

    return run.call(settings, "simulate", work)
