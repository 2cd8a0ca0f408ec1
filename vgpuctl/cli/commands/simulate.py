# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl simulate`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings
from vgpuctl.config.vm_fields import DEFAULT_PLACEMENT_POLICY, PLACEMENT_POLICIES

if TYPE_CHECKING:
    from vgpuctl.cli.result import CommandOutput
    from vgpuctl.cli.signals import SignalGuard
    from vgpuctl.engine.simulate import GeneratedRequests, Hardware, RecordedRequests

PATTERNS = ("vdi-day", "ai", "mig", "churn")
MAX_HOSTS, MAX_DAYS, MAX_REQUESTS, MAX_LOAD = 10_000, 366, 1_000_000, 1000
VDI_DAYS, DEFAULT_DAYS = 1, 7
DEFAULT_LOAD, DEFAULT_SEED = 100, 1
MAX_BYTES = 64 << 20
"""About a million requests."""
_GENERATE_OPTIONS = ("load", "count", "mix", "days", "seed", "write")


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
    "file",
    metavar="CSV",
    type=click.Path(),
    help="Arrivals and departures: docs/simulate.md. The Alibaba GPU trace's columns are taken, too.",
)
@click.option("--generate", "pattern", type=click.Choice(PATTERNS), help="Make requests up, of this pattern.")
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
    "--host-count", type=click.IntRange(1, MAX_HOSTS), default=1, metavar="N", help="So many hosts like this. [1]"
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
    compare: bool,
    host_count: int,
    keep: bool,
    mig_on_demand: bool,
    plot: str | None,
    **options: Any,
) -> int:
    """Replay arrivals and departures of vGPUs on the GPUs of a host, or of many; nothing is changed.

    Says how many requests are admitted and refused by profile, how much framebuffer is allocated over time, how many
    GPUs are locked to another size, and how much framebuffer is stranded: free, and of no use for what is asked for.
    THOUGH FREE counts the refused for whom a GPU had the framebuffer.

    least-waste protects the mix of the requests that are replayed.
    """

    def work(guard: SignalGuard) -> CommandOutput:
        from vgpuctl.cli import hosts, new_file
        from vgpuctl.cli import plot as pictures
        from vgpuctl.cli.result import CommandOutput
        from vgpuctl.engine import simulate

        hardware = simulate.Hardware(host_count, keep, mig_on_demand)
        _check_options(options, hardware, compare=compare)
        if plot and plot == options["write"]:
            raise _usage_error("--plot and --write name one file")
        for option, path in (("--plot", plot), ("--write", options["write"])):
            if path:
                new_file.require_new(path, option)
        picture_format = pictures.check_format(plot) if plot else ""
        request_source = _read_recorded(options["file"]) if options["file"] else _generation_settings(options)
        policies = PLACEMENT_POLICIES if compare else tuple(filter(None, [options["placement"]]))
        result = simulate.simulate(hosts.open_host(settings), hardware, request_source, policies)
        data = {**result.data, "plot": plot or None, "written": options["write"]}
        picture = pictures.draw(data, picture_format) if plot else b""
        if options["write"]:
            new_file.write_new(options["write"], "".join(result.csv).encode(), "--write")
        if plot:
            new_file.write_new(plot, picture, "--plot")
        return CommandOutput(data, warnings=result.warnings)

    return run.perform(settings, "simulate", work)


def _check_options(options: Mapping[str, Any], hardware: Hardware, *, compare: bool) -> None:
    """Check that the given options go together.

    Raises:
        InvalidInput: it does not.
    """
    if (options["file"] is None) == (options["pattern"] is None):
        raise _usage_error("either --requests CSV or --generate PATTERN is due")
    if options["file"] is not None:
        for name in _GENERATE_OPTIONS:
            if options[name] not in (None, ()):
                raise _usage_error(f"--{name} goes with --generate")
    if options["count"] is not None and options["load"] is not None:
        raise _usage_error("--count and --load exclude each other")
    if compare and options["placement"] is not None:
        raise _usage_error("--compare runs every policy: leave --placement out")
    if hardware.keep and hardware.instances_on_demand:
        raise _usage_error("--keep keeps the GPU instances that are there, --mig-on-demand does not")


def _usage_error(text: str) -> Exception:
    from vgpuctl.errors import InvalidInput

    return InvalidInput(text, hint="vgpuctl simulate --help")


def _read_recorded(path: str) -> RecordedRequests:
    """Read recorded requests from a file."""
    from vgpuctl.cli import requests
    from vgpuctl.engine.simulate import RecordedRequests
    from vgpuctl.placement import trace_csv

    return RecordedRequests(path, trace_csv.parse_trace(requests.read_text(path, "CSV", MAX_BYTES), path))


def _generation_settings(options: Mapping[str, Any]) -> GeneratedRequests:
    """Return what requests to generate."""
    import random

    from vgpuctl.engine.simulate import GeneratedRequests

    pattern = options["pattern"]
    rng = random.Random(DEFAULT_SEED if options["seed"] is None else options["seed"])  # noqa: S311
    days = options["days"] or (VDI_DAYS if pattern == "vdi-day" else DEFAULT_DAYS)
    load = (options["load"] or DEFAULT_LOAD) / 100
    return GeneratedRequests(pattern, rng, days, load, options["count"], dict(map(_parse_weight, options["mix"])))


def _parse_weight(text: str) -> tuple[str, float]:
    """Return a profile and its weight.

    Raises:
        InvalidInput: one of them is missing, or the weight is zero.
    """
    profile, _, weight = text.rpartition(":")
    if not profile or not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", weight, re.ASCII) or float(weight) <= 0:
        raise _usage_error(f"--mix {text}: say PROFILE:WEIGHT, as 2B:40")
    return profile, float(weight)
