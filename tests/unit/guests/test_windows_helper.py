# SPDX-License-Identifier: Apache-2.0
"""The helper for guests with Windows: its text is parsed by a grammar of PowerShell; nothing here runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tree_sitter
import tree_sitter_powershell

from tests.guests.helper import program
from vgpuctl.model.guest_report import CHANNEL, MAX_LINE_BYTES, MAX_USERS

SCRIPT = Path(__file__).parents[3] / "templates/guest/vgpuctl_guest.ps1"


def nodes(text: str) -> Iterator[tree_sitter.Node]:
    """Yield every node of a script's syntax tree."""
    language = tree_sitter.Language(tree_sitter_powershell.language())
    waiting = [tree_sitter.Parser(language).parse(text.encode()).root_node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children


def problems(text: str) -> list[tuple[int, bytes]]:
    """Return the lines that are no PowerShell."""
    return [(n.start_point[0] + 1, n.text or b"") for n in nodes(text) if n.is_error or n.is_missing]


def test_it_is_powershell() -> None:
    text = SCRIPT.read_text()
    assert problems(text) == []
    assert problems(text.replace("function Get-Report {", "function Get-Report {{")), "the grammar sees an error"


def test_it_calls_only_functions_that_it_defines_or_windows_has() -> None:
    """Windows' own commands are a verb and a noun as well: a misspelt call of the script's own is not among them."""
    text = SCRIPT.read_text()
    names = {"command": set[str](), "function": set[str]()}
    for node in nodes(text):
        if node.type == "command_name":
            names["command"].add((node.text or b"").decode())
        if node.type == "function_name":
            names["function"].add((node.text or b"").decode())
    own = {"Add-LocalGroupMember", "Add-Type", "ConvertFrom-Json", "ConvertTo-Json", "Copy-Item", "ForEach-Object",
           "Get-ChildItem", "Get-CimInstance", "Get-LocalGroupMember", "Join-Path", "Move-Item", "New-Item",
           "New-Object", "New-ScheduledTaskAction", "New-ScheduledTaskSettingsSet", "New-ScheduledTaskTrigger",
           "New-TimeSpan", "Out-Null", "Register-ScheduledTask", "Remove-Item", "Remove-LocalGroupMember",
           "Restart-Service", "Select-Object", "Set-StrictMode", "Split-Path", "Start-ScheduledTask", "Start-Sleep",
           "Where-Object", "Write-Verbose"}  # fmt: skip
    called = {name for name in names["command"] if "-" in name}
    assert called - own <= names["function"]
    assert names["function"] - called == set()


def test_it_agrees_with_the_host_and_with_the_helper_for_linux() -> None:
    text = SCRIPT.read_text()
    for line in (
        f"$Version = '{program.VERSION}'",
        f"$PortPath = '\\\\.\\Global\\{CHANNEL}'",
        f"$MaxLineBytes = {MAX_LINE_BYTES}",
        f"$MaxUsers = {MAX_USERS}",
        f"$TokenName = '{program.TOKEN_NAME}'",
        *(f"'{verb}' {{" for verb in ("message", "put-token", "allow-logon", "shutdown-in")),
    ):
        assert line in text
