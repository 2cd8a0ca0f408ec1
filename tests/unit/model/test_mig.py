# SPDX-License-Identifier: Apache-2.0
"""GPU instances and their placements."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.model.gpu import GiProfile, MigState, PlacementSpan, parse_driver_id

SPANS = st.builds(PlacementSpan, st.integers(0, 7), st.integers(1, 8))


@given(SPANS, SPANS)
def test_two_overlap_exactly_when_they_share_a_slice(one, other):
    slices = [set(range(s.start, s.start + s.size)) for s in (one, other)]
    assert one.overlaps(other) is bool(slices[0] & slices[1])
    assert other.overlaps(one) is one.overlaps(other)


def test_a_span_is_printed_as_nvidia_smi_prints_it():
    assert str(PlacementSpan(4, 4)) == "4:4"


def test_find_profile_by_id():
    half = GiProfile(9, "3g.40gb", 3, 40192, 2, (PlacementSpan(0, 4), PlacementSpan(4, 4)))
    mig = MigState(enabled=True, pending_enabled=True, profiles=(half,))
    assert mig.find_profile(9) is half
    assert mig.find_profile(19) is None


@pytest.mark.parametrize(
    ("text", "number"), [("0\n", 0), ("24\n", 24), ("65535\n", None), ("4294967295\n", None), ("-1", None), ("", None)]
)
def test_the_drivers_marks_for_none_are_no_numbers(text, number):
    assert parse_driver_id(text) == number
