# SPDX-License-Identifier: Apache-2.0
"""The commands about profiles: what fits, and what prevents more."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.run import CommandOutput
from vgpuctl.cli.shown import (
    Block,
    Column,
    Listing,
    Page,
    free_count,
    holder,
    mib,
    name_or_count,
    or_unknown,
    shorten_names,
)
from vgpuctl.model.numbers import count_text

if TYPE_CHECKING:
    from vgpuctl.model.results.gpus import ExplainResult, ProfileResult, RoomResult
    from vgpuctl.model.results.moves import CountResult, FitsResult, MoveResult, SpotResult


def _with_room(profile: ProfileResult) -> tuple[RoomResult, ...]:
    return tuple(gpu for gpu in profile.gpus if gpu.free != 0)


def _room_text(profile: ProfileResult) -> tuple[str, ...]:
    return tuple(f"{gpu.address}: {free_count(gpu)}" for gpu in _with_room(profile))


PROFILES = Listing(
    "profiles",
    (
        Column("profile", "PROFILE", lambda row: row.profile),
        Column("type", "TYPE", lambda row: row.type_id, lambda row: or_unknown(row.type_id)),
        Column(
            "memory", "MEMORY", lambda row: row.framebuffer_mib, lambda row: mib(row.framebuffer_mib),
            numeric=True, unit="mib",
        ),
        Column("max", "MAX/GPU", lambda row: row.max_per_gpu, numeric=True),
        Column("free", "FREE", lambda row: row.free, free_count, numeric=True),
        Column(
            "gpu", "GPU", lambda row: tuple(gpu.address for gpu in _with_room(row)),
            lambda row: name_or_count([gpu.address for gpu in _with_room(row)], "GPUs"),
        ),
        Column("room", "WHERE", _room_text, level="wide"),
    ),
    lambda row: str(row.profile),
)  # fmt: skip


def _profiles(data: tuple[ProfileResult, ...]) -> Page:
    if not data:
        return Page(stderr_lines=["no vGPU profile has room here; list-profiles --all lists every one"])
    with_room = sum(row.free != 0 for row in data)
    stderr_lines = ["FREE counts each profile alone: vgpuctl fits says what fits together"] if with_room > 1 else []
    return Page(stderr_lines=stderr_lines)


@make_command(
    "list-profiles",
    page=_profiles,
    listing=PROFILES,
    examples=(
        ("vgpuctl list-profiles", "profiles that fit now"),
        ("vgpuctl --host sim:a100-40 list-profiles --all", "every profile, also those without room"),
        ("vgpuctl --host sim:a100-40 list-profiles --gpu 0000:3b:00.0", "those of one GPU"),
    ),
)
@click.option("--gpu", metavar="ADDRESS", shell_complete=complete.gpus, help="Only the profiles of this GPU.")
@click.option("--all", "everything", is_flag=True, help="Also list profiles that have no room now.")
@click.pass_obj
def list_profiles(settings: Settings, gpu: str | None, everything: bool) -> int:
    """List the vGPU profiles that the drivers of this host offer.

    FREE is how many more fit now on the whole host, GPU is where they fit. '?' is unknown. In NVIDIA's names the letter
    at the end is the use: Q workstations, B office desktops, A published applications, C compute. GPUs and drivers do
    not offer all of them. The number is the framebuffer in GiB.
    """
    return run.call(settings, "list-profiles", lambda host: host.list_profiles(gpu=gpu, everything=everything))


def _explain(data: ExplainResult) -> Page:
    free = data.free
    unknown_total = free is None and not data.free_at_least
    total = (
        "unknown how many more fit: the driver does not report it"
        if unknown_total
        else f"{free_count(data)} more on this host"
    )
    blocks: list[Block] = [f"{data.profile}: {total}"]
    for gpu in data.gpus:
        blocks += ["", f"{gpu.address}  {gpu.model}: {free_count(gpu)} more"]
        blocks += [f"  rule: {gpu.rule}"] if gpu.rule else []
        blocks += [f"  {reason}" for reason in gpu.reasons]
        names = [holder(v) for v in gpu.vgpus]
        if names:
            blocks.append(f"  {len(names)} in use: {shorten_names(names)}")
        if gpu.in_the_way:
            count = len(gpu.in_the_way)
            holders = shorten_names([holder(v) for v in gpu.vgpus if v.carrier in gpu.in_the_way])
            blocks.append(f"  minimum to free for one more: {count}, of {holders}")
    if data.moves:
        command = f"vgpuctl move-vms --profile {shlex.quote(data.profile)}"
        blocks += ["", f"one more fits after {count_text(len(data.moves), 'move')} ({command}):"]
        blocks += [f"  {line}" for line in move_lines(data.moves)]
    elif free == 0 and data.moves is None:
        command = f"vgpuctl plan-moves --profile {shlex.quote(data.profile)}"
        blocks += ["", f"no moves are known that make room for one more ({command} shows why)"]
    return Page(blocks)


def move_lines(moves: Sequence[MoveResult]) -> list[str]:
    """Return one line per move, which says if the VM gives up its place before."""
    return [_move_line(move) for move in moves]


def _move_line(move: MoveResult) -> str:
    action = "stop, move and start" if move.state == "running" else "move"
    start, end = _location(move.from_gpu, move.from_placement_id), _location(move.to_gpu, move.to_placement_id)
    wait_note = " (it gives up its place first)" if move.waits else ""
    return f"{action} VM {move.vm}: {move.profile}, {start} -> {end}{wait_note}"


def _location(gpu: str, placement_id: int | None) -> str:
    return f"{gpu}{'' if placement_id is None else f' placement {placement_id}'}"


@make_command(
    "explain",
    page=_explain,
    examples=(("vgpuctl --host sim:a100-40 explain A100-4C", "where it fits, where not, and why"),),
)
@click.argument("profile", shell_complete=complete.profiles)
@click.pass_obj
def explain(settings: Settings, profile: str) -> int:
    """Explain for every GPU how many more of PROFILE fit, what prevents more, and who holds the room.

    create-vm chooses a place by the same rules.
    """
    return run.call(settings, "explain", lambda host: host.explain(profile))


STATUS_BY_FIT = {True: 0, False: 4, None: 1}


def _fits(data: FitsResult) -> Page:
    requested = _profile_counts(data.wanted)
    if data.fits is None:
        return Page([f"whether {requested} fit is not known: {data.why}"])
    if data.fits:
        blocks: list[Block] = [f"yes: {requested}"]
        return Page([*blocks, *places_by_gpu(data.places)])
    blocks = [f"no: {requested}"]
    some_fit = sum(n.count for n in data.too_many) < sum(n.count for n in data.wanted)
    blocks += [f"  all but {_profile_counts(data.too_many)} fit" if some_fit else "  none of them fits"]
    for gpu in data.gpus:
        reasons = "; ".join(gpu.reasons)
        blocks.append(
            f"  {gpu.address}  {gpu.profile} alone: {free_count(gpu)} more{f': {reasons}' if reasons else ''}"
        )
    return Page(blocks)


def places_by_gpu(places: Sequence[SpotResult]) -> list[str]:
    """Return one line per GPU: what it takes."""
    gpus = dict.fromkeys(place.gpu for place in places)
    return [f"  {gpu}: {_gpu_contents([place for place in places if place.gpu == gpu])}" for gpu in gpus]


def _gpu_contents(places: Sequence[SpotResult]) -> str:
    """Return what one GPU takes: each vGPU with its placement, or each profile with its count."""
    if any(place.placement_id is not None for place in places):
        return ", ".join(f"{place.profile} at placement {place.placement_id}" for place in places)
    counts = Counter(place.profile for place in places)
    return ", ".join(f"{number} x {profile}" for profile, number in counts.items())


def _profile_counts(counts: Sequence[CountResult]) -> str:
    return ", ".join(f"{entry.count} x {entry.profile}" for entry in counts)


@make_command(
    "fits",
    page=_fits,
    examples=(
        ("vgpuctl --host sim:a100-40 fits --profile A100-4C:10", "where ten desktops would go"),
        (
            "vgpuctl --host sim:l40s-x4 fits --profile L40S-4Q:14 --profile L40S-8Q:8",
            "both together: a place for each, or the fewest that do not fit",
        ),
        ("vgpuctl --host sim:hgx-h100 fits --gpus 4", "the four whole GPUs that one VM would get"),
    ),
)
@click.option(
    "--profile",
    "profiles",
    metavar="PROFILE[:N]",
    multiple=True,
    shell_complete=complete.profiles,
    help="A vGPU profile, with :N for N of it; repeatable.",
)
@click.option("--gpu", metavar="GPU", shell_complete=complete.gpus, help="Only on this GPU, or on those of this model.")
@click.option("--gpus", metavar="N", help="Instead of profiles: N whole GPUs for one VM (passthrough).")
@click.pass_obj
def fits(settings: Settings, profiles: tuple[str, ...], gpu: str | None, gpus: str | None) -> int:
    """Check whether these vGPUs, each in a VM of its own, fit on this host together now. Nothing is reserved.

    Exit status 0: they fit, and the page shows the GPU for each. 4: they do not fit, and the page shows the fewest to
    drop, and the room on each GPU. 1: unknown, because the driver does not report how many fit, or because the
    solver (the Python package highspy) is missing or takes too long.
    """
    return run.call(
        settings,
        "fits",
        lambda host: host.fits(*profiles, gpu=gpu, gpus=gpus),
        lambda result: CommandOutput(result, status=STATUS_BY_FIT[result.data.fits]),
    )
