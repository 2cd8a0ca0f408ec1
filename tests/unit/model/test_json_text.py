# SPDX-License-Identifier: Apache-2.0
"""JSON from other programs is parsed, or unknown."""

import pytest

from vgpuctl.model.json_text import parse_json


def test_valid_json():
    assert parse_json(b'{"a": [1, "x"]}') == {"a": [1, "x"]}


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5000, b"\xff"])
def test_invalid_json_is_none(text):
    assert parse_json(text) is None
