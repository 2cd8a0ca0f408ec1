# SPDX-License-Identifier: Apache-2.0
"""What people read when something failed for several targets."""

from __future__ import annotations

from vgpuctl.errors import Busy, Refused, VgpuctlError
from vgpuctl.library.failure_lines import failure_lines

SHARED = "beta: no certificates\n  fix: on beta: make some"


def cannot_move(name: str, *reasons: str) -> Refused:
    return Refused("\n".join([f"{name} cannot move:", *reasons]))


def test_what_is_true_of_all_is_said_once() -> None:
    own = "alpha: a has snapshots\n  fix: delete them"
    failed: dict[str, VgpuctlError] = {"a": cannot_move("a", own, SHARED), "b": cannot_move("b", SHARED)}
    assert failure_lines(failed) == [
        "each of them:", "  beta: no certificates", "    fix: on beta: make some",
        "a cannot move:   [refused]", "  alpha: a has snapshots", "    fix: delete them",
    ]  # fmt: skip


def test_what_is_true_of_some_is_said_of_each() -> None:
    failed: dict[str, VgpuctlError] = {
        "a": cannot_move("a", SHARED),
        "b": cannot_move("b", SHARED),
        "c": Busy("another vgpuctl works on it", hint="wait"),
    }
    reasons = ["  beta: no certificates", "    fix: on beta: make some"]
    assert failure_lines(failed) == [
        "a cannot move:   [refused]", *reasons, "b cannot move:   [refused]", *reasons,
        "c: another vgpuctl works on it   [busy]", "  hint: wait",
    ]  # fmt: skip


def test_the_same_reason_with_another_fix_is_another_one() -> None:
    failed: dict[str, VgpuctlError] = {
        "a": cannot_move("a", "beta: full\n  fix: on beta: delete a1"),
        "b": cannot_move("b", "beta: full\n  fix: on beta: delete b1"),
    }
    assert "each of them:" not in failure_lines(failed)
    assert [line for line in failure_lines(failed) if "fix" in line] == [
        "    fix: on beta: delete a1",
        "    fix: on beta: delete b1",
    ]


def test_one_alone_and_none() -> None:
    assert failure_lines({"a": cannot_move("a", SHARED)}) == [
        "a cannot move:   [refused]", "  beta: no certificates", "    fix: on beta: make some",
    ]  # fmt: skip
    assert failure_lines({}) == []
