# SPDX-License-Identifier: Apache-2.0
"""JSON from outside is what it says, or unknown."""

import pytest

from vgpuctl.model.json_text import parsed


def test_what_it_says():
    assert parsed(b'{"a": [1, "x"]}') == {"a": [1, "x"]}


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5000, b"\xff"])
def test_what_is_none_is_unknown(text):
    assert parsed(text) is None
