# SPDX-License-Identifier: Apache-2.0
"""vGPUs as results: a GPU that is passed through is one, with the other functions of its slot."""

from __future__ import annotations

from tests.values import A4C, a100, assigned
from vgpuctl.model.gpu import Backend
from vgpuctl.operations.plans.results import planned_vgpu, with_companions
from vgpuctl.value import replace


def test_the_audio_function_of_a_gpu_goes_with_it():
    vgpu = planned_vgpu(assigned(a100(), A4C), "vm")
    whole = replace(vgpu, backend=Backend.PASSTHROUGH, carrier=vgpu.gpu)
    audio = replace(whole, carrier="0000:3b:00.1")
    elsewhere = replace(audio, vm="other")
    assert with_companions([audio, whole, vgpu, elsewhere]) == (
        replace(whole, companions=("0000:3b:00.1",)),
        vgpu,
        elsewhere,
    )


def test_a_vgpu_that_was_not_observed_is_managed_and_missing_unless_it_was_just_made():
    vgpu = assigned(a100(), A4C)
    assert (planned_vgpu(vgpu, "vm").ownership, planned_vgpu(vgpu, "vm").present) == ("managed", False)
    assert planned_vgpu(vgpu, None, present=True).present
