# SPDX-License-Identifier: Apache-2.0
"""Tables: the same columns everywhere; on a terminal colours, and free text cut where it is too narrow."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.cli.shown import Pairs, Table
from vgpuctl.cli.tables import Look, render, text_width

TABLE = Table(("ADDRESS", "FREE", "MODEL"), (("0000:3b:00.0", "10", "A100"), ("mtty", "?", "-")), frozenset({"FREE"}))
LONG = Table(
    ("NAME", "STATE", "NOTE"),
    (("a-name-that-is-long", "running", "a sentence that nobody needs completely"), ("b", "stopped", "short")),
    free_text=frozenset({"NOTE"}),
    states=frozenset({"STATE"}),
)
_SEQUENCE = re.compile(r"\x1b\[\d+m")


def test_a_table() -> None:
    assert render([TABLE]) == "ADDRESS       FREE  MODEL\n0000:3b:00.0    10  A100\nmtty             ?  -\n"
    assert render([TABLE], Look(has_headers=False)) == "0000:3b:00.0  10  A100\nmtty           ?  -\n"


def test_pairs_and_text() -> None:
    assert render([Pairs((("name", "vdi-001"), ("numa node", "1"))), "", "text"]) == (
        "name:      vdi-001\nnuma node: 1\n\ntext\n"
    )


@pytest.mark.parametrize("width", range(1, 90))
def test_a_narrow_terminal_cuts_free_text_alone(width: int) -> None:
    lines = render([LONG], Look(width)).splitlines()
    assert all(line.startswith(name) for line, name in zip(lines, ("NAME", "a-name-that-is-long", "b"), strict=True))
    assert "running" in lines[1]
    longest = max(len(line) for line in lines)
    assert longest <= max(width, 19 + 2 + 7 + 2 + 12)
    assert ("…" in lines[1]) is (width < 19 + 2 + 7 + 2 + 39)


def test_colours_change_no_column() -> None:
    coloured = render([LONG, Pairs((("state", "running"),))], Look(has_colours=True))
    assert _SEQUENCE.sub("", coloured) == render([LONG, Pairs((("state", "running"),))])
    assert coloured.count("\x1b[32mrunning\x1b[0m") == 2
    assert "\x1b[2mstopped\x1b[0m" in coloured


def test_wide_characters_keep_the_columns() -> None:
    lines = render([Table(("A", "B"), (("机器", "x"), ("é", "x"), ("e\u0301", "x")))]).splitlines()
    assert {text_width(line) for line in lines} == {len("机器") * 2 + 3}


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=5), st.integers(1, 30))
def test_a_row_is_a_line_whatever_is_in_it(rows: list[tuple[str, str]], width: int) -> None:
    table = Table(("A", "B"), tuple(rows), free_text=frozenset({"B"}))
    for chosen in (Look(), Look(width)):
        text = render([table], chosen)
        assert text.count("\n") == len(rows) + 1
        assert not any(ord(character) < 32 and character != "\n" for character in text if character != "\t")
