# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller fits`: how many more desktops the fleet has room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.command_table import CONTROLLER_COMMANDS
from vgpuctl.cli.commands.controller import Where, at_controller, connect
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Block, Page
from vgpuctl.errors import InvalidInput, NoCapacity
from vgpuctl.model.numbers import count_text

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.model.results.fleet import FleetFitsHostResult, FleetFitsResult


def _host_line(host: FleetFitsHostResult) -> str:
    if host.why is not None:
        return f"  {host.name}: none: {host.why}"
    image = "" if host.image == "ready" else f"; its image is {host.image or 'not there yet'}"
    return f"  {host.name}: {host.free}{image}"


def _fits(data: FleetFitsResult) -> Page:
    most = data.free if data.maximum_left is None else min(data.free, data.maximum_left)
    total = f"{count_text(most, 'more desktop')} {'fits' if most == 1 else 'fit'}"
    if data.count is not None:
        total = f"{'yes' if data.fits else 'no'}: {count_text(data.count, 'desktop')}; {total}"
    blocks: list[Block] = [f"{data.pool}: {total}" if data.pool else total]
    if data.maximum_left is not None:
        blocks.append(f"  the hosts have room for {data.free}, and its spec allows {data.maximum_left} more")
    if data.unplaced:
        blocks.append(f"  desktops that wait for a host, and go first: {data.unplaced}")
    return Page([*blocks, *map(_host_line, data.hosts)])


@make_command(
    "fits", table=CONTROLLER_COMMANDS, page=_fits,
    examples=(
        ("vgpuctl controller fits office", "on which hosts, and why not on the others"),
        ("vgpuctl controller fits -f office.yaml --count 40", "of a pool that you have not made yet"),
    ),
)  # fmt: skip
@click.argument("pool", metavar="POOL", required=False)
@click.option(
    "-f", "--file", "file", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True),
    help="Instead of a pool: a pool spec; - reads standard input.",
)  # fmt: skip
@click.option("--count", metavar="N", type=click.IntRange(1, 1_000_000), help="Check whether so many fit.")
@at_controller
@click.pass_obj
def fits(settings: Settings, pool: str | None, file: str | None, count: int | None, where: Where) -> int:
    """Count how many more desktops of a pool fit in the fleet now. Nothing is reserved.

    It counts what hosts said at most ten seconds ago, GPUs, memory and storage, less what is on its way to them.

    Exit status with --count 0: they fit. 4: they do not.
    """

    def work(guard: SignalGuard) -> run.CommandOutput:
        if (pool is None) is (file is None):
            raise InvalidInput("specify either POOL or --file FILE")
        text = None
        if file is not None:
            from vgpuctl.library.text_file import read_text

            text = read_text(file, "spec")
        result = connect(settings, *where).call("fits", pool=pool, text=text, file=file, count=count)
        return run.CommandOutput(result, status=NoCapacity.status if result.data.fits is False else 0)

    return run.perform(settings, "controller-fits", work)


COMMANDS: dict[str, click.Command] = {str(fits.name): fits}
