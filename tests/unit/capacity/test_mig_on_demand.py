# SPDX-License-Identifier: Apache-2.0
"""What fits on a GPU with MIG if each vGPU comes with its own GPU instance."""

from __future__ import annotations

from tests.unit.capacity.test_gpu_instances import BIG, H1, H3, HALF, ONE, SMALL, THREE, TIME_SLICED, host
from vgpuctl.capacity.mig_on_demand import make_on_demand_gpu
from vgpuctl.model.mig import MigState
from vgpuctl.value import replace


def test_profiles_that_share_an_instance_or_need_none_are_left_out() -> None:
    gpu = replace(host(types=(TIME_SLICED, H1, H3, BIG, HALF, SMALL)), framebuffer_mib=81920)
    result = make_on_demand_gpu(gpu)
    assert result is not None
    assert sorted(result.make_kind().sizes) == sorted([H1.profile, H3.profile, BIG.profile])


def test_a_profile_that_the_gpu_has_fewer_of_than_places_has_that_many() -> None:
    engines = replace(ONE, profile_id=20, name="1g.10gb+me", max_instances=1)
    h1_me = replace(H1, profile="H100-1-10CME", name="NVIDIA H100-1-10CME", gi_profile_id=20)
    gpu = replace(host(types=(H1, h1_me, H3)), framebuffer_mib=81920, mig=MigState(True, True, (ONE, engines, THREE)))
    result = make_on_demand_gpu(gpu)
    assert result is not None
    kind = result.make_kind()
    assert [kind.count_remaining(kind.empty, p) for p in (H1.profile, h1_me.profile, H3.profile)] == [7, 1, 2]
    assert kind.fits(kind.empty, {H1.profile: 6, h1_me.profile: 1})


def test_no_more_than_the_gpu_has_vfs() -> None:
    result = make_on_demand_gpu(replace(host(vfs=2), framebuffer_mib=81920))
    assert result is not None
    assert result.make_kind().count_remaining(0, H1.profile) == 2


def test_equal_gpus_are_of_one_kind_and_a_gpu_without_mig_of_none() -> None:
    gpu = replace(host(19, 9), framebuffer_mib=81920)
    assert make_on_demand_gpu(gpu) == make_on_demand_gpu(replace(host(), address="0000:99:00.0", framebuffer_mib=81920))
    assert make_on_demand_gpu(replace(host(on=False), framebuffer_mib=81920)) is None
    assert make_on_demand_gpu(replace(gpu, mig=MigState(True, True))) is None
    assert make_on_demand_gpu(replace(gpu, allowed_profiles=(H3.profile,))).footprints[0][0] == H3.profile  # type: ignore[union-attr]
