# SPDX-License-Identifier: Apache-2.0
"""One form for every size on the screen."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.model.sizes import format_bytes, format_mib


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 MiB"), (1, "1 KiB"), (383_000, "375 KiB"), (1 << 20, "1 MiB"), (3 << 29, "1536 MiB"), (20 << 30, "20 GiB"),
     (900 << 40, "921600 GiB")],
)  # fmt: skip
def test_bytes(size, text):
    assert format_bytes(size) == text


@given(st.integers(0, 1 << 40))
def test_no_size_has_an_exponent_or_loses_anything(mib):
    number, unit = re.fullmatch(r"([0-9]+) (MiB|GiB)", format_mib(mib)).groups()
    assert int(number) * (1024 if unit == "GiB" else 1) == mib
