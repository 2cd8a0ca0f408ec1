# SPDX-License-Identifier: Apache-2.0
"""Each way to divide a GPU has a named rule."""

from __future__ import annotations

from tests.unit.capacity.test_gpu_instances import host
from tests.values import a100, t4
from vgpuctl.model.gpu import Backend
from vgpuctl.operations.plans.explanation import describe_sharing_rule
from vgpuctl.value import replace


def test_every_way_to_divide_a_gpu_has_its_rule():
    gpus = [a100(), a100(has_single_type=True), a100(mixed_size=True), host(19), replace(t4(), vendor_id="8086")]
    words = [describe_sharing_rule(gpu) for gpu in gpus]
    assert None not in words
    assert len(set(words)) == len(words)
    assert describe_sharing_rule(host(on=False)) == describe_sharing_rule(a100())


def test_a_gpu_without_vgpus_has_no_rule():
    assert describe_sharing_rule(replace(a100(), backend=None)) is None
    assert describe_sharing_rule(replace(a100(), backend=Backend.PASSTHROUGH)) is None
