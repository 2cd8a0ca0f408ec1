# SPDX-License-Identifier: Apache-2.0
"""Every bug that `python -m tests.mutate` plants still applies, is named once, and has tests that exist.

`automatic` plants what `mutations` yields.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutate.bug import Bug
from tests.mutate.bugs import BUGS
from tests.mutate.mutations import mutations

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


def test_the_automatic_mutations_of_a_function() -> None:
    text = (
        "LIMIT = 1\n"
        "def f(a: int, b=2):\n"
        '    """É."""\n'
        "    if a < 1 and b:\n"
        "        log(f'é {a > 1}')\n"
        "    return a if not b else (\n"
        "        None)\n"
    )
    changes = {(m.name, m.statement): m.planted(text) for m in mutations(text)}
    assert {key: _changed_lines(text, new) for key, new in changes.items()} == {
        ("condition negated", 4): ["    if not (a < 1 and b):"],
        ("and/or swapped", 4): ["    if (a < 1 or b):"],
        ("comparison flipped", 4): ["    if (a >= 1) and b:"],
        ("constant changed", 4): ["    if a < 2 and b:"],
        ("statement removed", 5): ["        pass"],
        ("return None", 6): ["    return None"],
        ("condition negated", 6): ["    return a if not (not b) else ("],
        ("not removed", 6): ["    return a if (b) else ("],
    }
    for new in changes.values():
        ast.parse(new)


def _changed_lines(old: str, new: str) -> list[str]:
    return [line for line in new.splitlines() if line not in old.splitlines()]
