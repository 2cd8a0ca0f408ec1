# SPDX-License-Identifier: Apache-2.0
"""Every option of every command is typed by name in some test."""

from __future__ import annotations

import re

import click
import pytest

from tests.unit.cli.conftest import ROOT
from vgpuctl.cli import docs
from vgpuctl.cli.app import cli


def spellings() -> dict[str, list[str]]:
    """Return every option's spellings with the commands that have it."""
    found: dict[str, list[str]] = {}
    for words, command in [("vgpuctl", cli), *docs.commands()]:
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for spelling in [*parameter.opts, *parameter.secondary_opts]:
                    found.setdefault(spelling, []).append(words)
    return found


TEXT = "\n".join(
    path.read_text(encoding="utf-8", errors="replace")
    for path in sorted((ROOT / "tests").rglob("*.py"))
    if path.name != "test_every_option.py"
)


@pytest.mark.parametrize("spelling", sorted(spellings()))
def test_the_option_is_exercised_by_name(spelling: str) -> None:
    """As a word of a command line: quoted, or within a quoted line."""
    pattern = rf"""(?<=["' ]){re.escape(spelling)}(?=["' =])"""
    assert re.search(pattern, TEXT), f"no test types {spelling} of {', '.join(spellings()[spelling])}"
