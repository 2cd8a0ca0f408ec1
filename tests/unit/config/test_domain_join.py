# SPDX-License-Identifier: Apache-2.0
"""Blobs of offline domain joins, and the names of domains and computers: what is accepted, and that no error quotes."""

from __future__ import annotations

import base64
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain_joins import MARKER, as_saved, blob_text
from vgpuctl.config.domain_join import MAX_BLOB, MAX_BLOB_BYTES, domain_join_name, is_computer_name, parse_blob

BLOB = blob_text()


@pytest.mark.parametrize(
    "data",
    [
        as_saved(BLOB),
        BLOB.encode("utf-16"),
        b"\xfe\xff" + BLOB.encode("utf-16-be"),
        BLOB.encode(),
        f"{BLOB}\r\n".encode(),
        f"{BLOB}\n\0".encode(),
        f"\ufeff {BLOB}\r\n\0".encode("utf-16-le"),
    ],
)
def test_a_saved_file_and_plain_text_are_one_blob(data):
    assert parse_blob(data) == BLOB


@given(st.binary(min_size=48, max_size=4000))
def test_whatever_is_base64_comes_back(data):
    text = base64.b64encode(data).decode()
    assert parse_blob(as_saved(text)) == parse_blob(text.encode()) == text


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "it is empty"),
        (b"\xff\xfe\0\0", "it is empty"),
        (b" \r\n", "it is empty"),
        (f"{BLOB}\n{BLOB}\n".encode(), "it has 2 lines, and a blob is one"),
        (f"{BLOB}\n\n{BLOB}".encode(), "it has 3 lines"),
        (BLOB[:40].encode(), "it has 40 characters"),
        (b"A" * (MAX_BLOB + 4), f"it has {MAX_BLOB + 4} characters"),
        (b"A" * (MAX_BLOB_BYTES + 1), f"it has more than {MAX_BLOB_BYTES} bytes"),
        (BLOB.encode() + b"\xe9", "neither plain text nor UTF-16"),
        (BLOB.encode("utf-16") + b"\0", "neither plain text nor UTF-16"),
        (BLOB[:-1].encode(), "it is no base64"),
        (f"{BLOB[:60]}\0{BLOB[61:]}".encode(), "it is no base64"),
        (f"{BLOB[:60]} {BLOB[61:]}".encode(), "it is no base64"),
        (f"{BLOB[:60]}</AccountData><x>{BLOB[60:]}".encode(), "it is no base64"),
        (f"{BLOB[:60]}&xxe;{BLOB[60:]}".encode(), "it is no base64"),
        (f"{BLOB[:60]}-_{BLOB[60:]}".encode(), "it is no base64"),
        (f"\ufeff{BLOB}\u0660".encode("utf-16-le"), "it is no base64"),
    ],
)
def test_anything_else_is_refused_and_not_quoted(data, problem):
    with pytest.raises(ValueError, match=problem) as raised:
        parse_blob(data)
    assert MARKER not in "".join(traceback.format_exception(raised.value)).replace(repr(data), "")
    assert raised.value.__context__ is None


@pytest.mark.parametrize("name", ["desk-1", "A", "w11", "1a", "a" * 15])
def test_names_of_windows_computers(name):
    assert is_computer_name(name)


@pytest.mark.parametrize(
    "name", ["", "a" * 16, "123", "-a", "a-", "a.b", "a_b", "a b", "a/b", "..", "a\n", "ä", "a;b", "$(id)", "١٢"]
)
def test_other_names_are_none(name):
    assert not is_computer_name(name)


@pytest.mark.parametrize("name", ["..", "a/b", "/etc", "", "a.b", "-x", "a\0", "a\n", "a" * 33, "ä"])
def test_a_domain_is_named_without_a_path(name):
    with pytest.raises(ValueError, match="is not the name of a domain's entry"):
        domain_join_name(name)
    assert domain_join_name("corp_1-x") == "corp_1-x"
