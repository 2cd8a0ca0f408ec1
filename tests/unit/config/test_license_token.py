# SPDX-License-Identifier: Apache-2.0
"""The expiry of a license token is read from any text, and a text that is no token is refused without being shown."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.config.license_token import MAX_CHARACTERS, read_expiry

YEAR_9999 = 253_402_300_799


def part(text: str | bytes) -> str:
    return base64.urlsafe_b64encode(text if isinstance(text, bytes) else text.encode()).decode().rstrip("=")


def token(claims: str | bytes, header: str = '{"alg": "RS256"}') -> str:
    return f"{part(header)}.{part(claims)}.{part('signature')}"


@given(st.integers(0, YEAR_9999), st.text(max_size=50))
def test_the_expiry_of_a_token_is_read_back(expiry: int, other: str) -> None:
    text = token(json.dumps({"iat": 1, "exp": expiry, "svc_port_set_list": [{"d": other}]}))
    assert read_expiry(text) == expiry
    assert read_expiry(f"\n{text}\n") == expiry


@given(st.text(max_size=200) | st.from_regex(r"[A-Za-z0-9_-]{1,60}\.[A-Za-z0-9_-]{1,60}\.[A-Za-z0-9_-]{1,9}"))
def test_any_text_gives_a_time_or_a_reason(text: str) -> None:
    try:
        expiry = read_expiry(text)
    except ValueError:
        return
    assert expiry is None or 0 <= expiry <= YEAR_9999


@given(st.binary(max_size=200))
def test_any_bytes_as_claims_give_a_time_or_a_reason(claims: bytes) -> None:
    try:
        expiry = read_expiry(token(claims or b"x"))
    except ValueError:
        return
    assert expiry is None or 0 <= expiry <= YEAR_9999


NO_OBJECT = "its second part is no JSON object"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is no JSON Web Token"),
        ("a.b", "it is no JSON Web Token"),
        ("a.b.c.d", "it is no JSON Web Token"),
        (f"{part('{}')}.{part('{}')}.", "it is no JSON Web Token"),
        (f"{part('{}')}.{part('{}')}=.{part('x')}", "it is no JSON Web Token"),
        ("a b.c.d", "it is no JSON Web Token"),
        (f"{part('{}')}.abcde.{part('x')}", "its second part is no base64url"),
        (token("[1]"), NO_OBJECT),
        (token("null"), NO_OBJECT),
        (token("{"), NO_OBJECT),
        (token(b"\xff\xfe"), NO_OBJECT),
        (token("[" * 30_000), NO_OBJECT),
        (token('{"exp": ' + "9" * 5000 + "}"), NO_OBJECT),
        (token('{"exp": "1800000000"}'), "its 'exp' is no number"),
        (token('{"exp": true}'), "its 'exp' is no number"),
        (token('{"exp": [1]}'), "its 'exp' is no number"),
        (token('{"exp": -1}'), "its 'exp' is no time"),
        (token('{"exp": NaN}'), "its 'exp' is no time"),
        (token('{"exp": Infinity}'), "its 'exp' is no time"),
        (token('{"exp": 1e400}'), "its 'exp' is no time"),
        (token(json.dumps({"exp": YEAR_9999 + 1})), "its 'exp' is no time"),
        ("x" * (MAX_CHARACTERS + 1), "it has 65537 characters, more than the 65536"),
        (token(json.dumps({"exp": 1, "more": "x" * MAX_CHARACTERS})), "more than the 65536"),
    ],
)
def test_what_is_no_token_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_expiry(text)


def test_a_token_without_an_expiry_has_none() -> None:
    assert read_expiry(token("{}")) is None
    assert read_expiry(token('{"exp": null}')) is None
    assert read_expiry(token('{"exp": 1800000000.5}')) == 1800000000.5
