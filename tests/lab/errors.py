"""What can go wrong in the lab, told apart: no lab, a command that failed, an L2 that died.

The difference matters to the test runner: only a dead L2 is a reason to run a test again.
"""

from __future__ import annotations


class LabError(Exception):
    """The lab cannot do what was asked; the message says what to do about it."""


class LabDied(LabError):
    """The emulated host itself is dead: not a failed test, and not vgpuctl's doing."""


class CommandFailed(LabError):
    """A command ended with a status that the caller did not expect, or ran past its deadline."""

    def __init__(self, what: str, status: int | None, output: str) -> None:
        self.what = what
        self.status = status
        self.output = output
        ended = "ran past its deadline" if status is None else f"ended with status {status}"
        super().__init__(f"{what}\n  {ended}\n{output[-6000:]}")
