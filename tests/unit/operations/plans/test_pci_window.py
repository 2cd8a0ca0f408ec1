# SPDX-License-Identifier: Apache-2.0
"""The guest's address space for big BARs: as large as they need, and never silently too small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts import request
from vgpuctl.operations.plans.pci_window import DEFAULT_WINDOW_MIB, bars_mib, window_mib

GIB = 1 << 30
NONE = f"0x{0:016x} 0x{0:016x} 0x{0:016x}"


def bar(start: int, size: int, flags: int = 0x14220C) -> str:
    return f"0x{start:016x} 0x{start + size - 1:016x} 0x{flags:016x}"


@pytest.mark.parametrize(
    ("lines", "mib"),
    [
        ([], 0),
        ([NONE] * 13, 0),
        ([bar(0x38 << 40, 16 << 20), NONE, bar(0x40 << 40, 128 * GIB)], 16 + 128 * 1024),
        ([bar(0x38 << 40, 4096)], 1),
        ([bar(0xE000, 128, 0x40101)], 0),  # I/O ports
        ([NONE] * 6 + [bar(0xFB000000, 512 << 10), bar(0x50 << 40, 64 * GIB)], 0),  # the ROM, and the VFs' BARs
        (["what is this?"], 0),
    ],
)
def test_the_memory_bars_of_the_function_itself_are_counted(lines, mib):
    assert bars_mib("\n".join([*lines, ""])) == mib


@given(st.integers(0, 1 << 20))
def test_a_window_is_larger_than_the_bars_and_no_more_than_twice(needed):
    result = window_mib(request(), needed)
    if needed < DEFAULT_WINDOW_MIB:
        assert result is None
    else:
        assert result is not None
        assert needed < result <= 2 * needed
        assert result & (result - 1) == 0


def test_what_was_typed_counts():
    assert window_mib(request(pci_window="none"), 1 << 20) is None
    assert window_mib(request(pci_window="1TiB"), 0) == 1 << 20
