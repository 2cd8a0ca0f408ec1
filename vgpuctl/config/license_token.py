# SPDX-License-Identifier: Apache-2.0
"""When NVIDIA's client configuration token, with which guests get their licenses, expires.

The token is a JSON Web Token (RFC 7519). Its signature is for the license server: nothing here checks it. The token is
a secret, so no error quotes it.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import timedelta

from vgpuctl.model.json_yaml import parse_json

MAX_CHARACTERS = 64 * 1024
"""NVIDIA's have a few thousand."""
EXPIRY_WARNING = timedelta(days=30)
"""So long before a token expires doctor and an event say so: a new one needs somebody with access to the portal."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+", re.ASCII)
_MAX_TIME = 253_402_300_799
"""The end of the year 9999, the last that Python's dates have."""


def read_expiry(text: str) -> float | None:
    """Return when a token expires, in seconds since 1970; None if it says nothing about that.

    Raises:
        ValueError: why it is no token, as a clause about "it".
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it has {len(text)} characters, more than the {MAX_CHARACTERS} that a token may have")
    match = _TOKEN.fullmatch(text.strip())
    if match is None:
        raise ValueError("it is no JSON Web Token: three parts of base64url, with dots between them")
    claims = parse_json(_decode(match[1]))
    if not isinstance(claims, dict):
        raise ValueError("its second part is no JSON object")
    expiry = claims.get("exp")
    if expiry is None:
        return None
    if isinstance(expiry, bool) or not isinstance(expiry, int | float):
        raise ValueError("its 'exp' is no number")
    if not 0 <= expiry <= _MAX_TIME:
        raise ValueError("its 'exp' is no time between 1970 and 9999")
    return expiry


def _decode(part: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error:
        raise ValueError("its second part is no base64url") from None
