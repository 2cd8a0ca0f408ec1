# SPDX-License-Identifier: Apache-2.0
"""A profile of host.yaml that no GPU offers is reported with its line, unless a GPU may still offer it."""

from __future__ import annotations

from tests.values import a100, snapshot, t4
from vgpuctl.placement.unoffered import find_unoffered_profiles

TEXT = "version: 1\nplacement:\n  demand:\n    A100-4C: 1\n    A100-4D: 1\n    A16-2Q: 1\n"
DEMAND = {"A100-4C": 1, "A100-4D": 1, "A16-2Q": 1}


def test_each_profile_has_its_line_near_names_and_whether_it_is_a_mistake():
    wrong, other = find_unoffered_profiles(snapshot(a100(), t4()), DEMAND, TEXT, "FILE")
    assert wrong.is_mistake
    assert wrong.message.startswith(
        "FILE:5: placement.demand: no GPU here offers 'A100-4D', it counts for nothing (did you"
    )
    assert "A100-4C" in wrong.message
    assert not other.is_mistake
    assert "FILE:6" in other.message
    assert find_unoffered_profiles(snapshot(a100()), {"A100-4C": 1, "GRID A100-5C": 2}, "", "FILE") == ()


def test_an_alternative_of_a_local_model_is_a_mistake():
    demand = {"A100-9C|A16-2Q": 1, "A16-2Q|T4-2Q": 1}
    text = "version: 1\nplacement:\n  demand:\n    A100-9C|A16-2Q: 1\n    A16-2Q|T4-2Q: 1\n"
    assert [reported.is_mistake for reported in find_unoffered_profiles(snapshot(a100()), demand, text, "FILE")] == [
        True,
        False,
    ]


def test_no_report_where_a_gpu_may_offer_more_types():
    off = t4("0000:5f:00.0", backend=None, vfs_total=16, types=())
    assert find_unoffered_profiles(snapshot(a100(), off), DEMAND, TEXT, "FILE") == ()
    assert find_unoffered_profiles(snapshot(), DEMAND, TEXT, "FILE") == ()
