# SPDX-License-Identifier: Apache-2.0
"""Cells of CSV files that no spreadsheet computes."""

from __future__ import annotations

import pytest

from vgpuctl.model.csv_cells import text_cell


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\tx", "\rx", " =1", "\n=1", "＝1", "-a"])
def test_a_formula_is_marked_as_text(text: str) -> None:
    assert text_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "ada", "-5", "-1.5", "-1e-05", "7", "a=b", "0000:3b:00.0"])
def test_what_is_none_stays(text: str) -> None:
    assert text_cell(text) == text
