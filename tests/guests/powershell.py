# SPDX-License-Identifier: Apache-2.0
"""Scripts of PowerShell, read by its grammar: nothing runs them here."""

from __future__ import annotations

from collections.abc import Iterator

import tree_sitter
import tree_sitter_powershell

WINDOWS = {
    "Add-Content", "Add-LocalGroupMember", "Add-Type", "ConvertFrom-Json", "ConvertTo-Json", "ConvertTo-SecureString",
    "Copy-Item", "Get-LocalUser", "New-LocalUser", "Set-LocalUser",
    "ForEach-Object", "Get-ChildItem", "Get-CimInstance", "Get-Content", "Get-Date", "Get-FileHash", "Get-Item",
    "Get-LocalGroupMember", "Get-ScheduledTask", "Get-Service", "Import-Certificate", "Join-Path", "Move-Item",
    "New-Item", "New-Object", "New-ScheduledTaskAction", "New-ScheduledTaskSettingsSet", "New-ScheduledTaskTrigger",
    "New-TimeSpan", "Out-Null", "Register-ScheduledTask", "Remove-Item", "Remove-LocalGroupMember",
    "Restart-Service", "Select-Object", "Set-Content", "Set-ItemProperty", "Set-StrictMode", "Split-Path",
    "Start-Process", "Start-ScheduledTask", "Start-Sleep", "Stop-ScheduledTask", "Test-Path",
    "Unregister-ScheduledTask", "Where-Object", "Write-Verbose",
}  # fmt: skip
"""Commands that Windows PowerShell 5.1 has."""


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


def unknown_and_unused(text: str) -> tuple[set[str], set[str]]:
    """Return the commands that neither the script nor Windows has, and the script's functions that nothing calls.

    Windows' own commands are a verb and a noun as well: a misspelt call of the script's own is not among them.
    """
    names = {"command_name": set[str](), "function_name": set[str]()}
    for node in nodes(text):
        if node.type in names:
            names[node.type].add((node.text or b"").decode())
    called = {name for name in names["command_name"] if "-" in name}
    return called - WINDOWS - names["function_name"], names["function_name"] - called
