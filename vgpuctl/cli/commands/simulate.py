# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl simulate`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import command as make_command
from vgpuctl.cli.settings import Settings
from vgpuctl.spec.fields import DEFAULT_PLACEMENT, PLACEMENTS

if TYPE_CHECKING:
    from vgpuctl.cli.result import Result
    from vgpuctl.cli.signals import Guard
    from vgpuctl.engine.simulate import Generated, Hardware, Recorded

PATTERNS = ("vdi-day", "ai", "mig", "churn")
MOST_HOSTS, MOST_DAYS, MOST_NUMBER, MOST_LOAD = 10_000, 366, 1_000_000, 1000
ONE_DAY, OTHER_DAYS = 1, 7
FULL_LOAD, FIRST_SEED = 100, 1
MOST_BYTES = 64 << 20
"""About a million requests."""
_FOR_GENERATE = ("load", "count", "mix", "days", "seed", "write")


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
    type=click.IntRange(1, MOST_LOAD),
    metavar="PERCENT",
    help="Generate what asks for so much of the framebuffer. [100]",
)
@click.option(
    "--count",
    type=click.IntRange(1, MOST_NUMBER),
    metavar="N",
    help="Generate so many requests in place of a load; for vdi-day so many desktops.",
)
@click.option(
    "--mix",
    multiple=True,
    metavar="PROFILE:WEIGHT",
    help="Generate requests for these profiles: A16-2B, or 2B for any model's. [the pattern's]",
)
@click.option("--days", type=click.IntRange(1, MOST_DAYS), metavar="N", help="How long. [vdi-day: 1, others: 7]")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="The same seed makes the same requests. [1]")
@click.option("--write", metavar="CSV", type=click.Path(), help="Keep what was generated, for --requests.")
@click.option("--placement", type=click.Choice(PLACEMENTS), help=f"The policy. [host.yaml's, else {DEFAULT_PLACEMENT}]")
@click.option("--compare", is_flag=True, help="Every policy on the same requests.")
@click.option(
    "--host-count", type=click.IntRange(1, MOST_HOSTS), default=1, metavar="N", help="So many hosts like this. [1]"
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
    **how: Any,
) -> int:
    """Replay arrivals and departures of vGPUs on the GPUs of a host, or of many; nothing is changed.

    Says how many requests are admitted and refused by profile, how much framebuffer is allocated over time, how many
    GPUs are locked to another size, and how much framebuffer is stranded: free, and of no use for what is asked for.
    THOUGH FREE counts the refused for whom a GPU had the framebuffer.

    least-waste protects the mix of the requests that are replayed.
    """

    def work(guard: Guard) -> Result:
        from vgpuctl.cli import new_file, worlds
        from vgpuctl.cli import plot as pictures
        from vgpuctl.cli.result import Result
        from vgpuctl.engine import simulate

        hardware = simulate.Hardware(host_count, keep, mig_on_demand)
        _check(how, hardware, compare=compare)
        if plot and plot == how["write"]:
            raise _contradiction("--plot and --write name one file")
        for option, path in (("--plot", plot), ("--write", how["write"])):
            if path:
                new_file.require_new(path, option)
        kind = pictures.checked(plot) if plot else ""
        wanted = _recorded(how["file"]) if how["file"] else _generated(how)
        policies = PLACEMENTS if compare else tuple(filter(None, [how["placement"]]))
        found = simulate.simulate(worlds.open_world(settings), hardware, wanted, policies)
        data = {**found.data, "plot": plot or None, "written": how["write"]}
        picture = pictures.drawn(data, kind) if plot else b""
        if how["write"]:
            new_file.write_new(how["write"], "".join(found.csv).encode(), "--write")
        if plot:
            new_file.write_new(plot, picture, "--plot")
        return Result(data, warnings=found.warnings)

    return run.perform(settings, "simulate", work)


def _check(how: Mapping[str, Any], hardware: Hardware, *, compare: bool) -> None:
    """See that what was typed goes together.

    Raises:
        InvalidInput: it does not.
    """
    if (how["file"] is None) == (how["pattern"] is None):
        raise _contradiction("either --requests CSV or --generate PATTERN is due")
    if how["file"] is not None:
        for name in _FOR_GENERATE:
            if how[name] not in (None, ()):
                raise _contradiction(f"--{name} goes with --generate")
    if how["count"] is not None and how["load"] is not None:
        raise _contradiction("--count and --load exclude each other")
    if compare and how["placement"] is not None:
        raise _contradiction("--compare runs every policy: leave --placement out")
    if hardware.keep and hardware.instances_on_demand:
        raise _contradiction("--keep keeps the GPU instances that are there, --mig-on-demand does not")


def _contradiction(text: str) -> Exception:
    from vgpuctl.errors import InvalidInput

    return InvalidInput(text, hint="vgpuctl simulate --help")


def _recorded(path: str) -> Recorded:
    """Read requests from a file."""
    from vgpuctl.cli import wishes
    from vgpuctl.engine.simulate import Recorded
    from vgpuctl.placement import trace

    return Recorded(path, trace.read(wishes.text_of(path, "CSV", MOST_BYTES), path))


def _generated(how: Mapping[str, Any]) -> Generated:
    """Say what to generate."""
    import random

    from vgpuctl.engine.simulate import Generated

    pattern = how["pattern"]
    chance = random.Random(FIRST_SEED if how["seed"] is None else how["seed"])  # noqa: S311
    days = how["days"] or (ONE_DAY if pattern == "vdi-day" else OTHER_DAYS)
    load = (how["load"] or FULL_LOAD) / 100
    return Generated(pattern, chance, days, load, how["count"], dict(map(_weight, how["mix"])))


def _weight(text: str) -> tuple[str, float]:
    """Return a profile and its weight.

    Raises:
        InvalidInput: it is not both, or the weight is nothing.
    """
    profile, _, weight = text.rpartition(":")
    if not profile or not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", weight, re.ASCII) or float(weight) <= 0:
        raise _contradiction(f"--mix {text}: say PROFILE:WEIGHT, as 2B:40")
    return profile, float(weight)
