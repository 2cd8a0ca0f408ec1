# SPDX-License-Identifier: Apache-2.0
"""Where each vGPU of a host.yaml can be created, after those before it; pure."""

from __future__ import annotations

import pytest

from tests.values import A4C, A5C, T2Q, a100, snapshot, t4, taken
from vgpuctl.errors import HostCannot, InUse, NoCapacity
from vgpuctl.model.gpu import Ownership
from vgpuctl.model.vm import HostVgpu
from vgpuctl.operations.host_vgpus import gpu_problem, plan_host_vgpus
from vgpuctl.value import replace

CARD = a100(vfs=4)
VFS = [f.address for f in CARD.functions]
NOW: frozenset[str] = frozenset()


def entry(number: int, profile: str = A4C.profile, carrier: str | None = None) -> HostVgpu:
    return HostVgpu(f"v{number}", profile, CARD.address, carrier or VFS[number])


def test_each_entry_is_planned_with_those_before_it_there():
    first, second = plan_host_vgpus(snapshot(CARD), (entry(0), entry(1, A5C.profile)), NOW)
    assert (first.error, first.line) == (None, f"create vGPU v0 (A100-4C on GPU {CARD.address})")
    assert isinstance(second.error, NoCapacity)
    assert "another size" in second.error.message
    assert all(one.error is None for one in plan_host_vgpus(snapshot(CARD), (entry(0), entry(1)), NOW))


def test_a_refusal_stops_no_other_entry():
    strange = replace(taken(CARD, A4C, 0), owner=Ownership.UNMANAGED, vm=None, vm_uuid=None, present=True)
    refused, fine = plan_host_vgpus(snapshot(CARD, vgpus=(strange,)), (entry(0), entry(1)), NOW)
    assert isinstance(refused.error, InUse)
    assert fine.error is None


def test_what_fits_on_a_gpu_that_is_set_up_first_is_not_judged():
    (one,) = plan_host_vgpus(snapshot(CARD), (entry(0, "A100-9C"),), frozenset({CARD.address}))
    assert (one.is_deferred, one.steps, one.error) == (True, (), None)


def test_a_gpu_or_a_vf_that_is_not_there_is_named():
    (one,) = plan_host_vgpus(snapshot(CARD), (entry(0, carrier="0000:3b:1f.7"),), NOW)
    assert isinstance(one.error, HostCannot)
    assert "the VF 0000:3b:1f.7 does not exist" in one.error.message
    (two,) = plan_host_vgpus(snapshot(t4()), (entry(0),), NOW)
    assert f"the GPU {CARD.address} does not exist" in str(two.error)


@pytest.mark.parametrize("profile", [T2Q.profile, "T4-9Q"])
def test_a_gpu_lacks_nothing_for_an_mdev_that_its_driver_can_judge(profile):
    card = t4()
    (one,) = plan_host_vgpus(
        snapshot(card), (HostVgpu("v", profile, card.address, "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"),), NOW
    )
    assert gpu_problem(snapshot(card), one.record.vgpus[0]) is None
    assert (one.error is None) is (profile == T2Q.profile)
