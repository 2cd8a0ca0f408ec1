# SPDX-License-Identifier: Apache-2.0
"""The pages of what fits: each profile, one of them explained, several together, and the moves that make room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from vgpuctl.cli.pages import NUMBERS, Data, Page, holder, how_many, mib, shortened, unknown
from vgpuctl.cli.tables import Block, Table


def _profiles(data: Sequence[Data]) -> Page:
    if not data:
        return Page(asides=["no vGPU profile has room here; list-profiles --all lists every one"])
    rows = tuple(
        (
            row["profile"], unknown(row["type_id"]), mib(row["framebuffer_mib"]), unknown(row["max_per_gpu"]),
            how_many(row), _where(row["gpus"]),
        )
        for row in data
    )  # fmt: skip
    headers = ("PROFILE", "TYPE", "MEMORY", "MAX/GPU", "FREE", "WHERE")
    roomy = sum(row["free"] != 0 for row in data)
    asides = ["FREE counts each profile alone: vgpuctl fits says what fits together"] if roomy > 1 else []
    return Page([Table(headers, rows, NUMBERS)], asides)


def _where(gpus: Sequence[Data]) -> str:
    roomy = [gpu for gpu in gpus if gpu["free"] != 0]
    return ", ".join(f"{gpu['address']}: {how_many(gpu)}" for gpu in roomy) or "-"


def _explain(data: Data) -> Page:
    free = data["free"]
    unknown_total = free is None and not data.get("free_at_least")
    total = "not known how many more, only trying tells" if unknown_total else f"{how_many(data)} more on this host"
    blocks: list[Block] = [f"{data['profile']}: {total}"]
    for gpu in data["gpus"]:
        blocks += ["", f"{gpu['address']}  {gpu['model']}: {how_many(gpu)} more"]
        blocks += [f"  rule: {gpu['rule']}"] if gpu["rule"] else []
        blocks += [f"  {reason}" for reason in gpu["reasons"]]
        names = [holder(v) for v in gpu["vgpus"]]
        if names:
            blocks.append(f"  {len(names)} in use: {shortened(names)}")
        if gpu["in_the_way"]:
            count = len(gpu["in_the_way"])
            who = shortened([holder(v) for v in gpu["vgpus"] if v["carrier"] in gpu["in_the_way"]])
            blocks.append(f"  in the way of one more, at the least: {count}, of {who}")
    if data["moves"]:
        command = f"vgpuctl plan-moves --profile {data['profile']}"
        blocks += ["", f"one more fits after {_number(data['moves'], 'move')} ({command}):"]
        blocks += [f"  {line}" for line in move_lines(data["moves"])]
    elif free == 0 and data["moves"] is None:
        blocks += ["", "no moves of VMs that vgpuctl may move make room for one more, or that is not known"]
    return Page(blocks)


def move_lines(moves: Sequence[Data]) -> list[str]:
    """Return the moves as people read them, and at those of one round how many go at once."""
    rounds = Counter(move["round"] for move in moves)
    return [_move_line(move, rounds[move["round"]]) for move in moves]


def _move_line(move: Data, at_once: int) -> str:
    how = "stop, move and start" if move["state"] == "running" else "move"
    where = f"{move['profile']}, {_place(move, 'from')} -> {_place(move, 'to')}"
    together = f" (round {move['round']}: {at_once} at once)" if at_once > 1 else ""
    return f"{how} VM {move['vm']}: {where}{together}"


def _place(move: Data, end: str) -> str:
    at = move[f"{end}_placement_id"]
    return f"{move[f'{end}_gpu']}{'' if at is None else f' placement {at}'}"


def _fits(data: Data) -> Page:
    wanted = _counted(data["wanted"])
    if data["fits"] is None:
        return Page([f"whether {wanted} fit is not known: {data['why']}"])
    if data["fits"]:
        blocks: list[Block] = [f"yes: {wanted}"]
        for gpu in dict.fromkeys(place["gpu"] for place in data["places"]):
            on = [place for place in data["places"] if place["gpu"] == gpu]
            blocks.append(f"  {gpu}: {_on_gpu(on)}")
        return Page(blocks)
    blocks = [f"no: {wanted}"]
    too_many = "is too many" if sum(n["count"] for n in data["too_many"]) == 1 else "are too many together"
    blocks += [f"  {_counted(data['too_many'])} {too_many}"]
    for gpu in data["gpus"]:
        why = "; ".join(gpu["reasons"])
        blocks.append(f"  {gpu['address']}  {gpu['profile']}: {how_many(gpu)} more{f': {why}' if why else ''}")
    return Page(blocks)


def _number(things: Collection[object], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


def _on_gpu(places: Sequence[Data]) -> str:
    """Return what one GPU takes: with placements one by one, else each profile with its number."""
    if any(place["placement_id"] is not None for place in places):
        return ", ".join(f"{place['profile']} at placement {place['placement_id']}" for place in places)
    counts = Counter(place["profile"] for place in places)
    return ", ".join(f"{number} x {profile}" for profile, number in counts.items())


def _counted(counts: Sequence[Data]) -> str:
    return ", ".join(f"{one['count']} x {one['profile']}" for one in counts)


def _moves(data: Data) -> Page:
    """Return the plan, or what was done of it: all."""
    if not data["moves"]:
        return Page(["nothing to move: it fits as it is" if data["places"] else "nothing to move: no move wins room"])
    done = "would be moved" if data["dry_run"] else "moved"
    fewest = "" if data["fewest"] or not data["places"] else "; fewer may do"
    blocks: list[Block] = [f"{_number({move['uuid'] for move in data['moves']}, 'VM')} {done}{fewest}:"]
    blocks += [f"  {number}  {line}" for number, line in enumerate(move_lines(data["moves"]), 1)]
    if data["places"]:
        blocks.append("room then:")
        for gpu in dict.fromkeys(place["gpu"] for place in data["places"]):
            blocks.append(f"  {gpu}: {_on_gpu([p for p in data['places'] if p['gpu'] == gpu])}")
    return Page(blocks)


PAGES: dict[str, Callable[[Any], Page]] = {
    "list-profiles": _profiles,
    "explain": _explain,
    "fits": _fits,
    "plan-moves": _moves,
}
