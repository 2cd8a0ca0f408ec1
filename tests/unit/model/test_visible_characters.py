# SPDX-License-Identifier: Apache-2.0
"""What people see, by Unicode's own table."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from vgpuctl.model.names import is_visible


def test_control_format_line_end_and_surrogate_characters_are_hidden() -> None:
    every = map(chr, range(sys.maxunicode + 1))
    hidden = {one for one in every if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert {*"\u200e\u200f\u061c\u200b\ufeff\x9b\U000e0041"} <= hidden
    assert not [one for one in hidden if is_visible(one)]


@pytest.mark.parametrize("blank", ["\u3164", "\u115f", "\u034f"])
def test_a_letter_that_shows_nothing_is_not_shown(blank: str) -> None:
    assert not is_visible(blank)


def test_letters_signs_and_spaces_are_shown() -> None:
    assert all(map(is_visible, "aZ09 -_ äßñ × … Привет 日本 \u00a0\u3000🖥️"))
