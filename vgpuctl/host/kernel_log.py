# SPDX-License-Identifier: Apache-2.0
"""Kernel and service logs since boot, from journalctl, else dmesg for the kernel; implements `ports.SystemLog`."""

from __future__ import annotations

from collections.abc import Sequence

_BOOT = ("-b", "-o", "cat", "--no-pager", "-q")
_KERNEL = (("journalctl", ("-k", *_BOOT)), ("dmesg", ()))
_SERVICE_LINES = 5000
_SERVICE = (("journalctl", (*_BOOT, "-n", str(_SERVICE_LINES))),)
_DEADLINE_SECONDS = 10.0


class HostKernelLog:
    """The logs since boot.

    `commands`: the commands that print the kernel's log, by absolute path with arguments; `services`: those that print
    a service's, with the service's name added as the last argument. Tests set both.
    """

    def __init__(
        self, commands: Sequence[Sequence[str]] | None = None, services: Sequence[Sequence[str]] | None = None
    ) -> None:
        self._commands = commands
        self._services = services

    def kernel_lines(self, *containing: str) -> tuple[str, ...] | None:
        """Return the lines that contain one of these texts; None when the log is not readable."""
        text = _run_first(_find_commands(_KERNEL) if self._commands is None else self._commands)
        if not text:
            return None
        return tuple(line for line in text.splitlines() if any(t in line for t in containing))

    def service_lines(self, service: str) -> tuple[str, ...] | None:
        """Return the last 5000 lines of a service; a service that does not exist has none."""
        commands = _find_commands(_SERVICE) if self._services is None else self._services
        text = _run_first([[*argv, "-u", f"{service}.service"] for argv in commands])
        return None if text is None else tuple(text.splitlines())


def _find_commands(commands: Sequence[tuple[str, Sequence[str]]]) -> list[list[str]]:
    from vgpuctl.host.commands import find_command

    paths = ((find_command(name), arguments) for name, arguments in commands)
    return [[path, *arguments] for path, arguments in paths if path is not None]


def _run_first(commands: Sequence[Sequence[str]]) -> str | None:
    """Return the output of the first command that succeeds with output; None when no command succeeds."""
    from vgpuctl.host.commands import run_command  # loads subprocess, which few commands need

    output: str | None = None
    for argv in commands:
        try:
            result = run_command(argv, deadline_seconds=_DEADLINE_SECONDS)
        except OSError:
            continue
        if result.status == 0 and result.stdout:
            return result.stdout
        output = result.stdout if result.status == 0 else output
    return output
