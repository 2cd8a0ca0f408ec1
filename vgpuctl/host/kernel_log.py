# SPDX-License-Identifier: Apache-2.0
"""This boot's log of the kernel and of services, by journalctl; the kernel's else by dmesg: `seams.KernelLog`."""

from __future__ import annotations

from collections.abc import Sequence

_BOOT = ("-b", "-o", "cat", "--no-pager", "-q")
_KERNEL = (("journalctl", ("-k", *_BOOT)), ("dmesg", ()))
_SERVICE_LINES = 5000
_SERVICE = (("journalctl", (*_BOOT, "-n", str(_SERVICE_LINES))),)
_DEADLINE_SECONDS = 10.0


class HostKernelLog:
    """The log since the boot.

    `commands`: what prints the kernel's, by absolute path with its words; `services`: what prints a service's, its
    name being the last word. Both for tests.
    """

    def __init__(
        self, commands: Sequence[Sequence[str]] | None = None, services: Sequence[Sequence[str]] | None = None
    ) -> None:
        self._commands = commands
        self._services = services

    def lines(self, *containing: str) -> tuple[str, ...] | None:
        """Return the lines that contain one of these texts; None when nobody lets us see the log."""
        text = _printed(_known(_KERNEL) if self._commands is None else self._commands)
        if not text:
            return None
        return tuple(line for line in text.splitlines() if any(t in line for t in containing))

    def service_lines(self, service: str) -> tuple[str, ...] | None:
        """Return the last 5000 lines of a service; a service that does not exist wrote none."""
        known = _known(_SERVICE) if self._services is None else self._services
        text = _printed([[*argv, "-u", f"{service}.service"] for argv in known])
        return None if text is None else tuple(text.splitlines())


def _known(commands: Sequence[tuple[str, Sequence[str]]]) -> list[list[str]]:
    from vgpuctl.host.commands import find_command

    found = ((find_command(name), words) for name, words in commands)
    return [[path, *words] for path, words in found if path is not None]


def _printed(commands: Sequence[Sequence[str]]) -> str | None:
    """Return what the first command that works prints; None when none does."""
    from vgpuctl.host.commands import run  # loads subprocess, which few commands need

    printed: str | None = None
    for argv in commands:
        try:
            result = run(argv, deadline_seconds=_DEADLINE_SECONDS)
        except OSError:
            continue
        if result.rc == 0 and result.stdout:
            return result.stdout
        printed = result.stdout if result.rc == 0 else printed
    return printed
