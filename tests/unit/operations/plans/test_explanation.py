# SPDX-License-Identifier: Apache-2.0
"""What explain shows for observed GPUs."""

from __future__ import annotations

from tests.unit.operations.plans.test_gpu_results import details
from tests.values import A5C, a100, assigned, snapshot, t4, vm
from vgpuctl.operations.queries import explain_profile


def test_explain_and_show_gpu_take_their_numbers_from_the_same_function():
    gpu = a100()
    observed = snapshot(gpu, vms=[vm(1, assigned(gpu, A5C))])
    explained = explain_profile(observed, (gpu,), "A100-5C")
    (shown,) = [t for t in details(observed, gpu).types if t.profile == "A100-5C"]
    assert explained.free == shown.free == 7


def test_explain_names_the_rule_and_the_fewest_in_the_way_of_one_more():
    gpu, other = a100(), t4()
    observed = snapshot(gpu, other, vms=[vm(n, assigned(gpu, A5C, n)) for n in range(2)])
    value = explain_profile(observed, (gpu, other), "A100-4C")
    first, second = value.gpus
    assert first.rule == "all vGPUs on it have the same framebuffer size"
    assert len(first.in_the_way) == 2
    assert second.in_the_way is None
    assert value.moves is None


def test_explain_says_which_vms_would_have_to_move():
    one, two = a100(), a100("0000:86:00.0")
    vms = [vm(0, assigned(one, A5C, 0)), vm(1, assigned(two, A5C, 0))]
    value = explain_profile(snapshot(one, two, vms=vms), (one, two), "A100-4C")
    (move,) = value.moves
    assert {move.from_gpu, move.to_gpu} == {one.address, two.address}
    pinned = frozenset(v.uuid for v in vms)
    assert explain_profile(snapshot(one, two, vms=vms), (one, two), "A100-4C", pinned).moves is None
    assert explain_profile(snapshot(one, two, vms=vms), (one, two), "A100-5C").moves == ()
