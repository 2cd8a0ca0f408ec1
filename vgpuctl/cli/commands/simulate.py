# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl simulate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings
from vgpuctl.config.arguments import MAX_DAYS, MAX_DESKTOPS, MAX_SIMULATED_HOSTS, SIMULATION_PATTERNS
from vgpuctl.config.vm_fields import DEFAULT_PLACEMENT_POLICY, PLACEMENT_POLICIES
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.library import GpuHost
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.model.results.simulation import SimulationResult


@make_command(
    "simulate",
    examples=(
        ("vgpuctl --host sim:l40s-x4 simulate", "a day of desktops on four L40S"),
        ("vgpuctl --host sim:empty simulate --add-cards A16:3 --count 80", "80 desktops, if I bought three A16 cards"),
        ("vgpuctl --host sim:l40s-x4 simulate --generate churn --host-count 4 --compare", "every policy on 16 L40S"),
        ("vgpuctl simulate --requests week.csv --plot week.svg", "last week's requests on this host's GPUs"),
    ),
)
@click.option(
    "--requests",
    "requests",
    metavar="CSV",
    type=click.Path(),
    help="Replay the arrivals and departures in this file; its columns are below.",
)
@click.option(
    "--generate",
    type=click.Choice(tuple(SIMULATION_PATTERNS)),
    help=f"Generate requests of desktops in this pattern. [{next(iter(SIMULATION_PATTERNS))}]",
)
@click.option(
    "--count",
    type=click.IntRange(1, MAX_DESKTOPS),
    metavar="N",
    help="How many desktops; churn: at a time, on average. [enough to use the framebuffer of all GPUs]",
)
@click.option(
    "--mix",
    multiple=True,
    metavar="PROFILE:WEIGHT",
    help="Profiles of the desktops: A16-2B, or 2B for any model. [1B:40 2B:35 4Q:20 8Q:5]",
)
@click.option(
    "--days",
    type=click.IntRange(1, MAX_DAYS),
    metavar="N",
    help=f"How long. [{', '.join(f'{name}: {days}' for name, days in SIMULATION_PATTERNS.items())}]",
)
@click.option("--seed", type=click.IntRange(0), metavar="N", help="The same seed generates the same requests. [1]")
@click.option("--write", metavar="CSV", type=click.Path(), help="Save the generated requests, for --requests.")
@click.option(
    "--placement",
    type=click.Choice(PLACEMENT_POLICIES),
    help=f"The policy. [host.yaml's, else {DEFAULT_PLACEMENT_POLICY}]",
)
@click.option("--compare", is_flag=True, help="Replay the same requests with every policy.")
@click.option(
    "--add-cards",
    multiple=True,
    metavar="MODEL:N",
    help="Simulate N more cards of this model, for example A16:3, in addition to the host's GPUs.",
)
@click.option(
    "--host-count",
    type=click.IntRange(1, MAX_SIMULATED_HOSTS),
    default=1,
    metavar="N",
    help="Simulate N hosts like this one. [1]",
)
@click.option("--keep", is_flag=True, help="Keep the current vGPUs. [start with empty GPUs]")
@click.option(
    "--plot", metavar="FILE", type=click.Path(), help="Draw the result: FILE.svg or FILE.png. Needs matplotlib."
)
@click.pass_obj
def command(
    settings: Settings,
    /,
    write: str | None,
    plot: str | None,
    **options: Any,
) -> int:
    """Replay arrivals and departures of vGPUs on the GPUs of a host, or of many hosts. It changes nothing.

    It shows how many requests of each profile are admitted and refused, how much framebuffer is allocated over time,
    and how many GPUs are in use. THOUGH FREE counts refused requests for which a GPU had enough framebuffer, but other
    vGPUs on it blocked them. The file of --requests has the columns arrival_seconds, departure_seconds (empty: it
    stays) and profile.
    """

    def work(host: GpuHost) -> QueryResult[SimulationResult]:
        from vgpuctl.cli import new_file
        from vgpuctl.cli import plot as pictures
        from vgpuctl.library import simulation
        from vgpuctl.model.outcome import QueryResult

        request = simulation.SimulationRequest(**options)
        simulation.check(request)
        if write is not None and request.requests is not None:
            raise simulation.usage_error("--write saves generated requests, and --requests reads them from a file")
        if plot and plot == write:
            raise simulation.usage_error("--plot and --write name the same file")
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
