# SPDX-License-Identifier: Apache-2.0
"""Suggestions are real commands and options, and never far-fetched."""

from __future__ import annotations

import pytest

from tests.unit.cli.test_every_option import spellings
from vgpuctl.cli import usage
from vgpuctl.cli.command_table import COMMANDS, OPTION_SYNONYMS, SYNONYMS


def test_every_synonym_leads_somewhere() -> None:
    assert {line.split()[0] for line in SYNONYMS.values()} <= set(COMMANDS)
    assert not set(SYNONYMS) & set(COMMANDS)
    assert set(OPTION_SYNONYMS.values()) <= set(spellings())
    own = {"--vcpu", "--vgpu", "--pool", "--timeout"}  # --vgpu is only an option of detach-vgpu, --timeout of wait
    assert not set(OPTION_SYNONYMS) - own & set(spellings())


@pytest.mark.parametrize("word", ["frobnicate", "x", "zzz"])
def test_nothing_is_better_than_something_far_fetched(word: str) -> None:
    assert usage.suggest_command([word], list(COMMANDS)) is None
    assert usage.suggest_option(f"--{word}", spellings()) is None
