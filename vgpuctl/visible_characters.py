# SPDX-License-Identifier: Apache-2.0
"""Which characters are visible: any other could control a terminal or make two names look alike."""

from __future__ import annotations

import unicodedata

_INVISIBLE_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0")
"""Letters that display nothing but that Python calls printable: Default_Ignorable_Code_Point of Unicode's
DerivedCoreProperties.txt, without the variation selectors that emoji use."""
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories: controls (C0 and C1); format characters, such as direction marks, zero-width marks and tags;
surrogates; line and paragraph separators."""
_NONCHARACTER = 0xFFFE


def is_visible(character: str) -> bool:
    """Return whether the character is visible; a space counts as visible."""
    if character.isprintable():
        return character not in _INVISIBLE_LETTERS
    return (
        unicodedata.category(character) not in _INVISIBLE_CATEGORIES and ord(character) & _NONCHARACTER != _NONCHARACTER
    )
