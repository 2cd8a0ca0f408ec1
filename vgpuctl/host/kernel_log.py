# SPDX-License-Identifier: Apache-2.0
"""This boot's kernel log, by journalctl or dmesg, whichever is there: `seams.KernelLog`."""

from __future__ import annotations

from collections.abc import Sequence

_COMMANDS = (("journalctl", ("-k", "-b", "-o", "cat", "--no-pager", "-q")), ("dmesg", ()))
_DEADLINE_SECONDS = 10.0


class HostKernelLog:
    """The log of the running kernel. `commands`: what prints it, by absolute path with its words; for tests."""

    def __init__(self, commands: Sequence[Sequence[str]] | None = None) -> None:
        self._commands = commands

    def lines(self, containing: str) -> tuple[str, ...]:
        """Return the lines that contain a text; none when nobody lets us see the log."""
        from vgpuctl.host.commands import run

        for argv in self._known() if self._commands is None else self._commands:
            try:
                result = run(argv, deadline_seconds=_DEADLINE_SECONDS)
            except OSError:
                continue
            if result.rc == 0 and result.stdout:
                return tuple(line for line in result.stdout.splitlines() if containing in line)
        return ()

    @staticmethod
    def _known() -> list[list[str]]:
        from vgpuctl.host.commands import find_command

        found = ((find_command(name), words) for name, words in _COMMANDS)
        return [[path, *words] for path, words in found if path is not None]
