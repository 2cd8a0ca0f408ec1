# SPDX-License-Identifier: Apache-2.0
"""Where a VM goes on whose move was interrupted: every pair of what two hosts can have of it."""

from __future__ import annotations

from itertools import product

import pytest

from vgpuctl.errors import Busy, Failed, VgpuctlError
from vgpuctl.model.results.migration import MigrationStateResult
from vgpuctl.operations.plans.migration_end import (
    RUNS_HERE,
    RUNS_THERE,
    MigrationEnd,
    decide_end,
    loses_running_state,
    lost_alone,
    state_after,
)
from vgpuctl.value import replace

SOURCE = MigrationStateResult("gpu01", "a" * 32, "vdi-1", "u-1", exists=True)
TARGET = replace(SOURCE, host="gpu02", machine_id="b" * 32)
ABSENT = MigrationStateResult("gpu01", "a" * 32, "vdi-1", None, exists=False)
SOURCES = {
    "runs": replace(SOURCE, state="running", role="leaving", id="m"),
    "runs unmarked": replace(SOURCE, state="running"),
    "paused": replace(SOURCE, state="paused", role="leaving", id="m"),
    "migrated": replace(SOURCE, state="stopped", stop_reason="migrated", role="leaving", id="m"),
    "off": replace(SOURCE, state="stopped", stop_reason="shutdown", role="leaving", id="m"),
    "off after a boot": replace(SOURCE, state="stopped", role="leaving", id="m"),
    "off unmarked": replace(SOURCE, state="stopped", stop_reason="migrated"),
    "gone": ABSENT,
}
TARGETS = {
    "nothing": replace(ABSENT, host="gpu02"),
    "ready": replace(TARGET, state="stopped", role="arriving", id="m"),
    "coming": replace(TARGET, state="paused", role="arriving", id="m"),
    "arrived": replace(TARGET, state="paused", role="arrived", id="m"),
    "arrived and off": replace(TARGET, state="stopped", role="arrived", id="m"),
    "resumed": replace(TARGET, state="running", role="arrived", id="m"),
    "landed": replace(TARGET, state="running"),
    "landed and off": replace(TARGET, state="stopped"),
}


def test_where_it_runs_it_stays_and_it_never_runs_on_both() -> None:
    for (here, source), (there, target) in product(SOURCES.items(), TARGETS.items()):
        runs_here, runs_there = source.state == "running", target.state == "running"
        try:
            end = decide_end(source, target)
        except Failed:
            is_lost = (here == "gone" and source.role is None and target.role is not None) or (
                here in ("gone", "migrated") and there in ("nothing", "ready", "coming")
            )
            is_lost = is_lost or (there == "arrived and off" and here in ("paused", "off", "off after a boot"))
            is_twice = (runs_here and "landed" in there) or (runs_there and "unmarked" in here)
            assert is_lost or is_twice or (runs_here and runs_there), (here, there)
            continue
        assert not (runs_here and end is MigrationEnd.TARGET), (here, there)
        assert not (runs_there and end is MigrationEnd.SOURCE), (here, there)
        if end is MigrationEnd.TARGET:
            assert there not in ("nothing", "ready", "coming"), (here, there)


@pytest.mark.parametrize(
    ("here", "there", "end"),
    [
        ("runs", "ready", "source"),
        ("runs", "coming", "source"),
        ("runs", "arrived", "source"),
        ("runs unmarked", "arrived", "source"),
        ("paused", "coming", "source"),
        ("paused", "arrived", "target"),
        ("paused", "nothing", "source"),
        ("migrated", "arrived", "target"),
        ("migrated", "arrived and off", "target"),
        ("off", "arrived", "source"),
        ("off after a boot", "arrived", "source"),
        ("off after a boot", "landed and off", "target"),
        ("off unmarked", "arrived", "source"),
        ("gone", "landed", "none"),
        ("migrated", "landed", "target"),
        ("runs unmarked", "nothing", "none"),
    ],
)
def test_each_end(here: str, there: str, end: str) -> None:
    assert decide_end(SOURCES[here], TARGETS[there]) == end


@pytest.mark.parametrize(
    ("here", "there", "host", "text"),
    [
        ("migrated", "nothing", "gpu01", "it went to gpu02, which has it no more"),
        ("gone", "arrived", "gpu02", "gpu01 has it no more, and may have given it to another host"),
        ("paused", "arrived and off", "gpu01", "it has come to gpu02 and may have run there; it is off there now"),
        ("off after a boot", "arrived and off", "gpu01", "it has come to gpu02 and may have run there"),
    ],
)
def test_where_nobody_can_tell_a_person_says_it(here: str, there: str, host: str, text: str) -> None:
    with pytest.raises(Failed, match=text) as caught:
        decide_end(SOURCES[here], TARGETS[there])
    assert f"on {host}: vgpuctl end-migration vdi-1 --runs-here" in (caught.value.hint or "")


@pytest.mark.parametrize("side", ["source", "target"])
def test_nothing_is_decided_while_libvirt_moves_it(side: str) -> None:
    states = {"source": SOURCES["runs"], "target": TARGETS["coming"]}
    states[side] = replace(states[side], is_migrating=True)
    with pytest.raises(Busy, match="libvirt is moving vdi-1 now"):
        decide_end(states["source"], states["target"])


def test_a_vm_that_runs_on_both_is_named_with_both_hosts() -> None:
    with pytest.raises(Failed, match="vdi-1 runs on gpu01 and on gpu02"):
        decide_end(SOURCES["runs"], TARGETS["landed"])


def test_a_copy_of_the_record_on_the_target_is_another_vm() -> None:
    copy = replace(TARGETS["landed"], is_copy=True)
    assert decide_end(SOURCES["runs"], copy) is MigrationEnd.SOURCE
    with pytest.raises(VgpuctlError, match="not all of it has come"):
        decide_end(SOURCES["gone"], replace(TARGETS["ready"], is_copy=True))


def test_a_running_state_is_lost_only_where_the_source_goes_on_from_its_disks() -> None:
    lost = set()
    for (here, source), (there, target) in product(SOURCES.items(), TARGETS.items()):
        try:
            end = decide_end(source, target)
        except VgpuctlError:
            continue
        if loses_running_state(end, source, target):
            lost.add((here, there))
    assert lost == {("off", "arrived"), ("off after a boot", "arrived"), ("off unmarked", "arrived")}


@pytest.mark.parametrize(
    ("here", "outcome", "lost_on"),
    [
        (SOURCES["migrated"], RUNS_HERE, "other"),
        (SOURCES["off"], RUNS_HERE, "other"),
        (replace(SOURCES["off"], is_offline=True), RUNS_HERE, None),
        (SOURCES["paused"], RUNS_HERE, None),
        (SOURCES["migrated"], RUNS_THERE, None),
        (SOURCES["paused"], RUNS_THERE, None),
        (TARGETS["arrived"], RUNS_HERE, None),
        (TARGETS["arrived"], RUNS_THERE, "gpu02"),
        (TARGETS["coming"], RUNS_THERE, None),
        (TARGETS["arrived and off"], RUNS_HERE, "other"),
    ],
)
def test_what_is_lost_by_a_decision_of_one_host_alone(
    here: MigrationStateResult, outcome: str, lost_on: str | None
) -> None:
    assert lost_alone(replace(here, peer="other"), outcome) == lost_on


def test_only_what_waits_for_the_end_of_a_move_runs_after_it() -> None:
    assert state_after(TARGETS["arrived"]) == "running"
    assert state_after(SOURCES["off"]) == "stopped"
    assert state_after(replace(SOURCE, state="paused")) == "paused", "somebody else paused it"
