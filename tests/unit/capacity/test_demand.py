# SPDX-License-Identifier: Apache-2.0
"""What host.yaml asks for and no GPU offers is told, with its line, and nothing is told that may yet be offered."""

from __future__ import annotations

from tests.values import a100, snapshot, t4
from vgpuctl.capacity.demand import not_offered

TEXT = "version: 1\nplacement:\n  demand:\n    A100-4C: 1\n    A100-4D: 1\n    A16-2Q: 1\n"
DEMAND = {"A100-4C": 1, "A100-4D": 1, "A16-2Q": 1}


def test_each_is_told_with_its_line_and_near_names_and_whether_it_may_be_another_hosts():
    wrong, other = not_offered(snapshot(a100(), t4()), DEMAND, TEXT, "FILE")
    assert wrong.mistaken
    assert wrong.text.startswith(
        "FILE:5: placement.demand: no GPU here offers 'A100-4D', it counts for nothing (did you"
    )
    assert "A100-4C" in wrong.text
    assert not other.mistaken
    assert "FILE:6" in other.text
    assert not_offered(snapshot(a100()), {"A100-4C": 1, "GRID A100-5C": 2}, "", "FILE") == ()


def test_of_several_one_of_a_model_that_is_here_is_hardly_meant_for_another_host():
    demand = {"A100-9C|A16-2Q": 1, "A16-2Q|T4-2Q": 1}
    text = "version: 1\nplacement:\n  demand:\n    A100-9C|A16-2Q: 1\n    A16-2Q|T4-2Q: 1\n"
    assert [told.mistaken for told in not_offered(snapshot(a100()), demand, text, "FILE")] == [True, False]


def test_nothing_is_told_where_a_gpu_may_offer_more_than_it_shows():
    off = t4("0000:5f:00.0", backend=None, vfs_total=16, types=())
    assert not_offered(snapshot(a100(), off), DEMAND, TEXT, "FILE") == ()
    assert not_offered(snapshot(), DEMAND, TEXT, "FILE") == ()
