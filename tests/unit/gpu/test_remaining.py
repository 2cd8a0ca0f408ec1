# SPDX-License-Identifier: Apache-2.0
"""Which vGPUs use the capacity: names in words, and the type of each device."""

from __future__ import annotations

from tests.values import A4C, a100, taken
from vgpuctl.gpu.division import find_type, name_holders


def test_few_holders_are_all_named_and_many_shortened_in_the_middle():
    gpu = a100()
    assert name_holders(()) == "nobody"
    assert name_holders([taken(gpu, A4C, n) for n in (2, 1)]) == "vdi-001, vdi-002"
    assert name_holders([taken(gpu, A4C, n) for n in range(5)]) == "vdi-000, vdi-001 … vdi-004 (5)"


def test_a_device_has_its_type_by_id_and_a_record_by_profile():
    gpu = a100()
    assert find_type(gpu, taken(gpu, A4C, profile=None)) == A4C
    assert find_type(gpu, taken(gpu, A4C, type_id=None)) == A4C
    assert find_type(gpu, taken(gpu, A4C, type_id="4711", profile=None)) is None
