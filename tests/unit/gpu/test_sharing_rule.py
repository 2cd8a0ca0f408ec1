# SPDX-License-Identifier: Apache-2.0
"""Each way to divide a GPU has a named rule."""

from __future__ import annotations

import pytest

from tests.unit.gpu.test_gpu_instances import host
from tests.values import a100, t4
from vgpuctl.gpu.room import divide
from vgpuctl.model.gpu import Backend
from vgpuctl.value import replace


def test_every_way_to_divide_a_gpu_has_its_rule():
    gpus = [a100(), a100(has_single_type=True), a100(mixed_size=True), host(19), replace(t4(), vendor_id="8086")]
    words = [divide(gpu, ()).rule for gpu in gpus]
    assert None not in words
    assert len(set(words)) == len(words)
    assert divide(host(on=False), ()).rule == divide(a100(), ()).rule


def test_a_gpu_without_vgpus_has_no_rule():
    assert divide(replace(a100(), backend=None), ()).rule is None
    assert divide(replace(a100(), backend=Backend.PASSTHROUGH), ()).rule is None


@pytest.mark.parametrize(
    ("gpu", "word"),
    [
        (a100(), "same framebuffer size"),
        (a100(has_single_type=True), "older than 550"),
        (a100(mixed_size=True), "no two of them overlap"),
    ],
)
def test_the_rule_of_each_way_is_named(gpu, word):
    assert word in divide(gpu, ()).rule
