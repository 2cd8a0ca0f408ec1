# SPDX-License-Identifier: Apache-2.0
"""What a trial's action leaves when one of its calls fails, for tests that say themselves what may be left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from tests.faults import Trial, failing, fault_points, outcome
from tests.hosts import SimulatedHost, picture


class FailedCall(NamedTuple):
    """One call that failed: its name and all of it in words, the action's error, and the host before and after."""

    call: str
    where: str
    for_good: bool
    error: Any
    before: Any
    now: Any
    host: SimulatedHost

    @property
    def is_left(self) -> bool:
        """Whether the action raised an error and did not undo everything."""
        return self.error is not None and self.now != self.before

    @property
    def is_told(self) -> bool:
        """Whether the error says that something is left, or a claim could not be written or removed."""
        return bool(self.error.left or self.error.code == "partly-applied" or self.call.startswith("claims."))


def failed_calls(
    trial: Trial, calls: tuple[str, ...], seen: Callable[[SimulatedHost], object] = picture, *, one_of: int = 1
) -> Iterator[FailedCall]:
    """Make each call of a trial's action fail, or one of so many. Where it raises no error, it has changed the host."""
    for number, done, for_good in fault_points(calls, every_read=False)[::one_of]:
        call = calls[number - 1]
        where = f"call {number} {call}, done={done}, for good={for_good}"
        host = trial.host(f"{number}{done}{for_good}")
        before = seen(host)
        error = outcome(partial(trial.act, failing(host.ports, number, done=done, for_good=for_good)))
        now = seen(host)
        host.sim.close()
        assert error is not None or now != before, where
        yield FailedCall(call, where, for_good, error, before, now, host)
