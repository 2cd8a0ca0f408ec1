# SPDX-License-Identifier: Apache-2.0
"""fits and plan-moves as they are typed, with every option, their pages and their documents."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]


@pytest.fixture
def l40s(vgpuctl: Run) -> Run:
    """Run a line on the simulated host with four L40S."""

    def run(line: str) -> Ran:
        return vgpuctl("--host", "sim:l40s-x4", *shlex.split(line))

    return run


def scatter(l40s: Run) -> None:
    """Put one small vGPU on each of two GPUs, where both had room on one."""
    for name in ("a", "b", "c"):
        assert l40s(f"create-vm {name} --profile L40S-24Q").status == 0
    assert l40s("--yes delete-vm a").status == 0


def test_what_fits_is_shown_with_its_gpus(l40s: Run) -> None:
    ran = l40s("fits --profile L40S-4Q:14 --profile L40S-8Q:8")
    assert (ran.status, ran.out.splitlines()[0]) == (0, "yes: 14 x L40S-4Q, 8 x L40S-8Q")
    one = l40s("fits --profile L40S-4Q:12 --gpu 0000:3b:00.0")
    assert one.out == "yes: 12 x L40S-4Q\n  0000:3b:00.0: 12 x L40S-4Q\n"


def test_what_does_not_fit_ends_with_4_and_the_fewest_that_are_too_many(l40s: Run) -> None:
    ran = l40s("fits --profile L40S-48Q:4 --profile L40S-4Q")
    assert ran.status == 4
    assert "4 x L40S-48Q, 1 x L40S-4Q are too many together" in ran.out
    document = l40s("fits --profile L40S-48Q:5 --json").document
    assert (document["ok"], document["data"]["fits"]) == (True, False)
    assert document["data"]["too_many"] == [{"profile": "L40S-48Q", "count": 5}]


def test_a_count_that_is_none_is_refused(l40s: Run) -> None:
    assert l40s("fits --profile L40S-4Q:none").status == 2


def test_moves_are_planned_and_with_yes_carried_out(l40s: Run) -> None:
    scatter(l40s)
    ran = l40s("plan-moves --profile L40S-48Q:3")
    assert (ran.status, ran.out.splitlines()[0]) == (0, "1 VMs would be moved:")
    assert "stop, move and start VM " in ran.out
    assert "would have to move" not in l40s("explain L40S-48Q").out
    assert l40s("plan-moves --profile L40S-48Q:3 --most 0").status == 4
    document = l40s("--yes --json plan-moves --profile L40S-48Q:3").document
    assert (document["changed"], len(document["data"]["moves"])) == (True, 1)
    again = l40s("--yes plan-moves --profile L40S-48Q:3")
    assert (again.status, again.out) == (0, "nothing to move: it fits as it is\n")
    assert l40s("plan-moves --profile L40S-48Q:4").status == 4


def test_defragmenting_is_planned_too(l40s: Run) -> None:
    scatter(l40s)
    assert "1 VMs would be moved" in l40s("plan-moves --defragment --most 2").out
    assert l40s("--yes plan-moves --defragment").out.splitlines()[0] == "1 VMs moved:"
    assert l40s("plan-moves --defragment").out == "nothing to move: no move wins room\n"


def test_either_profiles_or_defragment_is_due(l40s: Run) -> None:
    assert l40s("plan-moves").status == 2
    assert l40s("plan-moves --defragment --profile L40S-4Q").status == 2
