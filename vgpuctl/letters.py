# SPDX-License-Identifier: Apache-2.0
"""Which characters people see: all others would steer a terminal, or let two names look alike."""

from __future__ import annotations

_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0")
"""Letters that show nothing (Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties.txt, without the variation
selectors that emoji have); Python calls them printable."""
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories: controls (C0 and C1); format characters, such as marks of direction, of no width, and tags;
half characters; ends of lines and paragraphs."""
_NONCHARACTER = 0xFFFE


def is_shown(character: str) -> bool:
    """Say whether a person sees the character, or a space."""
    if character.isprintable():
        return character not in _BLANK
    from unicodedata import category  # a library of its own, which few texts need

    return category(character) not in _HIDDEN and ord(character) & _NONCHARACTER != _NONCHARACTER
