# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's mdev types, and how its GPUs say that they are divided."""

from __future__ import annotations

import pytest

from vgpuctl.makers.nvidia import Nvidia


@pytest.mark.parametrize(
    ("name", "description", "expected"),
    [
        ("GRID T4-2Q\n", "num_heads=4, framebuffer=2048M, max_instance=8", ("T4-2Q", 2048, 8)),
        ("NVIDIA GeForce RTX 3050", "", ("NVIDIA GeForce RTX 3050", None, None)),
        ("", "", ("nvidia-231", None, None)),
    ],
)
def test_a_type_is_read(name, description, expected):
    known = Nvidia().read_type("nvidia-231", name, description)
    assert (known.profile, known.framebuffer_mib, known.max_per_gpu) == expected
    assert known.pool_units is None
