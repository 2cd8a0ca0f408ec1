# SPDX-License-Identifier: Apache-2.0
"""Quantities of Kubernetes: `2`, `500m`, `4Gi`, `1e3` (apimachinery, pkg/api/resource/quantity.go)."""

from __future__ import annotations

import re
from fractions import Fraction

_QUANTITY = re.compile(
    r"(?P<number>[0-9]{1,15}(\.[0-9]{0,9})?|\.[0-9]{1,9})(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]{1,2})?",
    re.ASCII,
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
LIMIT = 1 << 60
"""More than any amount of anything that a pod can have."""


def parse_quantity(value: object) -> Fraction:
    """Return a quantity as an exact number.

    Raises:
        ValueError: it is none, negative, or beyond every limit.
    """
    text = str(value)
    match = None if isinstance(value, bool) else _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!a} is not an amount such as 2, 500m or 4Gi")
    number, suffix = Fraction(match["number"]), match["suffix"] or ""
    if suffix in _BINARY:
        number *= 1 << _BINARY[suffix]
    elif suffix:
        exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
        number *= Fraction(10) ** exponent
    if number > LIMIT:
        raise ValueError(f"{text[:40]!a} is too large")
    return number


def parse_count(value: object) -> int:
    """Return a quantity that must be a whole number, as of extended resources.

    Raises:
        ValueError: it is no whole number.
    """
    number = parse_quantity(value)
    if number.denominator != 1:
        raise ValueError(f"{str(value)[:40]!a} is no whole number, and Kubernetes takes no part of such a resource")
    return int(number)


def has_byte_suffix(value: object) -> bool:
    """Return whether a quantity is in bytes by its suffix."""
    return isinstance(value, str) and value.endswith(tuple(_BINARY))
