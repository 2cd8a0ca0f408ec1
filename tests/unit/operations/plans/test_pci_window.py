# SPDX-License-Identifier: Apache-2.0
"""The guest's address space for big BARs: as large as they need, and never silently too small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.operations.plans.pci_window import DEFAULT_WINDOW_MIB, bars_mib, gpu_bars_mib, window_mib

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
    result = window_mib("auto", [needed])
    if needed < DEFAULT_WINDOW_MIB:
        assert result is None
    else:
        assert result is not None
        assert needed < result <= 2 * needed
        assert result & (result - 1) == 0


def test_what_was_typed_counts():
    assert window_mib("none", [1 << 20]) is None
    assert window_mib("1TiB", [0]) == 1 << 20


@pytest.mark.parametrize(("count", "gib"), [(1, 256), (2, 512), (3, 1024), (4, 1024), (8, 2048)])
def test_several_gpus_need_the_next_power_of_two_for_each(count, gib):
    """Three H100: 128 GiB begin at 0, 256 and 512 GiB, because each port's window has the small BARs too."""
    assert window_mib("auto", [(128 << 10) + 16] * count) == gib << 10


def test_the_bars_of_a_gpus_functions_are_one_sum_and_an_unread_gpu_counts_as_the_largest():
    functions = [("a", "a"), ("a", "a.1"), ("b", "b"), ("b", "b.1")]
    vgpus = [AssignedVgpu(n, Backend.PASSTHROUGH, gpu, f, f, None) for n, (gpu, f) in enumerate(functions)]
    assert gpu_bars_mib({"a": 64, "a.1": 1}, vgpus) == (65, 64)
