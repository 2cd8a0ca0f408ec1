# SPDX-License-Identifier: Apache-2.0
"""GPU instances and their placements."""

from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.model.partition import GiProfile, Mig, Span

SPANS = st.builds(Span, st.integers(0, 7), st.integers(1, 8))


@given(SPANS, SPANS)
def test_two_overlap_exactly_when_they_share_a_slice(one, other):
    slices = [set(range(s.start, s.start + s.size)) for s in (one, other)]
    assert one.overlaps(other) is bool(slices[0] & slices[1])
    assert other.overlaps(one) is one.overlaps(other)


def test_a_span_is_printed_as_nvidia_smi_prints_it():
    assert str(Span(4, 4)) == "4:4"


def test_a_profile_is_found_by_its_id():
    half = GiProfile(9, "3g.40gb", 3, 40192, 2, (Span(0, 4), Span(4, 4)))
    mig = Mig(enabled=True, pending=True, profiles=(half,))
    assert mig.profile(9) is half
    assert mig.profile(19) is None
