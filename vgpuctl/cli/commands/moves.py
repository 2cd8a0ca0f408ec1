# SPDX-License-Identifier: Apache-2.0
"""The commands that move VMs so that more fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.commands.profiles import places_by_gpu
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Block, Page
from vgpuctl.model.numbers import count_text

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results.moves import MovesResult


Command = Callable[..., Any]


def move_options(command: Command) -> Command:
    """Add the options that say what the moves are for."""
    command = click.option("--most", type=click.IntRange(min=0), metavar="N", help="At most N moves. [any number]")(
        command
    )
    command = click.option("--defragment", is_flag=True, help="Make room for more of the largest profiles instead.")(
        command
    )
    command = click.option(
        "--from",
        "from_gpu",
        metavar="GPU",
        shell_complete=complete.gpus,
        help="Move the VMs of this GPU to other GPUs instead.",
    )(command)
    return click.option(
        "--profile",
        "profiles",
        metavar="PROFILE[:N]",
        multiple=True,
        shell_complete=complete.profiles,
        help="Make room for a vGPU of this profile, or for N with :N. Repeatable.",
    )(command)


def _moves(result: Outcome[MovesResult]) -> Page:
    """Return the planned moves, or the moves that were made."""
    data = result.data
    if not data.moves:
        return Page([f"nothing to move: {_why_nothing(data)}"])
    verb = "would be moved" if result.dry_run else "moved"
    fewest_note = "" if data.fewest or not data.places else "; fewer may do"
    blocks: list[Block] = [f"{count_text(len({move.uuid for move in data.moves}), 'VM')} {verb}{fewest_note}:"]
    blocks += [f"  {number}  {line}" for number, line in enumerate(result.steps, 1)]
    if data.places:
        blocks += ["room then:", *places_by_gpu(data.places)]
    if data.source_gpu is not None and not data.stays and not result.dry_run:
        blocks.append(f"{data.source_gpu} has no vGPU now")
    return Page(blocks)


def _why_nothing(data: MovesResult) -> str:
    if data.source_gpu is not None:
        return f"{data.source_gpu} has no vGPU"
    return "it fits as it is" if data.places else "no move wins room"


@make_command(
    "plan-moves",
    page=_moves,
    examples=(
        ("vgpuctl --host sim:a100-40 plan-moves --profile A100-20C:2", "the fewest moves that make room for two"),
        ("vgpuctl --host sim:l40s-x4 plan-moves --from 0000:3b:00.0", "where its VMs would go"),
        ("vgpuctl --host sim:mixed plan-moves --defragment --most 3", "what at most three moves would gain"),
    ),
)
@move_options
@click.pass_obj
def plan_moves(
    settings: Settings, profiles: tuple[str, ...], from_gpu: str | None, defragment: bool, most: int | None
) -> int:
    """Find the fewest VMs to stop, give another place and start again so that more vGPUs fit, and show them.

    It moves nothing: move-vms does. A VM can move if vgpuctl created it, if its spec does not restrict its place, and
    if it keeps its place while it is off. Cordoned and reserved GPUs are not used. The exit status is 4 if no moves
    make room.

    With --from the moves empty a GPU. Each VM goes where create-vm would place it, as its spec allows; a restriction
    to the GPU itself does not hold. The exit status is 4 if a vGPU has to stay, and the error shows why.
    """
    return run.call(
        settings,
        "plan-moves",
        lambda host: host.plan_moves(*profiles, defragment=defragment, max_moves=most, from_gpu=from_gpu),
    )


@make_command(
    "move-vms",
    page=_moves,
    examples=(
        ("vgpuctl move-vms --profile A100-20C:2", "shows the fewest moves that make room for two, and asks"),
        ("vgpuctl --host sim:a100-40 move-vms --profile A100-20C:2 --yes", "without asking"),
        ("vgpuctl --host sim:l40s-x4 move-vms --from 0000:3b:00.0 --yes", "empties a GPU, after cordon"),
        ("vgpuctl --host sim:mixed move-vms --defragment --most 3 --dry-run", "only shows them, as plan-moves does"),
    ),
)
@move_options
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def move_vms(
    settings: Settings,
    profiles: tuple[str, ...],
    from_gpu: str | None,
    defragment: bool,
    most: int | None,
    dry_run: bool,
) -> int:
    """Stop VMs, give them another place and start them again so that more vGPUs fit: the fewest, one after the other.

    It shows the moves of plan-moves and asks. Running VMs are started again. Where VMs block each other, some give up
    their places first and stay off until their new places are free. If a guest does not shut down within --wait
    seconds, it stays in its place and the remaining VMs are not moved; run the command again to plan from there. The
    room is not reserved. The exit status is 4 if no moves make room.

    With --from it empties a GPU as far as it can; the exit status is 4 if a vGPU stays.
    """
    return run.call(
        settings,
        "move-vms",
        lambda host: host.move_vms(
            *profiles, defragment=defragment, max_moves=most, from_gpu=from_gpu, dry_run=dry_run
        ),
    )
