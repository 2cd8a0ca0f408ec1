# SPDX-License-Identifier: Apache-2.0
"""All commands, for tests that look at each of them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from vgpuctl.cli.command import PROGRAM, LazyGroup, cli


def has_dry_run(command: str) -> bool:
    """Say whether a command has --dry-run: those that change the host do, and no other ones."""
    return any(param.name == "dry_run" for param in cli.load(command).params)


def walk_commands(group: LazyGroup = cli, path: str = PROGRAM) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its full name, groups before their commands."""
    for name in group.help_texts:
        command = group.load(name)
        yield f"{path} {name}", command
        if isinstance(command, LazyGroup):
            yield from walk_commands(command, f"{path} {name}")
