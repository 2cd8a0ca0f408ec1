# SPDX-License-Identifier: Apache-2.0
"""GVT-g's types share the graphics memory."""

from __future__ import annotations

import pytest

from vgpuctl.makers.intel import Intel


@pytest.mark.parametrize(
    ("description", "size"),
    [("low_gm_size: 128MB\nhigh_gm_size: 512MB\nfence: 4\n", 512), ("low_gm_size: 128MB\n", None)],
)
def test_a_type_takes_its_memory_from_the_pool(description, size):
    known = Intel().read_type("i915-GVTg_V5_4", "GVTg_V5_4", description)
    assert (known.profile, known.framebuffer_mib, known.pool_units) == ("i915-GVTg_V5_4", size, size)
