# SPDX-License-Identifier: Apache-2.0
"""The pages about free capacity: every profile, one profile explained, several together, and moves that make room."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from vgpuctl.cli.cells import free_count, holder, shorten_names
from vgpuctl.cli.pages import Page
from vgpuctl.cli.tables import Block
from vgpuctl.model.numbers import count_text
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.results.gpus import ExplainResult, ProfileResult
from vgpuctl.model.results.moves import CountResult, FitsResult, MoveResult, MovesResult, SpotResult


def _profiles(data: tuple[ProfileResult, ...]) -> Page:
    if not data:
        return Page(stderr_lines=["no vGPU profile has room here; list-profiles --all lists every one"])
    with_room = sum(row.free != 0 for row in data)
    stderr_lines = ["FREE counts each profile alone: vgpuctl fits says what fits together"] if with_room > 1 else []
    return Page(stderr_lines=stderr_lines)


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


def _fits(data: FitsResult) -> Page:
    requested = _profile_counts(data.wanted)
    if data.fits is None:
        return Page([f"whether {requested} fit is not known: {data.why}"])
    if data.fits:
        blocks: list[Block] = [f"yes: {requested}"]
        return Page([*blocks, *_places_by_gpu(data.places)])
    blocks = [f"no: {requested}"]
    some_fit = sum(n.count for n in data.too_many) < sum(n.count for n in data.wanted)
    blocks += [f"  all but {_profile_counts(data.too_many)} fit" if some_fit else "  none of them fits"]
    for gpu in data.gpus:
        reasons = "; ".join(gpu.reasons)
        blocks.append(
            f"  {gpu.address}  {gpu.profile} alone: {free_count(gpu)} more{f': {reasons}' if reasons else ''}"
        )
    return Page(blocks)


def _places_by_gpu(places: Sequence[SpotResult]) -> list[str]:
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
        blocks += ["room then:", *_places_by_gpu(data.places)]
    if data.source_gpu is not None and not data.stays and not result.dry_run:
        blocks.append(f"{data.source_gpu} has no vGPU now")
    return Page(blocks)


def _why_nothing(data: MovesResult) -> str:
    if data.source_gpu is not None:
        return f"{data.source_gpu} has no vGPU"
    return "it fits as it is" if data.places else "no move wins room"


PAGES: dict[str, Callable[[Any], Page]] = {
    "list-profiles": _profiles,
    "explain": _explain,
    "fits": _fits,
    "plan-moves": _moves,
    "move-vms": _moves,
}
