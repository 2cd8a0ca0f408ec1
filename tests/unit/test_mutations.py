# SPDX-License-Identifier: Apache-2.0
"""Every bug that `python -m tests.mutate` plants still applies, is named once, and has tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutate.bug import Bug
from tests.mutate.bugs import BUGS

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_applies_exactly_once_and_names_tests_that_exist(bug: Bug) -> None:
    ast.parse(bug.planted(CHECKOUT))
    for test in bug.tests:
        path, _, name = test.partition("::")
        text = CHECKOUT / path
        assert text.exists(), test
        assert not name or f"def {name}(" in text.read_text(), test


def test_at_least_thirty_with_unique_names_and_rules() -> None:
    assert len(BUGS) >= 30
    assert len({bug.name for bug in BUGS}) == len({bug.rule for bug in BUGS}) == len(BUGS)
