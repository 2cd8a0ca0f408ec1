# SPDX-License-Identifier: Apache-2.0
"""The rule of each way in which a GPU is divided is named."""

from __future__ import annotations

from tests.unit.capacity.test_gpu_instances import host
from tests.values import a100, t4
from vgpuctl.capacity.rule import rule_of
from vgpuctl.model.gpu import Backend
from vgpuctl.value import replace


def test_every_way_to_divide_a_gpu_has_its_rule():
    gpus = [a100(), a100(one_type=True), a100(mixed_size=True), host(19), replace(t4(), vendor_id="8086")]
    words = [rule_of(gpu) for gpu in gpus]
    assert None not in words
    assert len(set(words)) == len(words)
    assert rule_of(host(on=False)) == rule_of(a100())


def test_what_offers_no_vgpus_has_no_rule():
    assert rule_of(replace(a100(), backend=None)) is None
    assert rule_of(replace(a100(), backend=Backend.PASSTHROUGH)) is None
