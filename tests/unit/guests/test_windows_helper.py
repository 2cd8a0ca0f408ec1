# SPDX-License-Identifier: Apache-2.0
"""The helper for guests with Windows: its text is parsed by a grammar of PowerShell; nothing here runs it."""

from __future__ import annotations

from pathlib import Path

from tests.guests import powershell
from tests.guests.helper import program
from vgpuctl.model.guest_report import CHANNEL, MAX_LINE_BYTES, MAX_USERS

SCRIPT = Path(__file__).parents[3] / "templates/guest/vgpuctl_guest.ps1"


def test_it_is_powershell() -> None:
    text = SCRIPT.read_text()
    assert powershell.problems(text) == []
    assert powershell.problems(text.replace("function Get-Report {", "function Get-Report {{")), (
        "the grammar sees an error"
    )


def test_it_calls_only_functions_that_it_defines_or_windows_has() -> None:
    assert powershell.unknown_and_unused(SCRIPT.read_text()) == (set(), set())


def test_it_agrees_with_the_host_and_with_the_helper_for_linux() -> None:
    text = SCRIPT.read_text()
    for line in (
        f"$Version = '{program.VERSION}'",
        f"$PortPath = '\\\\.\\Global\\{CHANNEL}'",
        f"$MaxLineBytes = {MAX_LINE_BYTES}",
        f"$MaxUsers = {MAX_USERS}",
        f"$TokenName = '{program.TOKEN_NAME}'",
        *(f"'{verb}' {{" for verb in ("message", "put-token", "allow-logon", "shutdown-in")),
        *(f"'{verb}' {{" for verb in ("make-account", "set-password")),
        r"$AccountPattern = '^[a-z_][a-z0-9_-]{0,19}\z'",
        rf"-notmatch '^{program._PASSWORD.pattern.replace('?:', '')}\z'",
    ):
        assert line in text
