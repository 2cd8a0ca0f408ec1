# SPDX-License-Identifier: Apache-2.0
"""Who has what is not left: names in words, and the type of what is there."""

from __future__ import annotations

from tests.values import A4C, a100, taken
from vgpuctl.capacity.left import type_on, who


def test_few_holders_are_all_named_and_many_shortened_in_the_middle():
    gpu = a100()
    assert who(()) == "nobody"
    assert who([taken(gpu, A4C, n) for n in (2, 1)]) == "vdi-001, vdi-002"
    assert who([taken(gpu, A4C, n) for n in range(5)]) == "vdi-000, vdi-001 … vdi-004 (5)"


def test_the_type_of_a_device_is_by_its_number_and_of_a_promise_by_its_profile():
    gpu = a100()
    assert type_on(gpu, taken(gpu, A4C, profile=None)) == A4C
    assert type_on(gpu, taken(gpu, A4C, type_id=None)) == A4C
    assert type_on(gpu, taken(gpu, A4C, type_id="4711", profile=None)) is None
