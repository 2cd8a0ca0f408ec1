# SPDX-License-Identifier: Apache-2.0
"""The commands fits, plan-moves and move-vms, with every option, their pages and documents."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest

from tests.unit.cli.conftest import Run


@pytest.fixture
def l40s(sim: Run) -> Run:
    """Run a line on the simulated host with four L40S."""
    return partial(sim, host="l40s-x4")


def scatter(l40s: Run) -> None:
    """Put one small vGPU on each of two GPUs, although both fit on one."""
    for name in ("a", "b", "c"):
        assert l40s(f"create-vm {name} --profile L40S-24Q").status == 0
    assert l40s("--yes delete-vm a").status == 0


def test_what_fits_is_shown_with_its_gpus(l40s: Run) -> None:
    ran = l40s("fits --profile L40S-4Q:14 --profile L40S-8Q:8")
    assert (ran.status, ran.out.splitlines()[0]) == (0, "yes: 14 x L40S-4Q, 8 x L40S-8Q")
    one = l40s("fits --profile L40S-4Q:12 --gpu 0000:3b:00.0")
    assert one.out == "yes: 12 x L40S-4Q\n  0000:3b:00.0: 12 x L40S-4Q\n"


def test_no_fit_exits_with_4_and_the_smallest_excess(l40s: Run) -> None:
    ran = l40s("fits --profile L40S-48Q:4 --profile L40S-4Q")
    assert ran.status == 4
    assert "  all but 1 x L40S-4Q fit" in ran.out
    document = l40s("fits --profile L40S-48Q:5 --json").document
    assert (document["ok"], document["data"]["fits"]) == (True, False)
    assert document["data"]["too_many"] == [{"profile": "L40S-48Q", "count": 1}]
    assert l40s("fits --profile L40S-4Q:none").status == 2


def test_a_gpu_is_emptied_as_far_as_it_can_be_and_4_says_that_something_stays(l40s: Run) -> None:
    for name in ("a", "b"):
        assert l40s(f"create-vm {name} --profile L40S-24Q --gpu 0000:3b:00.0").status == 0
    ran = l40s("move-vms --from 0000:3b:00.0 --yes")
    assert (ran.status, ran.out.splitlines()[-1]) == (0, "0000:3b:00.0 has no vGPU now")
    assert "new vGPUs may be placed on it; vgpuctl cordon 0000:3b:00.0 prevents that" in ran.err
    again = l40s("plan-moves --from 0000:3b:00.0")
    assert (again.status, again.out) == (0, "nothing to move: 0000:3b:00.0 has no vGPU\n")
    assert l40s("create-vm c --profile L40S-48Q --gpu 0000:3b:00.0").status == 0
    for address in ("0000:43:00.0", "0000:47:00.0"):
        assert l40s(f"cordon {address}").status == 0
    stuck = l40s("move-vms --from 0000:3f:00.0 --yes")
    assert (stuck.status, stuck.out) == (4, "")
    assert "2 vGPUs on 0000:3f:00.0 cannot be moved" in stuck.err
    assert "  a, b (L40S-24Q): no room for L40S-24Q" in stuck.err
    assert "0000:3b:00.0: it has 1 of another size: L40S-48Q" in stuck.err
    assert "vgpuctl stop-vm a b turns them off where they are" in stuck.err
    assert "move-vms --from 0000:3f:00.0 --yes" in l40s("log --failed --gpu 0000:3f:00.0 --vm a").out
    assert l40s("create-vm d --profile L40S-24Q --gpu 0000:43:00.0").status == 4
    assert "create-vm d" in l40s("log --failed --gpu 0000:43:00.0").out


def test_one_goal_at_a_time(l40s: Run) -> None:
    goals = (
        "",
        "--from 0000:3b:00.0 --defragment",
        "--from 0000:3b:00.0 --profile L40S-4Q",
        "--defragment --profile L40S-4Q",
    )
    for command, options in product(("plan-moves", "move-vms"), goals):
        ran = l40s(f"{command} {options}")
        assert (ran.status, "specify one of --profile PROFILE:N, --from GPU and --defragment" in ran.err) == (2, True)
    assert "--most works with --profile and --defragment" in l40s("move-vms --from 0000:3b:00.0 --most 1 --yes").err


def test_a_gpu_that_host_yaml_keeps_for_another_mode_is_named_with_the_way_out(l40s: Run) -> None:
    assert l40s("set-mode 0000:43:00.0 passthrough --yes").status == 0
    for address in ("0000:3b:00.0", "0000:3f:00.0", "0000:47:00.0"):
        assert l40s(f"create-vm --profile L40S-48Q --gpu {address}").status == 0
    way_out = "host.yaml reserves it for mode passthrough; vgpuctl set-mode 0000:43:00.0 vgpu changes that"
    assert way_out in l40s("create-vm --profile L40S-48Q").err
    assert way_out in l40s("fits --profile L40S-48Q").out
    assert way_out in l40s("explain L40S-48Q").out


def test_plan_moves_only_shows_and_names_the_command_that_moves(l40s: Run) -> None:
    scatter(l40s)
    before = l40s("list-vms --json").document["data"]
    ran = l40s("plan-moves --profile L40S-48Q:3 --most 2")
    assert (ran.status, ran.out.splitlines()[0]) == (0, "1 VM would be moved:")
    assert "  1  stop, move and start VM " in ran.out
    assert "vgpuctl move-vms --profile L40S-48Q:3 --most 2 carries out these moves" in ran.err
    assert "one more fits after" not in l40s("explain L40S-48Q").out
    assert l40s("plan-moves --profile L40S-48Q:3 --most 0").status == 4
    document = l40s("--yes --json plan-moves --profile L40S-48Q:3").document
    assert (document["data"]["dry_run"], len(document["data"]["moves"])) == (True, 1)
    assert l40s("list-vms --json").document["data"] == before


def test_move_vms_asks_and_moves(l40s: Run) -> None:
    scatter(l40s)
    assert l40s("move-vms --profile L40S-48Q:3 --dry-run").out.splitlines()[0] == "1 VM would be moved:"
    asked = l40s("move-vms --profile L40S-48Q:3")
    assert asked.status != 0
    assert "Move 1 VM?" in asked.err
    document = l40s("--yes --json move-vms --profile L40S-48Q:3").document
    assert (document["kind"], document["changed"], document["data"]["dry_run"]) == ("move-vms", True, False)
    assert len(document["data"]["moves"]) == 1
    again = l40s("move-vms --profile L40S-48Q:3")
    assert (again.status, again.out) == (0, "nothing to move: it fits as it is\n")
    assert l40s("--yes move-vms --profile L40S-48Q:4").status == 4


def test_defragmenting_is_planned_too(l40s: Run) -> None:
    scatter(l40s)
    planned = l40s("plan-moves --defragment --most 2")
    assert "1 VM would be moved" in planned.out
    assert "vgpuctl move-vms --defragment --most 2 carries out these moves" in planned.err
    assert l40s("--yes move-vms --defragment").out.splitlines()[0] == "1 VM moved:"
    assert l40s("plan-moves --defragment").out == "nothing to move: no move wins room\n"


def test_explain_ends_with_the_moves_that_would_help(l40s: Run) -> None:
    scatter(l40s)
    for name in ("d", "e"):
        assert l40s(f"create-vm {name} --profile L40S-48Q").status == 0
    out = l40s("explain L40S-48Q").out
    assert "  rule: all vGPUs on it have the same framebuffer size\n" in out
    assert "  minimum to free for one more: 1, of " in out
    assert "one more fits after 1 move (vgpuctl move-vms --profile L40S-48Q):\n  stop, move and start VM " in out


def test_profile_exclusions_are_shown(l40s: Run) -> None:
    ran = l40s("list-profiles")
    assert "FREE counts each profile alone" in ran.err
    rows = {row["profile"]: row["excludes"] for row in l40s("list-profiles --json").document["data"]}
    assert "L40S-4Q" in rows["L40S-48Q"]


IGPU = """version: 1
libvirt: {running: true}
gpus: [{model: GVT-g, units: UNITS, vgpus: [{profile: i915-GVTg_V5_8, count: MADE}]}]
"""


@pytest.mark.parametrize(
    ("units", "made", "fours", "eights", "answer"),
    [
        (2048, 3, 1, 1, None),  # 896 are left: the driver reports 1 and 2, which allows 768 to 1023
        (4992, 3, 3, 6, True),
        (2048, 3, 1, 2, False),
        (2048, 3, 0, 2, True),
        (2048, 3, 0, 3, False),
        (2048, 1, 3, 0, True),
        (2048, 1, 3, 6, False),
        (2176, 3, 1, 1, True),
    ],
)
def test_a_shared_pool_of_unknown_size_gives_no_wrong_answer(
    scenario: Callable[[str], Run], units: int, made: int, fours: int, eights: int, answer: bool | None
) -> None:
    run = scenario(IGPU.replace("UNITS", str(units)).replace("MADE", str(made)))
    asked = " ".join(f"--profile i915-GVTg_V5_{kind}:{count}" for kind, count in ((4, fours), (8, eights)) if count)
    truth = 512 * fours + 384 * eights <= units - 384 * made
    data = run(f"fits {asked} --json").document["data"]
    assert data["fits"] is answer
    assert answer in (None, truth)
    assert answer is not None or "the size of the pool that the types of a GPU share is not known" in data["why"]
