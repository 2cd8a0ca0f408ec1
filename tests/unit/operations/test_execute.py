# SPDX-License-Identifier: Apache-2.0
"""Executing a plan: read back each step, undo in reverse, and keep the claims of what is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.hosts import Silent
from tests.values import A4C, a100, assigned, claim
from vgpuctl.errors import Failed, Interrupted, InUse, PartlyApplied, Stuck, VerifyFailed, VgpuctlError
from vgpuctl.operations.execute import execute_plan
from vgpuctl.operations.steps.claims import TakeClaim
from vgpuctl.ports.step import Plan


@dataclass(frozen=True)
class Step:
    """A step that logs each call, and fails where the test wants it."""

    records_owner = False
    precedes_off = False
    name: str
    log: Any
    fails: Any = None
    at: str = "perform"

    def describe(self) -> str:
        return self.name

    def _do(self, what: str) -> None:
        self.log.append(f"{what} {self.name}")
        if self.fails is not None and self.at == what:
            raise self.fails

    def perform(self, ports: Any) -> None:
        self._do("perform")

    def verify(self, ports: Any) -> None:
        self._do("verify")

    def undo(self, ports: Any) -> None:
        self._do("undo")


class Claims:
    """Claims that are only logged."""

    def __init__(self, log: Any) -> None:
        self.claims, self._log = self, log

    def remove(self, carrier: str, vm_uuid: str) -> None:
        self._log.append("undo claim")


@pytest.fixture
def log() -> list[str]:
    return []


def run(*steps: Step, undo: bool = True, done: Any = ()) -> tuple[VgpuctlError | None, list[str]]:
    log = steps[0].log
    try:
        execute_plan(Claims(log), Plan(steps, undo_on_failure=undo), Silent(), done)  # type: ignore[arg-type]
    except VgpuctlError as error:
        return error, log
    return None, log


def test_each_step_is_done_and_read_back_in_order(log):
    assert run(Step("a", log), Step("b", log)) == (None, ["perform a", "verify a", "perform b", "verify b"])


@pytest.mark.parametrize("at", ["perform", "verify"])
def test_a_failure_undoes_the_failed_step_and_those_before_it_in_reverse(at, log):
    error, log = run(Step("a", log), Step("b", log, VerifyFailed("no"), at), Step("c", log))
    assert [line for line in log if line.startswith("undo")] == ["undo b", "undo a"]
    assert isinstance(error, VerifyFailed)
    assert error.undone == ["b", "a"]
    assert not error.left


@pytest.mark.parametrize("error", [InUse("theirs"), FileExistsError(17, "there")])
def test_what_somebody_else_has_is_not_undone(error, log):
    _, log = run(Step("a", log), Step("b", log, error))
    assert "undo b" not in log
    assert "undo a" in log


def test_a_failed_undo_is_reported_and_the_rest_goes_on(log):
    steps = (Step("a", log), Step("b", log, Failed("stays"), "undo"), Step("c", log, Failed("boom")))
    error, log = run(*steps)
    assert isinstance(error, PartlyApplied)
    assert (error.left, error.undone) == (["b: stays"], ["c", "a"])
    assert error.facts["cause"] == "failed"
    assert "reconcile" in str(error.hint)


def test_the_claim_stays_while_something_is_left(log):
    held = TakeClaim(claim(assigned(a100(), A4C), 1))
    error, log = run(Step("a", log, Failed("stays"), "undo"), Step("b", log, Failed("boom")), done=(held,))
    assert error is not None
    assert "undo claim" not in log
    assert error.left[0] == "a: stays"
    assert error.left[1].startswith("claim 0000:3b:00.4")


def test_a_removal_is_not_undone_and_the_error_lists_what_is_still_to_do(log):
    error, log = run(Step("a", log), Step("b", log, InUse("held")), Step("c", log), undo=False)
    assert isinstance(error, PartlyApplied)
    assert error.left == ["b", "c"]
    assert not [line for line in log if line.startswith("undo")]


def test_the_first_signal_undoes_and_the_second_stops_the_undo(log):
    steps = (Step("a", log), Step("b", log, KeyboardInterrupt(), "undo"), Step("c", log, KeyboardInterrupt()))
    error, log = run(*steps)
    assert isinstance(error, Interrupted)
    assert log[-2:] == ["undo c", "undo b"]
    assert error.left == ["b", "a"]


def test_an_os_error_is_reported_with_its_number(log):
    error, _ = run(Step("a", log, OSError(5, "Input/output error", "/sys/x")))
    assert error is not None
    assert (str(error), error.facts["errno"]) == ("Input/output error: /sys/x", 5)


def test_facts_named_cause_do_no_harm(log):
    error, _ = run(Step("a", log, Failed("no", cause="x")), undo=False)
    assert error is not None
    assert error.facts["cause"] == "failed"


def test_a_write_that_the_kernel_has_parked_says_try_again_though_it_cannot_be_taken_back(log):
    parked = Stuck("it waits", hint="let go")
    error, log = run(Step("a", log), Step("b", log, parked), Step("c", log))
    assert not error.left, "everything was undone"
    error, log = run(Step("a", [], Stuck("still"), "undo"), Step("b", [], parked))
    assert error is parked
    assert error.left == ["a: still"]
    assert error.hint == "let go; then: vgpuctl reconcile-host"
