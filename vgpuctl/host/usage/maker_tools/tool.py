# SPDX-License-Identifier: Apache-2.0
"""A maker's own program that tells the use of its cards: where it is, and how its output is read."""

from __future__ import annotations

import time
from collections.abc import Callable

from vgpuctl.host.usage.processes import read_output
from vgpuctl.model.usage import GpuUse, VgpuUse
from vgpuctl.value import Value

MAX_OUTPUT_BYTES = 4 << 20


class ProgramRuns:
    """Runs one program, with a deadline for all its runs together."""

    def __init__(self, path: str, deadline_seconds: float) -> None:
        self._path = path
        self._deadline = deadline_seconds
        self._end = time.monotonic() + deadline_seconds

    @property
    def seconds_left(self) -> float:
        """How long its runs may still take."""
        return max(0.0, self._end - time.monotonic())

    def __call__(self, *words: str) -> str:
        """Run it with these arguments and return what it prints.

        Raises:
            OSError: it failed.
            LateProgram: the time ended; it was killed.
        """
        argv, left = [self._path, *words], self.seconds_left
        output = read_output(argv, user=None, deadline_seconds=left, max_bytes=MAX_OUTPUT_BYTES)
        return output.decode("utf-8", "replace")


class ToolReading(Value):
    """What one reading gave. A field that the program does not tell stays unknown."""

    gpus: tuple[GpuUse, ...] = ()
    vgpus: tuple[VgpuUse, ...] = ()


class UsageTool(Value):
    """One program. `paths`: where its packages put it; the first that exists is used, if only root can change it.

    `read`: runs it and reads its output; cards without a PCI address are left out.
    """

    name: str
    paths: tuple[str, ...]
    read: Callable[[ProgramRuns], ToolReading]
