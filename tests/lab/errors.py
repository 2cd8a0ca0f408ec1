"""The errors of the lab: the lab does not work, a command failed, or L2 died.

The difference matters to the test runner: it repeats a test only if L2 died.
"""

from __future__ import annotations


class LabError(Exception):
    """The lab cannot do what the caller requested; the message says how to fix that."""


class LabDied(LabError):
    """The emulated host itself is dead. This is no test failure, and vgpuctl is not the cause."""


class CommandFailed(LabError):
    """A command ended with an unexpected exit status, or ran past its deadline."""

    def __init__(self, what: str, status: int | None, output: str) -> None:
        self.what = what
        self.status = status
        self.output = output
        ended = "ran past its deadline" if status is None else f"ended with status {status}"
        super().__init__(f"{what}\n  {ended}\n{output[-6000:]}")
