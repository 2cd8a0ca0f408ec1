# SPDX-License-Identifier: Apache-2.0
"""A move, and the end of one: every call fails, or is the last one of a killed process. The VM is on one host then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import EVERYTHING
from tests.faults import CHANGING, sampled
from tests.moves.pairs import KINDS, end_move
from tests.moves.trial import ENDINGS, LEFT_BY, Moves, Result, tried

FULL = "live, disks copied"
"""Of the others, which differ in their disks or in what libvirt says at the end, every seventh of these is tried."""


def wrong_of(results: Sequence[Result]) -> dict[str, tuple[str, ...]]:
    return {r.where: r.wrong for r in results if r.wrong}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_call_fails_the_vm_is_on_one_host_and_nothing_is_left(tmp_path: Path, kind: str) -> None:
    moves = Moves(KINDS[kind], tmp_path)
    for calls in moves.calls.values():
        assert len(set(calls) & CHANGING) >= 6
    points = sampled(moves.failures())
    results = tried(moves, points if EVERYTHING or kind == FULL else sampled(points))
    assert wrong_of(results) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_call_a_process_dies_in_the_vm_is_on_one_host_and_nothing_is_left(tmp_path: Path, kind: str) -> None:
    moves = Moves(KINDS[kind], tmp_path)
    results = tried(moves, sampled(moves.deaths()))
    assert wrong_of(results) == {}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_move_that_dies_when_all_has_come_goes_on_there(tmp_path: Path, ending: str) -> None:
    moves = Moves(KINDS["live, disks copied"], tmp_path)
    point = next(p for p in moves.deaths() if p.call == "hypervisor.migrate" and p.how == "killed after")
    (result,) = moves.run(point, [ending])
    assert (result.owner, result.state, result.wrong) == ("target", "runs", ())


@pytest.mark.parametrize("left_by", LEFT_BY)
def test_the_end_of_a_move_can_die_and_fail_as_well(tmp_path: Path, left_by: str) -> None:
    moves = Moves(KINDS[LEFT_BY[left_by][0]], tmp_path, end_move, LEFT_BY[left_by][1])
    points = [*moves.failures(), *moves.deaths()]
    assert points
    assert wrong_of(tried(moves, sampled(sampled(points)) if not EVERYTHING else points)) == {}
