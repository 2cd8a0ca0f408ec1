# SPDX-License-Identifier: Apache-2.0
"""Some test uses each option of each command by name; suggestions are real commands and options."""

from __future__ import annotations

import re

import click
import pytest

from tests.unit.cli.command_tree import walk_commands
from tests.unit.cli.conftest import ROOT
from vgpuctl.cli import usage
from vgpuctl.cli.command import cli
from vgpuctl.cli.command_table import COMMANDS, OPTION_SYNONYMS, SYNONYMS


def spellings() -> dict[str, list[str]]:
    """Return the spellings of each option with the commands that have it."""
    result: dict[str, list[str]] = {}
    for words, command in [("vgpuctl", cli), *walk_commands()]:
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for spelling in [*parameter.opts, *parameter.secondary_opts]:
                    result.setdefault(spelling, []).append(words)
    return result


TEXT = "\n".join(
    path.read_text(encoding="utf-8", errors="replace")
    for path in sorted((ROOT / "tests").rglob("*.py"))
    if path.name != "test_every_option.py"
)


def test_each_option_is_exercised_by_name() -> None:
    """The option is a word of a command line: quoted, or inside a quoted line."""
    assert not {
        spelling: commands
        for spelling, commands in spellings().items()
        if not re.search(rf"""(?<=["' ]){re.escape(spelling)}(?=["' =])""", TEXT)
    }


def test_every_synonym_leads_somewhere() -> None:
    assert {line.split()[0] for line in SYNONYMS.values()} <= set(COMMANDS)
    assert not set(SYNONYMS) & set(COMMANDS)
    assert set(OPTION_SYNONYMS.values()) <= set(spellings())
    own = {"--vcpu", "--vgpu", "--pool", "--timeout", "--format", "--size"}  # those only some commands have
    assert not set(OPTION_SYNONYMS) - own & set(spellings())


@pytest.mark.parametrize("word", ["frobnicate", "x", "zzz"])
def test_nothing_is_better_than_something_far_fetched(word: str) -> None:
    assert usage.suggest_command([word], list(COMMANDS)) is None
    assert usage.suggest_option(f"--{word}", spellings()) is None
