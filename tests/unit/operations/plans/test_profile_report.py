# SPDX-License-Identifier: Apache-2.0
"""What list-profiles shows for observed GPUs."""

from __future__ import annotations

from tests.values import A4C, A5C, a100, assigned, snapshot, vm
from vgpuctl.operations.queries import profile_results
from vgpuctl.value import replace


def test_profiles_are_sorted_by_size_and_full_ones_left_out():
    gpu = a100()
    used = [vm(n, assigned(gpu, A4C, n)) for n in range(3)]
    assert [v.profile for v in profile_results(snapshot(gpu, vms=used), (gpu,), everything=False)] == ["A100-4C"]
    both = profile_results(snapshot(gpu, vms=used), (gpu,), everything=True)
    assert [(v.profile, v.free) for v in both] == [("A100-4C", 7), ("A100-5C", 0)]


def test_different_type_ids_of_one_profile_are_null():
    one, two = a100(), a100("0000:86:00.0", types=(replace(A4C, type_id="999"),))
    (value,) = [v for v in profile_results(snapshot(one, two), (one, two), everything=False) if v.profile == "A100-4C"]
    assert (value.type_id, value.free) == (None, 20)


def test_a_profile_excludes_those_that_never_fit_with_its_maximum():
    one, two = a100(), a100("0000:86:00.0", types=(A4C,))
    values = {v.profile: v.excludes for v in profile_results(snapshot(one, two), (one, two), everything=True)}
    assert values == {"A100-4C": ("A100-5C",), "A100-5C": ()}


def test_what_is_excluded_is_not_known_where_a_maximum_is_not():
    gpu = a100(types=(replace(A4C, max_per_gpu=None), A5C))
    assert {v.excludes is None for v in profile_results(snapshot(gpu), (gpu,), everything=True)} == {True}
