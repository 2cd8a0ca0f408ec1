# SPDX-License-Identifier: Apache-2.0
"""Tables: stable columns in a pipe, nothing lost on a terminal."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.cli.tables import Pairs, Table, print_rich, render_plain

TABLE = Table(("ADDRESS", "FREE", "MODEL"), (("0000:3b:00.0", "10", "A100"), ("mtty", "?", "-")), frozenset({"FREE"}))


def test_plain_table() -> None:
    assert render_plain([TABLE]) == "ADDRESS       FREE  MODEL\n0000:3b:00.0    10  A100\nmtty             ?  -\n"


def test_plain_pairs_and_text() -> None:
    assert render_plain([Pairs((("name", "vdi-001"), ("numa node", "1"))), "", "text"]) == (
        "name:      vdi-001\nnuma node: 1\n\ntext\n"
    )


def test_a_terminal_gets_every_cell() -> None:
    stream = io.StringIO()
    print_rich([TABLE, "", Pairs((("name", "vdi-001"),)), "[bold]not markup"], stream)
    for cell in ("ADDRESS", "0000:3b:00.0", "10", "A100", "mtty", "vdi-001", "[bold]not markup"):
        assert cell in stream.getvalue()


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=5))
def test_a_row_is_a_line_whatever_is_in_it(rows: list[tuple[str, str]]) -> None:
    text = render_plain([Table(("A", "B"), tuple(rows))])
    assert text.count("\n") == len(rows) + 1
    assert not any(ord(character) < 32 and character != "\n" for character in text if character != "\t")
